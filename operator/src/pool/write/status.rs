//! Writes finalizers and status of pools and profiles.

use futures::{FutureExt as _, StreamExt as _, stream};
use gputenancy_crds::{GpuPool, GpuPoolStatus, GpuProfile, GpuProfileStatus};
use kube::{Resource as _, ResourceExt as _};

use super::{CONCURRENCY, FleetWriter, Outcome, WriteError, failed, within};
use crate::pool::{decide::FleetDecision, status};
use gputenancy_engine::fleet::Fleet;

/// Writes all of them; a failure is logged and does not keep others from being written.
pub async fn write(writer: &FleetWriter, fleet: &Fleet, decision: &FleetDecision) -> Outcome {
    let FleetDecision { pools, profiles, finished, .. } = decision;
    let mut pending = Vec::new();
    for pool in &fleet.pools {
        let name = pool.name_any();
        let written = pool_writes(writer, pool, pools.get(&name), finished.contains(&name));
        pending.push(logged("GpuPool", name, written).boxed());
    }
    for (name, status) in profiles {
        pending.push(logged("GpuProfile", name.clone(), profile_status(writer, name, status)).boxed());
    }
    let failures = stream::iter(pending).buffer_unordered(CONCURRENCY).fold(0, async |sum, failed| sum + failed).await;
    Outcome { failures, ..Outcome::default() }
}

/// Writes one object within the deadline; the number of failures.
async fn logged(kind: &str, name: String, writes: impl Future<Output = Result<(), WriteError>>) -> usize {
    let written = within(writes).await.flatten();
    let written = written.inspect_err(|error| tracing::warn!(%error, kind, name, "write failed"));
    usize::from(written.is_err())
}

/// A pool keeps its finalizer until it is deleted and has no GPU any more.
async fn pool_writes(
    writer: &FleetWriter,
    pool: &GpuPool,
    status: Option<&GpuPoolStatus>,
    finished: bool,
) -> Result<(), WriteError> {
    if pool.metadata.deletion_timestamp.is_none() {
        writer.writer.set_finalizer(pool, true).await.map_err(failed("adding the finalizer"))?;
    }
    if let Some(status) = status {
        let written = writer.writer.apply_status::<GpuPool>(&pool.name_any(), status).await;
        written.map_err(failed("writing the status"))?;
        let before = pool.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        for (event_type, reason, note) in status::news(before, &status.conditions) {
            writer.report(pool.object_ref(&()), event_type, reason, "Reconcile", note).await;
        }
    }
    if finished {
        writer.writer.set_finalizer(pool, false).await.map_err(failed("removing the finalizer"))?;
    }
    Ok(())
}

async fn profile_status(writer: &FleetWriter, name: &str, status: &GpuProfileStatus) -> Result<(), WriteError> {
    let written = writer.writer.apply_status::<GpuProfile>(name, status).await;
    written.map(drop).map_err(failed("writing the status"))
}
