//! What is remembered of one virtual cluster from one reconcile to the next. Without it, as after a restart, all is found again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use gputenancy_crds::{VirtualClusterUpgrade, reasons::Reason};
use kube::Client;

use crate::{
    decide::{Settled, conditions::InsideOutcome},
    host::{Live, Pods},
    inside::{connect::Admin, priorities::PolicyUnserved},
    render::objects::Object,
};

/// See the module.
#[derive(Clone, Default)]
pub struct Memory {
    /// UID of the tenant: a later one with its name begins without any of it.
    pub uid: Option<String>,
    /// When the last reconcile ended.
    pub last: Option<Instant>,
    /// The virtual cluster was ready, and nothing was written.
    pub rests: bool,
    /// Objects of vCluster's chart in the namespace, and when they were read.
    pub objects: Option<(Instant, Arc<Vec<Live>>)>,
    /// Pods of the namespace, and when they were read.
    pub pods: Option<(Instant, Arc<Pods>)>,
    /// The last rendering, by all that it depends on.
    pub rendered: Option<(String, Arc<Vec<Object>>)>,
    /// The objects of this rendering are all applied.
    pub complete: Option<String>,
    /// See [`Settled`].
    pub settled: Settled,
    /// The upgrade that is in progress or has failed, as last written into the status.
    pub upgrade: Option<VirtualClusterUpgrade>,
    /// UIDs of suspicious host pods that an event has named.
    pub suspicious: BTreeSet<String>,
    /// A client of the API server inside, and the credentials that it was made with.
    pub connection: Option<(Admin, Client)>,
    /// When the API server inside was last read, and what that led to.
    pub inside: Option<(Instant, Arc<InsideOutcome>)>,
    /// Reconciles in a row in which something inside did not answer or refused.
    pub failures: u32,
    /// The API server inside does not serve the policy for `PriorityClasses`.
    pub unserved: Option<PolicyUnserved>,
    /// Host pods without a pod inside, by UID, since when.
    pub orphans: BTreeMap<String, Instant>,
    /// UIDs of pods inside that have their event about waiting for a device.
    pub waiting: BTreeSet<String>,
    /// When the last event about `Ready` was published, and its reason.
    pub announced: Option<(Instant, Reason)>,
}
