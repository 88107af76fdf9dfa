//! The condition about the tenant's virtual cluster and its refused pods, from what its controller reports. Pure.

use gputenancy_crds::{
    condition::{ConditionUpdate, READY},
    reasons::{self, Reason},
};

use crate::tenant::observe::Observed;

const VIRTUAL_CLUSTER: &str = "VirtualClusterReady";

/// Pods inside that request this profile and have no host pod, because the tenant's quota refuses them.
pub fn refused(seen: &Observed, profile: &str) -> i32 {
    let reported = seen.tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    let reported = reported.filter(|_| seen.virtual_clusters && seen.tenant.spec.virtual_cluster.is_some());
    let of = reported.into_iter().flat_map(|r| &r.refused).filter(|of| of.profile == profile);
    of.fold(0, |sum, of| sum.saturating_add(of.count.max(0)))
}

/// The condition; `None` for a tenant without a virtual cluster.
pub fn condition(seen: &Observed) -> Option<ConditionUpdate> {
    seen.tenant.spec.virtual_cluster.as_ref()?;
    if !seen.virtual_clusters {
        let message = "the platform serves no virtual clusters: set virtualClusters.enabled=true in the chart's values, or remove spec.virtualCluster";
        return Some(ConditionUpdate::no(VIRTUAL_CLUSTER, reasons::VIRTUAL_CLUSTERS_DISABLED, message));
    }
    let reported = seen.tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    let reported = reported.filter(|r| r.observed_generation == seen.tenant.metadata.generation);
    let ready = reported.and_then(|r| r.conditions.iter().find(|c| c.type_ == READY));
    Some(match ready {
        Some(ready) => ConditionUpdate {
            type_: VIRTUAL_CLUSTER,
            status: Some(ready.status == "True"),
            reason: Reason::listed(&ready.reason).unwrap_or(reasons::VIRTUAL_CLUSTER_PENDING),
            message: ready.message.clone(),
        },
        None => ConditionUpdate::no(
            VIRTUAL_CLUSTER,
            reasons::VIRTUAL_CLUSTER_PENDING,
            "waiting for the controller of virtual clusters (Deployment gputenancy-virtual-clusters)",
        ),
    })
}
