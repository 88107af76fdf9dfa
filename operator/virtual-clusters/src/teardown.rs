//! Deletes a virtual cluster, in the order in which nothing is made again: control plane, its pods, objects, Secrets, volumes.

use std::time::Duration;

use gputenancy_crds::{
    GpuTenant, Reclaim, VirtualCluster, VirtualClusterBackend, VirtualClusterStatus,
    condition::{ConditionUpdate, READY, merge},
    reasons,
    words::counted,
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;

use crate::{
    access::AccessError,
    context::Context,
    decide,
    host::Host,
    inside::{
        account, catalog,
        connect::{self, Admin, timed},
        nodes::{self, Amounts, Requests},
    },
    names,
    render::objects,
    tenant::apply_status,
};

/// Pods end within their grace period, ten minutes by default; then the rest is deleted without waiting, as on a node that is lost.
const PATIENCE: SignedDuration = SignedDuration::from_mins(12);

/// How long the removal of the account inside an adopted virtual cluster is tried again: it may be stopped or gone.
const INSIDE_PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// What a step leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Another step after this time.
    Requeue(Duration),
    /// The removal is over.
    Done(Removed),
}

/// What a removal has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// What became of the volumes.
    pub volumes: Volumes,
    /// What exists still, although the time is over, and was not waited for any longer.
    pub left: Option<String>,
}

impl From<Volumes> for Removed {
    fn from(volumes: Volumes) -> Self {
        Self { volumes, left: None }
    }
}

/// What became of the volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Volumes {
    /// They are deleted.
    Deleted,
    /// They are kept, under these names of `PersistentVolumeClaims`.
    Kept(Vec<String>),
    /// They are in use: the virtual cluster was adopted, and runs on.
    InUse,
    /// Nothing was deleted.
    Untouched,
}

impl Volumes {
    /// Where there is nothing to delete.
    fn without_deletion(backend: VirtualClusterBackend) -> Self {
        if backend == VirtualClusterBackend::External { Self::InUse } else { Self::Deleted }
    }
}

/// One step.
pub async fn run(tenant: &GpuTenant, context: &Context) -> kube::Result<Removal> {
    let (name, now) = (tenant.name_any(), Timestamp::now());
    let old = tenant.status.as_ref().and_then(|s| s.virtual_cluster.clone()).unwrap_or_default();
    let namespace = old.namespace.clone().unwrap_or_else(|| objects::namespace_of(tenant));
    let since = began(&old, now);
    let host = Host::new(context.client.clone(), &namespace, &name);
    let backend = decide::installed(Some(&old)).unwrap_or_default();
    let installed = Installed { name: &name, namespace: &namespace, backend, reclaim: reclaim(tenant, backend, &old) };
    let left = match step(&host, &installed, now.duration_since(since)).await {
        Ok(Step::Done(removed)) => return Ok(Removal::Done(removed)),
        Ok(Step::Left(left)) => left,
        // no namespace, or one without this program's rights: the operator says why, and waits only for a namespace that is the tenant's
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            return Ok(Removal::Done(Volumes::without_deletion(backend).into()));
        }
        Err(kube::Error::Api(status)) if status.is_forbidden() && now.duration_since(since) > PATIENCE => {
            let left = format!("all of it, because this program has no right to look: {}", status.message);
            return Ok(Removal::Done(Removed { volumes: Volumes::Untouched, left: Some(left) }));
        }
        Err(kube::Error::Api(status)) if status.is_forbidden() => status.message.clone(),
        Err(error) => return Err(error),
    };
    let status = report(&old, &left, since, tenant.metadata.generation, now);
    context.metrics.report(&name, &status, None);
    if status != old {
        apply_status(&context.client, &name, Some(&status)).await?;
    }
    // one step a second at first, and fewer the longer something does not go
    let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Ok(Removal::Requeue((waited / 8).clamp(Duration::from_secs(1), Duration::from_secs(15))))
}

/// When the removal began. A time that is still to come would put off its end: then it begins now, which is written into the status. Pure.
fn began(old: &VirtualClusterStatus, now: Timestamp) -> Timestamp {
    old.deleting_since.as_ref().map_or(now, |since| since.0.min(now))
}

/// What becomes of the volumes: by the spec, which a deleted tenant still has, or as last read from it. A spec with another backend is about
/// the next virtual cluster. Pure.
fn reclaim(tenant: &GpuTenant, backend: VirtualClusterBackend, old: &VirtualClusterStatus) -> Reclaim {
    let cluster = tenant.spec.virtual_cluster.as_ref().filter(|cluster| cluster.backend == backend);
    cluster.map(VirtualCluster::reclaim).or(old.reclaim).unwrap_or_default()
}

