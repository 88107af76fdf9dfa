//! Writes what was decided about the fleet.
//!
//! Several objects are written at a time, each within a deadline and with a back-off of its own: one whose requests hang or fail delays no
//! other, and no decision. A failure is logged when it happens and reported on the object that it concerns.

mod canary;
mod labels;
mod node;
mod object;
mod partition_request;
mod pdb;
mod plugin;
mod plugin_configs;
mod pods;
mod queue;
mod repair;
mod state;
mod status;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gputenancy_cluster::{
    error::sentence,
    events::{EventType, Notice, Publisher},
};
use k8s_openapi::{
    api::core::v1::{ConfigMap, ObjectReference},
    jiff::Timestamp,
};
use kube::api::ObjectMeta;

use crate::{
    apply::{Part, Writer},
    cache::KueueCaches,
    metrics::Metrics,
};
use gputenancy_crds::{ids::NodeName, reasons::Reason};
use gputenancy_decisions::{fleet::Fleet, partitioner::MigConfigError};
pub use object::{Finished, ObjectWrite, Target};
pub use queue::{WriteQueue, unless_panicked};
pub use state::NodeState;

/// Longest time for all writes about one object.
const OBJECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Time until a write is decided again that met another version of the object than the cache has.
const CONFLICT: Duration = Duration::from_secs(1);

/// Why a write failed; what was written before stays, and the next decision continues from there.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server refused a write or did not answer.
    #[error("{doing}: {}", sentence(&**source))]
    Api {
        /// What was being done.
        doing: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server is slow or silent.
    #[error(
        "all writes about this object together took longer than {} s and were ended; retried within 2 to 60 s: see the latency of the \
         API server, and whether an admission webhook for this kind hangs",
        OBJECT_TIMEOUT.as_secs()
    )]
    Timeout,
    /// The layouts cannot be rendered.
    #[error(transparent)]
    Layouts(#[from] MigConfigError),
}

impl WriteError {
    /// The object has another version than the cache; writes of fields are forced, so that no other conflict lasts.
    fn is_conflict(&self) -> bool {
        let Self::Api { source, .. } = self else { return false };
        matches!(&**source, kube::Error::Api(status) if status.is_conflict())
    }
}

fn failed(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> WriteError {
    let doing = doing.into();
    move |source| WriteError::Api { doing, source: Box::new(source) }
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is done.
    Done,
    /// The object has changed since it was read, or something that no watch reports: decide again.
    Again,
    /// It is due at this time.
    At(Timestamp),
}

/// What came of all writes about an object.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The first write that failed.
    pub failure: Option<String>,
    /// Something has changed that no watch reports: decide again.
    pub again: bool,
    /// Decide again after this time.
    pub due: Option<Duration>,
}

impl Outcome {
    /// Notes what came of one write, and logs a failure at once; the span names the object.
    fn record(&mut self, written: Result<Written, WriteError>) {
        match written {
            Ok(Written::Done) => {}
            Ok(Written::Again) => self.again = true,
            Ok(Written::At(at)) => {
                let due = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
                self.due = self.due.into_iter().chain([due]).min();
            }
            // another client has written first: what is decided from its version follows
            Err(error) if error.is_conflict() => {
                tracing::debug!(%error, "write is retried");
                self.due = self.due.into_iter().chain([CONFLICT]).min();
            }
            Err(error) => {
                tracing::warn!(%error, "write failed");
                self.failure.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

/// Writes decisions to the API server.
pub struct FleetWriter {
    /// Requests.
    pub writer: Writer,
    /// Events.
    pub publisher: Publisher,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Namespaces of what it writes.
    pub namespaces: Namespaces,
    /// Jobs that Kueue has admitted; `None`: the chart has Kueue off.
    pub kueue: Option<KueueCaches>,
}

/// Namespaces of objects that decisions write.
#[derive(Clone, Debug)]
pub struct Namespaces {
    /// The operator's: canary pods are there.
    pub home: String,
    /// Of the layouts for requests.
    pub layouts: String,
    /// Of the configs for NVIDIA's device plugin.
    pub plugin_configs: String,
}

impl FleetWriter {
    async fn publish(
        &self,
        part: Part,
        (namespace, name): (&str, &str),
        data: BTreeMap<String, String>,
    ) -> Result<(), WriteError> {
        let metadata =
            ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
        let object = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        let applied = self.writer.apply(part, &object).await;
        applied.map(drop).map_err(failed(format!("writing ConfigMap {namespace}/{name}")))
    }

    async fn report(
        &self,
        regarding: ObjectReference,
        event_type: EventType,
        reason: Reason,
        action: &str,
        note: String,
    ) {
        let action = action.into();
        self.publisher.publish(Notice { regarding, event_type, reason, action, note }).await;
    }
}

/// The type of an event that a decision reports.
fn event_type(warning: bool) -> EventType {
    if warning { EventType::Warning } else { EventType::Normal }
}

/// Drops what is remembered of nodes and pods that are gone.
pub fn forget(nodes: &mut BTreeMap<Target, NodeState>, fleet: &Fleet) {
    let exists =
        |name: &NodeName| fleet.nodes.contains_key(name.as_str()) || fleet.gpu_nodes.contains_key(name.as_str());
    nodes.retain(|target, _| target.node().is_some_and(exists));
    let mut remembered: Vec<_> = nodes.iter_mut().filter(|(_, state)| state.awaits()).collect();
    if remembered.is_empty() {
        return;
    }
    let uids: BTreeSet<&str> = fleet.pods.values().filter_map(|p| p.metadata.uid.as_deref()).collect();
    for (target, state) in &mut remembered {
        let cached = target.node().and_then(|name| fleet.gpu_nodes.get(name.as_str()));
        state.forget(cached.map(|n| &**n), &uids);
    }
}

/// Ends writes about one object that take too long.
async fn within<T>(writes: impl Future<Output = T>) -> Result<T, WriteError> {
    tokio::time::timeout(OBJECT_TIMEOUT, writes).await.map_err(|_| WriteError::Timeout)
}
