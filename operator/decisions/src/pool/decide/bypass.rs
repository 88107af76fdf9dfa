//! Evictions of pods that bypass the memory limit of their share, in pools with `spec.enforcement.onBypass: Evict`. Pure.
//!
//! The agent reports the bypass with the UID of the pod, and has no right to evict. A pod is evicted only from the node whose agent reports
//! it, so that the token of an agent reaches no pod of another node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    Bypass, DeviceOwner, Enforcement, GpuNode, GpuPool, GpuState, GpuTenant, OnBypass, ShareState, Trust,
    ids::{NodeName, PodName},
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{
    change::{Eviction, PodController, PodFacts, Policy},
    fleet::{Fleet, pod_facts},
    pool::{
        derive::{node_views::NodeViews, ownership::Ownership, pod_index::PodIndex},
        read::inventory::Inventory,
    },
};

/// What is done about bypasses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BypassEvictions {
    /// Pods to evict, by node.
    pub evictions: BTreeMap<NodeName, BTreeSet<Eviction>>,
    /// Decide again at this time, because an eviction was refused.
    pub retry_at: Option<Timestamp>,
}

impl BypassEvictions {
    /// The pods.
    pub fn pods(&self) -> impl Iterator<Item = &PodName> {
        self.evictions.values().flatten().map(|eviction| &eviction.pod)
    }
}

/// The pods to evict now. An agent that does not report has no current status, and its node is left alone.
pub fn evictions(
    inventory: &Inventory<'_>,
    ownership: &Ownership,
    views: &NodeViews,
    pods: &PodIndex,
) -> BypassEvictions {
    let fleet = inventory.fleet;
    let mut found = BypassEvictions::default();
    for (name, node) in views.bypassed() {
        let key = NodeName::from(name);
        let pool = pool(inventory, ownership, &key).filter(|_| fleet.liveness(name).is_alive());
        let Some(pool) = pool.filter(|pool| can_evict(&pool.spec.enforcement)) else { continue };
        let retry = Policy::from(&pool.spec.disruption).eviction_retry;
        let facts = pod_facts(fleet, &pods.on_node(name), None, inventory.refusals);
        for (state, share, bypass) in bypasses(node) {
            let Some((pod, facts)) = owner(share, bypass, &facts) else { continue };
            if pool.spec.enforcement.on_bypass_by(trust(fleet, &pod)) != OnBypass::Evict {
                continue;
            }
            let again = facts.refused.as_ref().and_then(|refusal| refusal.at.checked_add(retry).ok());
            if let Some(at) = again.filter(|at| *at > inventory.now) {
                found.retry_at = found.retry_at.into_iter().chain([at]).min();
            } else {
                let reason = reason(name, state, share, bypass);
                let eviction = Eviction { pod, uid: bypass.uid.clone(), reason };
                found.evictions.entry(key.clone()).or_default().insert(eviction);
            }
        }
    }
    found
}

/// Whether the pods of some tenant are evicted.
fn can_evict(enforcement: &Enforcement) -> bool {
    let all = [None, Some(Trust::Trusted)];
    all.into_iter().any(|trust| enforcement.on_bypass_by(trust) == OnBypass::Evict)
}

/// Trust in the tenant that lists the namespace of a pod; `None`: none does.
fn trust(fleet: &Fleet, pod: &PodName) -> Option<Trust> {
    let lists = |tenant: &&Arc<GpuTenant>| tenant.spec.namespaces.iter().any(|listed| *listed.name == *pod.namespace);
    fleet.tenants.iter().find(lists).map(|tenant| tenant.spec.trust)
}

/// The only pool of a node without a conflicting owner.
fn pool<'a>(inventory: &Inventory<'a>, ownership: &Ownership, node: &NodeName) -> Option<&'a GpuPool> {
    let [name] = ownership.pools_of(node.as_str()) else { return None };
    let pool = inventory.fleet.pools.iter().find(|pool| pool.name_any() == name.as_str());
    pool.filter(|_| !ownership.is_conflicting(node.as_str()))
}

/// Shares whose limit is bypassed.
fn bypasses(node: &GpuNode) -> impl Iterator<Item = (&GpuState, &ShareState, &Bypass)> {
    let gpus = node.status.iter().flat_map(|status| &status.gpus);
    gpus.flat_map(|gpu| gpu.shares.iter().filter_map(move |share| Some((gpu, share, share.bypass.as_ref()?))))
}

/// The pod that has the share, if it was found to bypass its limit and can be evicted.
fn owner<'f>(
    share: &ShareState,
    bypass: &Bypass,
    facts: &'f BTreeMap<PodName, PodFacts>,
) -> Option<(PodName, &'f PodFacts)> {
    let DeviceOwner { namespace, pod, .. } = share.device.owner.as_ref()?;
    let (name, facts) = facts.iter().find(|(name, _)| *name.namespace == **namespace && name.name == *pod)?;
    let evictable = facts.uid == bypass.uid && !facts.terminating && facts.controller != PodController::Static;
    evictable.then(|| (name.clone(), facts))
}

fn reason(node: &str, gpu: &GpuState, share: &ShareState, bypass: &Bypass) -> String {
    let Bypass { uid: _, used, counted, limit, without_cuda } = bypass;
    if *without_cuda {
        return format!(
            "the pod uses {used} on share {} of GPU {} of node {node}, whose limit is {limit}, and its programs have not loaded libcuda.so: memory of graphics or video is not limited; use less of it, or ask for a MIG instance or a whole GPU",
            share.number, gpu.index
        );
    }
    format!(
        "the pod bypasses the memory limit of share {} of GPU {} of node {node}: its processes use {used}, and the limit of {limit} counts {counted} of it; let its programs load libcuda.so.1 from the usual path",
        share.number, gpu.index
    )
}