/// The note of the event about the removal. Pure.
pub fn note(tenant: &GpuTenant, removed: &Removed) -> String {
    let Removed { volumes, left } = removed;
    let done = deleted(tenant, volumes);
    match left {
        Some(left) => format!("{done}. Not waited for any longer, delete it by hand: {left}"),
        None => done,
    }
}

fn deleted(tenant: &GpuTenant, volumes: &Volumes) -> String {
    let gone = "the virtual cluster is deleted: its control plane, pods";
    let namespace = objects::namespace_of(tenant);
    let adopted = tenant.spec.namespaces.first().is_some_and(|n| n.adopt);
    let ends = tenant.metadata.deletion_timestamp.is_some() && !adopted;
    let until = if ends { ", until the operator deletes the namespace with the tenant" } else { "" };
    match volumes {
        Volumes::Deleted => format!("{gone}, Secrets and volumes"),
        Volumes::Kept(names) if names.is_empty() => format!("{gone} and Secrets; it had no volume to keep"),
        Volumes::Kept(names) => {
            let names = names.join(", ");
            format!(
                "{gone} and Secrets; its volumes are kept: PersistentVolumeClaim {names} in namespace {namespace}{until}"
            )
        }
        Volumes::Untouched => "the virtual cluster is not deleted".to_owned(),
        Volumes::InUse => format!(
            "the virtual cluster is no longer adopted: the vCluster in namespace {namespace} runs on{until}, without the team's account and kubeconfig"
        ),
    }
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
        refused: Vec::new(),
        conditions: merge(&old.conditions, updates, generation, now),
        ..old.clone()
    }
}

enum Step {
    /// What is left, in a few words.
    Left(String),
    Done(Removed),
}

/// What is removed.
struct Installed<'a> {
    /// Name of the tenant.
    name: &'a str,
    namespace: &'a str,
    backend: VirtualClusterBackend,
    reclaim: Reclaim,
}

async fn step(host: &Host, installed: &Installed<'_>, waited: SignedDuration) -> kube::Result<Step> {
    let Installed { name, namespace, backend, reclaim } = *installed;
    let patient = waited < PATIENCE;
    // in the namespace of another tenant nothing is this one's
    if host.tenant().await?.is_some_and(|tenant| tenant != name) {
        return Ok(Step::Done(Removed::from(match backend {
            VirtualClusterBackend::External => Volumes::InUse,
            VirtualClusterBackend::Helm => Volumes::Untouched,
        })));
    }
    if backend == VirtualClusterBackend::External {
        return release(host, (name, namespace), waited).await;
    }
    let live = host.everything().await?;
    for workload in decide::unstopped(&live) {
        host.stop(workload.kind, &workload.name).await?;
    }
    let runs = live.iter().any(|l| l.kind.is_workload());
    let control_plane = host.control_plane_pods().await?;
    if runs && patient && !control_plane.is_empty() {
        return Ok(Step::Left("pods of the control plane".into()));
    }
    let pods = host.some_synced_pods().await?;
    host.delete_pods(&pods).await?;
    if patient && !pods.is_empty() {
        let first = pods.first().and_then(|p| p.metadata.name.as_deref()).unwrap_or_default();
        return Ok(Step::Left(format!("{}, such as {first}", counted(pods.len(), "pod"))));
    }
    for object in live.iter().rev() {
        host.delete(object.kind, &object.name).await?;
    }
    for secret in [names::admin_secret(name), names::certificates_secret(name), names::KUBECONFIG_SECRET.to_owned()] {
        host.delete_secret(&secret).await?;
    }
    let volumes = match reclaim {
        Reclaim::Retain => Volumes::Kept(host.volumes().await?),
        Reclaim::Delete => {
            host.delete_volumes().await?;
            Volumes::Deleted
        }
    };
    let left = host.everything().await?;
    let first = left.first().map(|l| format!("{} {} in namespace {namespace}", l.kind.kind, l.name));
    Ok(match first {
        Some(first) if patient => Step::Left(first),
        left => Step::Done(Removed { volumes, left }),
    })
}

/// What is left of the adoption of a virtual cluster that stays.
async fn release(host: &Host, (name, namespace): (&str, &str), waited: SignedDuration) -> kube::Result<Step> {
    let inside = timed(release_inside(host, (name, namespace))).await;
    if let Err(error) = inside {
        if waited < INSIDE_PATIENCE {
            return Ok(Step::Left(format!("the team's account inside: {error}")));
        }
        tracing::warn!(tenant = name, %error, "the team's account inside an adopted virtual cluster was not deleted");
    }
    host.delete_secret(names::KUBECONFIG_SECRET).await?;
    Ok(Step::Done(Volumes::InUse.into()))
}

