//! Writes finalizers and status of pools.

use gputenancy_crds::{GpuPool, GpuPoolStatus};
use gputenancy_decisions::{event::EventMessage, pool::status::pools};
use kube::{Resource as _, ResourceExt as _};

use super::{FleetWriter, WriteError, Written, event_type, failed};

/// What is written about a pool.
pub struct PoolWrite {
    /// Add the finalizer: it is removed when the pool is deleted and has no GPU any more.
    pub protect: bool,
    /// The status, if it differs.
    pub status: Option<GpuPoolStatus>,
    /// Remove the finalizer.
    pub finished: bool,
}

/// Writes a pool's finalizer and status, and reports what is new in it.
pub async fn write_pool(writer: &FleetWriter, pool: &GpuPool, write: PoolWrite) -> Result<Written, WriteError> {
    let PoolWrite { protect, status, finished } = write;
    if protect {
        writer.writer.set_finalizer(pool, true).await.map_err(failed("adding the finalizer"))?;
    }
    if let Some(status) = status {
        let written = writer.writer.apply_status::<GpuPool>(&pool.name_any(), &status).await;
        written.map_err(failed("writing the status"))?;
        let before = pool.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        for event in pools::events(before, &status.conditions) {
            let EventMessage { warning, reason, message } = event;
            writer.report(pool.object_ref(&()), event_type(warning), reason, "Reconcile", message).await;
        }
    }
    if finished {
        writer.writer.set_finalizer(pool, false).await.map_err(failed("removing the finalizer"))?;
    }
    Ok(Written::Done)
}
