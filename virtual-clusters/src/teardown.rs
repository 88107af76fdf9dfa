//! Deletes a virtual cluster, in the order in which nothing is made again: control plane, its pods, objects, Secrets, volumes.

use std::time::Duration;

use gputenancy_crds::{
    GpuTenant, VirtualClusterStatus,
    condition::{ConditionUpdate, READY, merge},
    reasons,
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;

use crate::{context::Context, host::Host, names, render::objects, tenant::apply_status};

/// Pods end within their grace period, ten minutes by default; then the rest is deleted without waiting, as on a node that is lost.
const PATIENCE: SignedDuration = SignedDuration::from_mins(12);

/// One step; returns the time until the next, `None`: nothing is left.
pub async fn run(tenant: &GpuTenant, context: &Context) -> kube::Result<Option<Duration>> {
    let (name, now) = (tenant.name_any(), Timestamp::now());
    let old = tenant.status.as_ref().and_then(|s| s.virtual_cluster.clone()).unwrap_or_default();
    let namespace = old.namespace.clone().unwrap_or_else(|| objects::namespace_of(tenant));
    let since = old.deleting_since.clone().map_or(now, |t| t.0);
    let host = Host::new(context.client.clone(), &namespace, &name);
    let left = match step(&host, &name, now.duration_since(since) < PATIENCE).await {
        Ok(left) => left,
        // no namespace, or one without this program's rights: the operator says why, and waits only for a namespace that is the tenant's
        Err(kube::Error::Api(status)) if status.is_not_found() => None,
        Err(kube::Error::Api(status)) if status.is_forbidden() => Some(status.message.clone()),
        Err(error) => return Err(error),
    };
    let Some(left) = left else { return Ok(None) };
    let status = report(&old, &left, since, tenant.metadata.generation, now);
    if status != old {
        apply_status(&context.client, &name, Some(&status)).await?;
    }
    // one step a second at first, and fewer the longer something does not go
    let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Ok(Some((waited / 8).clamp(Duration::from_secs(1), Duration::from_secs(15))))
}

/// The status of a virtual cluster that is being deleted; `left`: what still exists. Pure.
fn report(
    old: &VirtualClusterStatus,
    left: &str,
    since: Timestamp,
    generation: Option<i64>,
    now: Timestamp,
) -> VirtualClusterStatus {
    let message = format!("the virtual cluster is being deleted; left: {left}");
    let updates = vec![ConditionUpdate::no(READY, reasons::DELETING, message)];
    VirtualClusterStatus {
        observed_generation: generation,
        deleting_since: Some(Time(since)),
        kubeconfig_secret: None,
        kubeconfig_expires: None,
        conditions: merge(&old.conditions, updates, generation, now),
        ..old.clone()
    }
}

/// What is left, in a few words; `None`: nothing.
async fn step(host: &Host, name: &str, patient: bool) -> kube::Result<Option<String>> {
    // in the namespace of another tenant nothing is this one's
    if host.tenant().await?.is_some_and(|tenant| tenant != name) {
        return Ok(None);
    }
    let live = host.applied().await?;
    for workload in live.iter().filter(|l| l.kind.is_workload()) {
        if workload.content.pointer("/spec/replicas").and_then(serde_json::Value::as_i64) != Some(0) {
            host.stop(workload.kind, &workload.name).await?;
        }
    }
    let runs = live.iter().any(|l| l.kind.is_workload());
    let control_plane = host.control_plane_pods().await?;
    if runs && patient && !control_plane.is_empty() {
        return Ok(Some("pods of the control plane".into()));
    }
    let pods = host.synced_pods().await?;
    host.delete_pods(&pods).await?;
    if patient && !pods.is_empty() {
        let first = pods.first().and_then(|p| p.metadata.name.as_deref()).unwrap_or_default();
        return Ok(Some(format!("{} pods, such as {first}", pods.len())));
    }
    for object in live.iter().rev() {
        host.delete(object.kind, &object.name).await?;
    }
    for secret in [names::admin_secret(name), names::certificates_secret(name), names::KUBECONFIG_SECRET.to_owned()] {
        host.delete_secret(&secret).await?;
    }
    host.delete_volumes().await?;
    let left = host.applied().await?;
    let first = left.first().filter(|_| patient).map(|l| format!("{} {}", l.kind.kind, l.name));
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletion_keeps_its_begin_and_says_what_is_left() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let (begin, later) = (time("2026-01-01T00:00:00Z"), time("2026-01-01T00:05:00Z"));
        let first = report(&VirtualClusterStatus::default(), "3 pods", begin, Some(4), begin);
        let second = report(&first, "Service team-a", begin, Some(4), later);
        assert_eq!(second.deleting_since, Some(Time(begin)));
        assert_eq!(second.conditions.len(), 1);
        assert_eq!(second.conditions[0].reason, "Deleting");
        assert!(second.conditions[0].message.ends_with("left: Service team-a"));
        assert_eq!(second.conditions[0].last_transition_time, first.conditions[0].last_transition_time);
    }
}
