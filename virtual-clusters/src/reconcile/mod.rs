//! One virtual cluster: render, apply, connect, show the budget, report.

use std::time::{Duration, Instant};

use gputenancy_cluster::{error::sentence, events::EventType};
use gputenancy_crds::{
    GpuTenant, VIRTUAL_CLUSTER_FINALIZER, VirtualCluster, VirtualClusterBackend, VirtualClusterStatus,
    backoff::Backoff,
    reasons::{self, Reason},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::{
    access,
    backend::{self, external},
    context::{Context, Input, Memory},
    decide::{
        self, ControlPlane,
        conditions::{self, Facts, Progress},
        report::Report,
        suspicious, upgrade,
    },
    host::{Host, Live, Policy},
    inside::nodes::{self, Requests},
    names,
    render::{
        RenderError,
        objects::{self, Replicas},
        values,
    },
    teardown::{self, Outcome},
    tenant::{apply_status, set_finalizer},
};

/// Interval of the passes that show the budget inside, and of all passes while something is not ready.
const INTERVAL: Duration = Duration::from_secs(4);
/// Interval of the passes that compare all objects, while all is ready; and of all passes while the virtual cluster is paused.
const FULL_INTERVAL: Duration = Duration::from_secs(30);
/// Intervals after failures inside: a server that does not answer takes most of a minute of a pass, which other tenants wait for.
const RETRY: Backoff = Backoff::new(INTERVAL, Duration::from_mins(2));
/// Time after which a stopped control plane has no pod: its grace period is 15 seconds. Pods of others may have its labels.
const STOPPED: SignedDuration = SignedDuration::from_mins(2);
/// Interval after a refused spec or write.
const REFUSED_INTERVAL: Duration = Duration::from_secs(15);
/// Shortest time between two events about one tenant: a team decides how often its API server answers.
const EVENT_INTERVAL: Duration = Duration::from_mins(1);

/// One pass; returns the time until the next.
pub async fn reconcile(tenant: &GpuTenant, context: &Context) -> kube::Result<Option<Duration>> {
    let finalized = tenant.finalizers().iter().any(|f| f == VIRTUAL_CLUSTER_FINALIZER);
    let deleted = tenant.metadata.deletion_timestamp.is_some();
    let name = tenant.name_any();
    let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    let installed = backend::installed(status).filter(|_| finalized);
    // the field was removed and written again with another backend, before the virtual cluster of the former one was deleted
    let same = |cluster: &VirtualCluster| installed.is_none_or(|backend| backend == cluster.backend);
    match &tenant.spec.virtual_cluster {
        Some(_) if deleted && !finalized => {
            context.forget(&name);
            Ok(None)
        }
        Some(cluster) if (!deleted || tenant.spec.deletion_protection) && same(cluster) => {
            if !finalized {
                set_finalizer(&context.client, tenant, true).await?;
            }
            let input = Input::of(tenant);
            let memory = context.memory().get(&name).cloned();
            // a tenant that is remembered has it, and the watch has not delivered it yet
            if installed.is_none() && memory.is_none() {
                // before anything is written: after a restart it decides how that is deleted
                let begun = VirtualClusterStatus {
                    backend: Some(cluster.backend),
                    reclaim: Some(cluster.reclaim()),
                    ..status.cloned().unwrap_or_default()
                };
                apply_status(&context.client, &name, Some(&begun)).await?;
            }
            let memory = memory.unwrap_or_else(|| Memory {
                upgrade: status.and_then(|status| status.upgrade.clone()),
                ..Memory::default()
            });
            if let Some((_, at)) = memory.last.as_ref().filter(|(last, at)| *last == input && at.elapsed() < INTERVAL) {
                return Ok(Some(INTERVAL.saturating_sub(at.elapsed())));
            }
            measured(context, Box::pin(pass(tenant, cluster, context, (memory, input)))).await.map(Some)
        }
        _ if !finalized => {
            context.forget(&tenant.name_any());
            Ok(None)
        }
        _ => measured(context, Box::pin(removal(tenant, context))).await,
    }
}

/// Counts the work and its time. Its result also says whether something has failed that is tried again without an error.
async fn measured<T>(context: &Context, work: impl Future<Output = kube::Result<(T, bool)>>) -> kube::Result<T> {
    let begin = Instant::now();
    let result = work.await;
    let failed = !matches!(&result, Ok((_, false)));
    context.metrics.reconciled(begin.elapsed(), failed);
    result.map(|(value, _)| value)
}

/// One step of the removal; returns the time until the next.
async fn removal(tenant: &GpuTenant, context: &Context) -> kube::Result<(Option<Duration>, bool)> {
    let name = tenant.name_any();
    context.memory().remove(&name);
    let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    // nothing was written yet; or the status is gone after a removal, and with it which volumes are kept and that a virtual cluster was adopted
    if backend::installed(status).is_none() {
        set_finalizer(&context.client, tenant, false).await?;
        context.metrics.forget(&name);
        return Ok((None, false));
    }
    let removed = match teardown::run(tenant, context).await? {
        Outcome::Again(after) => return Ok((Some(after), false)),
        Outcome::Done(removed) => removed,
    };
    // before the finalizer: what names the volumes that are kept must not be lost by a restart
    let event_type = if removed.left.is_some() { EventType::Warning } else { EventType::Normal };
    context.publish(tenant, event_type, reasons::VIRTUAL_CLUSTER_REMOVED, teardown::note(tenant, &removed)).await;
    // without a status the removal is over, also where the next write is tried again; and the version that this write has made: with the
    // former one the next write would be a conflict
    let tenant = apply_status(&context.client, &name, None).await?;
    set_finalizer(&context.client, &tenant, false).await?;
    context.metrics.forget(&name);
    Ok((None, false))
}

/// Brings a virtual cluster closer to its spec, and reports; returns the time until the next pass, and whether this cluster's API server
/// refused something or did not answer.
async fn pass(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    (mut memory, input): (Memory, Input),
) -> kube::Result<(Duration, bool)> {
    let (name, now) = (tenant.name_any(), Timestamp::now());
    let old = tenant.status.as_ref().and_then(|s| s.virtual_cluster.clone()).unwrap_or_default();
    let old = VirtualClusterStatus { backend: Some(cluster.backend), ..old };
    let recent = memory
        .full
        .clone()
        .filter(|(generation, at, _)| *generation == tenant.metadata.generation && at.elapsed() < FULL_INTERVAL);
    let was_ready = conditions::ready(&old).is_some_and(|(_, _, ready)| ready);
    let progress = match (recent, memory.inside.clone()) {
        (Some((_, _, progress)), Some((_, client))) if was_ready => {
            let shown = Box::pin(inside::show(tenant, &client, context, &mut memory, false)).await;
            Progress { capacity: Some(shown.capacity), catalog: shown.catalog.or(progress.catalog), ..progress }
        }
        _ => {
            let progress = Box::pin(full(tenant, cluster, context, &mut memory)).await;
            memory.full = Some((tenant.metadata.generation, Instant::now(), progress.clone()));
            progress
        }
    };
    memory.last = Some((input, Instant::now()));
    let (namespace, server) = (objects::namespace_of(tenant), access::server(tenant, cluster));
    let facts = Facts {
        generation: tenant.metadata.generation,
        namespace: &namespace,
        server: &server,
        reclaim: cluster.reclaim(),
        upgrade: memory.upgrade.as_ref(),
        now,
    };
    let status = conditions::status(&progress, &old, &facts);
    context.metrics.report(&name, &status, progress.kubeconfig.as_ref().and_then(|k| k.as_ref().ok()));
    let upgraded_in_vain = upgrade::failed(memory.upgrade.as_ref()).is_some();
    memory.failures = if failed_inside(&progress) { memory.failures.saturating_add(1) } else { 0 };
    let (failures, announced) = (memory.failures, memory.announced);
    context.memory().insert(name.clone(), memory);
    if status != old {
        apply_status(&context.client, &name, Some(&status)).await?;
    }
    let before = announced.map(|(_, reason)| reason).or_else(|| conditions::ready(&old).map(|(reason, ..)| reason));
    // later, and not never: a reason that stays is published when the interval has passed
    let due = announced.is_none_or(|(at, _)| at.elapsed() > EVENT_INTERVAL);
    if let Some((event_type, reason, note)) = event(before, &status).filter(|_| due) {
        context.publish(tenant, event_type, reason, note).await;
        if let Some(memory) = context.memory().get_mut(&name) {
            memory.announced = Some((Instant::now(), reason));
        }
    }
    let failed = progress.failed.is_some();
    let after = match (&progress.rendered, &progress.control_plane) {
        (_, Some(ControlPlane::Paused)) if !failed => FULL_INTERVAL,
        (Some(Err(_)), _) => REFUSED_INTERVAL,
        _ => {
            // the interval without a failure is the first one
            let interval = RETRY.after(failures.saturating_add(1));
            if upgraded_in_vain { interval.max(REFUSED_INTERVAL) } else { interval }
        }
    };
    Ok((after, failed))
}

/// Something inside did not answer, or refused.
fn failed_inside(progress: &Progress) -> bool {
    let Progress { kubeconfig, capacity, .. } = progress;
    kubeconfig.as_ref().is_some_and(Result::is_err) || capacity.as_ref().is_some_and(Result::is_err)
}

/// The event of a reason of `Ready` that is another one than `before`.
fn event(before: Option<Reason>, new: &VirtualClusterStatus) -> Option<(EventType, Reason, String)> {
    let (reason, note, ready) = conditions::ready(new).filter(|(reason, ..)| Some(*reason) != before)?;
    let quiet = [reasons::APPLYING, reasons::CONTROL_PLANE_STARTING, reasons::VIRTUAL_CLUSTER_PAUSED];
    let event_type = if ready || quiet.contains(&reason) { EventType::Normal } else { EventType::Warning };
    Some((event_type, reason, format!("virtual cluster: {note}")))
}

/// A complete pass. What fails is in the progress, and is tried again. A refused spec stops no virtual cluster that runs, unless it suspends it.
async fn full(tenant: &GpuTenant, cluster: &VirtualCluster, context: &Context, memory: &mut Memory) -> Progress {
    let mut progress = Progress::default();
    let (name, namespace) = (tenant.name_any(), objects::namespace_of(tenant));
    let host = Host::new(context.client.clone(), &namespace, &name);
    let live = match owned(&host, &name, &namespace, cluster.backend).await {
        Ok(live) => live,
        Err(Absent::Waits(why)) => {
            progress.waits = Some(why);
            return progress;
        }
        Err(Absent::Failed(error)) => {
            progress.failed = Some(error);
            return progress;
        }
    };
    let replicas = match cluster.backend {
        VirtualClusterBackend::External => external::replicas(&live),
        VirtualClusterBackend::Helm => decide::replicas(cluster.suspend, &live),
    };
    let policy = policy(tenant, context, &host).await;
    let installed = match &policy {
        Ok(None) => install(tenant, cluster, context, (&host, memory), (&live, replicas)).await,
        Ok(Some(_)) => Err(Failure::Policy),
        Err(error) => Err(Failure::Api(error.clone())),
    };
    progress.policy = policy.ok().map(|missing| missing.map_or(Ok(()), Err));
    let wrote = matches!(installed, Ok(Installed::Applied { wrote: true, .. }));
    match installed {
        Ok(Installed::Applied { version, .. }) => progress.rendered = Some(Ok(version)),
        Ok(Installed::Adopted(report)) => {
            progress.rendered = report.version.clone().map(Ok);
            progress.adopted = Some(report);
        }
        Err(Failure::Render(error)) => progress.rendered = Some(Err(error)),
        Err(Failure::Api(error)) => progress.failed = Some(error),
        Err(Failure::Policy) => {}
    }
    let own = cluster.backend == VirtualClusterBackend::Helm;
    if own && cluster.suspend && !matches!(progress.rendered, Some(Ok(_))) {
        // the objects of a later spec are applied as a whole, which is no repair
        memory.complete = None;
        if let Err(error) = stop(&host, &live).await {
            progress.failed.get_or_insert_with(|| refused(&namespace, &error));
        }
    }
    if !matches!(progress.rendered, Some(Ok(_))) && live.is_empty() {
        return progress;
    }
    let pods = match host.control_plane_pods().await {
        Ok(pods) => pods,
        Err(error) => {
            progress.failed = Some(format!("listing the pods of the control plane: {}", sentence(&error)));
            return progress;
        }
    };
    // the control plane before the writes of this pass may be ready, and is that of the former spec
    let live = match if wrote { host.workloads().await } else { Ok(live) } {
        Ok(live) => live,
        Err(error) => {
            progress.failed = Some(refused(&namespace, &error));
            return progress;
        }
    };
    let state = decide::control_plane(&name, replicas, &live, &pods);
    let (used, synced) = (nodes::used(tenant), host.synced_pods().await);
    if let Ok(synced) = &synced {
        memory.requests = Requests::of(synced, used);
        if let Some(note) = suspicious::note(&name, synced, &mut memory.suspicious) {
            context.publish(tenant, EventType::Warning, reasons::SUSPICIOUS_POD, note).await;
        }
    }
    let stopped = pods.is_empty() || paused_for(tenant).is_some_and(|time| time > STOPPED);
    let suspended = match &synced {
        // as vcluster pause does; while the syncer runs, it would delete the pods inside with them
        Ok(synced) if state == ControlPlane::Paused && cluster.suspend && stopped => host.delete_pods(synced).await,
        _ => Ok(()),
    };
    let behind = if upgrade::failed(memory.upgrade.as_ref()).is_some() && replicas == Replicas::Rendered {
        host.delete_pods(&decide::left_behind(&name, &live, &pods, Timestamp::now())).await
    } else {
        Ok(())
    };
    let (synced, failure) = synced.map_or_else(|error| (Vec::new(), Some(error)), |synced| (synced, None));
    if let Some(error) = failure.or(suspended.err()).or(behind.err()) {
        progress.failed.get_or_insert_with(|| refused(&namespace, &error));
    }
    let serves = state == ControlPlane::Ready;
    progress.control_plane = Some(state);
    if serves {
        inside::complete(tenant, cluster, context, (&host, memory, &mut progress), (&pods, &synced)).await;
    }
    progress
}

/// What limits and isolates the tenant and is missing in the namespace.
async fn policy(tenant: &GpuTenant, context: &Context, host: &Host) -> Result<Option<String>, String> {
    let wanted = Policy::of(tenant, context.standard.limit_range);
    host.missing_policy(&wanted).await.map_err(|error| refused(&objects::namespace_of(tenant), &error))
}

/// How long the control plane has been reported as stopped.
fn paused_for(tenant: &GpuTenant) -> Option<SignedDuration> {
    let status = tenant.status.as_ref()?.virtual_cluster.as_ref()?;
    let paused = status.conditions.iter().find(|c| c.reason == reasons::VIRTUAL_CLUSTER_PAUSED.as_str())?;
    Some(Timestamp::now().duration_since(paused.last_transition_time.0))
}

/// Stops the control plane where its objects could not be applied with zero replicas.
async fn stop(host: &Host, live: &[Live]) -> kube::Result<()> {
    for workload in decide::unstopped(live) {
        host.stop(workload.kind, &workload.name).await?;
    }
    Ok(())
}

/// What installed vCluster.
enum Installed {
    /// This program has applied the objects of this version; `wrote`: something was written in this pass.
    Applied { version: String, wrote: bool },
    /// How far the adoption is.
    Adopted(Report),
}

/// Installs vCluster by the backend.
async fn install(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    (host, memory): (&Host, &mut Memory),
    (live, replicas): (&[Live], Replicas),
) -> Result<Installed, Failure> {
    if cluster.backend == VirtualClusterBackend::External {
        let report = external::observe(host, tenant, cluster, live).await;
        return report.map(Installed::Adopted).map_err(Failure::Api);
    }
    let values = values::values(tenant, cluster, &context.values.0).map_err(Failure::Render)?;
    let version = rendered::version(tenant, cluster, context, (host, &mut *memory), (live, &values)).await?;
    let (key, objects) = rendered::objects(tenant, context, memory, (&version, &values)).await?;
    let applied = backend::helm::apply(tenant, context, (host, memory), (&key, &objects, live), replicas).await;
    let wrote = applied.map_err(|error| Failure::Api(refused(&objects::namespace_of(tenant), &error)))?;
    Ok(Installed::Applied { version, wrote })
}

/// The objects of the virtual cluster in the namespace that are observed, if the operator has bound this program's rights there for this
/// tenant: those that it has applied, or the workload that another program has.
async fn owned(host: &Host, name: &str, namespace: &str, backend: VirtualClusterBackend) -> Result<Vec<Live>, Absent> {
    let failed = |error: kube::Error| Absent::Failed(refused(namespace, &error));
    let waits = || {
        let binding = names::BINDING;
        Absent::Waits(format!(
            "waiting for RoleBinding {binding} in namespace {namespace}, which the operator writes; if it does not come, see PolicyReady of the tenant"
        ))
    };
    let tenant = match host.tenant().await {
        // without the binding there is no right to look for it
        Err(kube::Error::Api(status)) if status.is_forbidden() || status.is_not_found() => return Err(waits()),
        other => other.map_err(failed)?,
    };
    match tenant {
        Some(tenant) if tenant == name => match backend {
            VirtualClusterBackend::Helm => host.applied().await.map_err(failed),
            VirtualClusterBackend::External => host.workloads().await.map_err(failed),
        },
        Some(other) => Err(Absent::Failed(format!(
            "namespace {namespace} belongs to tenant {other}: choose another name in spec.namespaces"
        ))),
        None => Err(waits()),
    }
}

/// Why the namespace cannot be used.
enum Absent {
    /// The operator has not written everything yet.
    Waits(String),
    Failed(String),
}

fn refused(namespace: &str, error: &kube::Error) -> String {
    format!(
        "cannot read or write objects in namespace {namespace}: {}. If RoleBinding {} is missing there, see PolicyReady of the tenant; if a quota or a policy is named, change spec.resources or spec.virtualCluster.values",
        sentence(error),
        names::BINDING
    )
}

enum Failure {
    Render(RenderError),
    Api(String),
    /// What limits and isolates the tenant is missing.
    Policy,
}

mod inside;
mod rendered;
#[cfg(test)]
mod tests;
