//! The observed state that one decision about the fleet is made from.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use super::tolerated::Tolerated;
use crate::fleet::{Fleet, Refusals};

/// The caches at one moment, and what the operator remembers beside them.
#[derive(Clone, Copy, Debug)]
pub struct Inventory<'a> {
    /// The objects.
    pub fleet: &'a Fleet,
    /// The time.
    pub now: Timestamp,
    /// Refused evictions.
    pub refusals: &'a Refusals,
    /// The operator's namespace: canary pods are there.
    pub namespace: &'a str,
    /// Key of the taint that pods of tenants tolerate.
    pub tolerated: &'a Tolerated,
    /// Marks of taints as last seen, by node.
    pub marks: &'a BTreeMap<String, String>,
    /// Nodes whose `GpuNode` is older in the cache than the operator's last write: no decision is made about them.
    pub lagging: &'a BTreeSet<String>,
    /// Nodes whose `GpuNode` could not be written, until it is tried again: no change begins there in place of one elsewhere.
    pub failing: &'a BTreeSet<String>,
    /// Nodes whose `GpuNode` is being written: what is written is not in the cache yet.
    pub writing: &'a BTreeSet<String>,
}