/// Removes what this program has written inside, as far as the virtual cluster still serves.
async fn release_inside(host: &Host, (tenant, namespace): (&str, &str)) -> Result<(), AccessError> {
    let secret = names::admin_secret(tenant);
    let read = host.secrets().get_opt(&secret).await;
    let read = read.map_err(|error| AccessError::Read { secret, source: Box::new(error) })?;
    let Some(admin) = read.as_ref().and_then(Admin::of) else { return Ok(()) };
    let client = connect::client(&admin, &format!("{tenant}.{namespace}")).await?;
    account::remove(&client).await?;
    catalog::remove(&client).await?;
    nodes::show(&client, &nodes::list(&client).await?, &Amounts::new(), &Requests::default()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{GpuTenantSpec, TenantNamespace};
    use serde_json::json;

    use super::*;

    fn tenant(cluster: &serde_json::Value, adopt: bool) -> GpuTenant {
        let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt }];
        let virtual_cluster = serde_json::from_value(cluster.clone()).unwrap();
        GpuTenant::new("team-a", GpuTenantSpec { namespaces, virtual_cluster, ..GpuTenantSpec::default() })
    }

    #[test]
    fn volumes_are_kept_by_the_spec_or_by_what_was_last_read_of_it() {
        let with = |reclaim: &str| json!({"version": "0.36.1", "storage": {"reclaim": reclaim}});
        let recorded = |reclaim| VirtualClusterStatus { reclaim, ..VirtualClusterStatus::default() };
        let of = |cluster: &serde_json::Value, status| {
            reclaim(&tenant(cluster, false), VirtualClusterBackend::Helm, &recorded(status))
        };
        assert_eq!(of(&with("Retain"), None), Reclaim::Retain);
        assert_eq!(of(&with("Delete"), Some(Reclaim::Retain)), Reclaim::Delete);
        assert_eq!(of(&json!({"version": "0.36.1"}), Some(Reclaim::Retain)), Reclaim::Delete);
        assert_eq!(of(&json!(null), Some(Reclaim::Retain)), Reclaim::Retain);
        assert_eq!(of(&json!(null), None), Reclaim::Delete);
        let next = json!({"version": "0.36.1", "backend": "External"});
        assert_eq!(of(&next, Some(Reclaim::Delete)), Reclaim::Delete, "it is about the next virtual cluster");
    }

    #[test]
    fn removal_names_the_volumes_that_are_kept() {
        let kept = Volumes::Kept(vec!["data-team-a-0".into(), "data-team-a-1".into()]);
        let removed = note(&tenant(&json!(null), false), &Removed::from(kept.clone()));
        assert!(removed.ends_with("PersistentVolumeClaim data-team-a-0, data-team-a-1 in namespace ns-a"), "{removed}");
        let deleted = |adopt| {
            let mut tenant = tenant(&json!(null), adopt);
            tenant.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            note(&tenant, &kept.clone().into())
        };
        assert!(deleted(false).ends_with("until the operator deletes the namespace with the tenant"));
        assert!(deleted(true).ends_with("in namespace ns-a"));
        assert!(
            note(&tenant(&json!(null), false), &Removed::from(Volumes::Deleted.clone()))
                .ends_with("Secrets and volumes")
        );
        assert!(
            note(&tenant(&json!(null), false), &Removed::from(Volumes::Kept(Vec::new()).clone()))
                .contains("no volume to keep")
        );
        let late = Removed { left: Some("Service team-a in namespace ns-a".into()), ..Volumes::Deleted.into() };
        assert!(
            note(&tenant(&json!(null), false), &late).ends_with("delete it by hand: Service team-a in namespace ns-a")
        );
        let released = note(&tenant(&json!(null), false), &Removed::from(Volumes::InUse.clone()));
        assert!(released.contains("the vCluster in namespace ns-a runs on, without the team's account"), "{released}");
    }

    #[test]
    fn removal_with_a_begin_in_the_future_begins_now() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let (now, later) = (time("2026-01-01T00:00:00Z"), time("2026-01-01T00:13:00Z"));
        let since =
            |at: &str| VirtualClusterStatus { deleting_since: Some(Time(time(at))), ..VirtualClusterStatus::default() };
        let forged = since("2099-01-01T00:00:00Z");
        assert_eq!(began(&forged, now), now);
        let written = report(&forged, "3 pods", began(&forged, now), None, now);
        assert!(later.duration_since(began(&written, later)) > PATIENCE, "its time ends");
        assert_eq!(began(&since("2025-12-31T23:59:00Z"), now), time("2025-12-31T23:59:00Z"));
        assert_eq!(began(&VirtualClusterStatus::default(), now), now);
    }

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
