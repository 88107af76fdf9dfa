//! One virtual cluster: observe, decide, write, report.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gputenancy_cluster::events::EventType;
use gputenancy_crds::{
    GpuTenant, VIRTUAL_CLUSTER_FINALIZER, VirtualCluster, VirtualClusterBackend, VirtualClusterStatus,
    backoff::Backoff, reasons,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use self::{
    observe::Namespace,
    rendered::{Rendered, RenderedError},
    step::{Observation, step},
};
use crate::{
    access,
    context::Context,
    decide::{
        self, ControlPlane, adoption,
        conditions::{self, Facts, InsideOutcome, Outcome, PolicyState},
        upgrade,
    },
    host::Host,
    memory::Memory,
    render::objects as render_objects,
    teardown::{self, Removal},
    tenant::{apply_status, set_finalizer},
};

/// Interval while something is awaited that no watch reports: an object that was written, or what the syncer makes inside.
const AWAITING: Duration = Duration::from_secs(4);
/// Interval while all is ready: the API server inside is the team's, so it is read and not watched.
const INSIDE_INTERVAL: Duration = Duration::from_secs(30);
/// Intervals after failures inside: a server that does not answer takes most of a minute of a reconcile, which other tenants wait for.
const RETRY: Backoff = Backoff::new(AWAITING, Duration::from_mins(2));
/// Interval after a refused spec or a failed rendering.
const REFUSED_INTERVAL: Duration = Duration::from_secs(15);
/// Shortest time between two reconciles of one tenant: a team decides how often objects of its namespace change.
const SHORTEST: Duration = Duration::from_secs(2);
/// Shortest time between two events about one tenant: a team decides how often its API server answers.
const EVENT_INTERVAL: Duration = Duration::from_mins(1);

/// One reconcile; returns the time after which another is needed without a change.
pub async fn reconcile(tenant: &GpuTenant, context: &Context) -> kube::Result<Option<Duration>> {
    let finalized = tenant.finalizers().iter().any(|f| f == VIRTUAL_CLUSTER_FINALIZER);
    let deleted = tenant.metadata.deletion_timestamp.is_some();
    let name = tenant.name_any();
    let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    let installed = decide::installed(status).filter(|_| finalized);
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
            let memory = context.memory().get(&name).filter(|memory| memory.uid == tenant.metadata.uid).cloned();
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
                uid: tenant.metadata.uid.clone(),
                upgrade: status.and_then(|status| status.upgrade.clone()),
                ..Memory::default()
            });
            // without pods that are remembered each reconcile lists them
            let pause = if memory.rests && memory.pods.is_some() { SHORTEST } else { AWAITING };
            if let Some(last) = memory.last.filter(|last| last.elapsed() < pause) {
                return Ok(Some(pause.saturating_sub(last.elapsed())));
            }
            measured(context, Box::pin(converge(tenant, cluster, context, memory))).await.map(Some)
        }
        _ if !finalized => {
            context.forget(&name);
            Ok(None)
        }
        _ => measured(context, Box::pin(remove(tenant, context))).await,
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
async fn remove(tenant: &GpuTenant, context: &Context) -> kube::Result<(Option<Duration>, bool)> {
    let name = tenant.name_any();
    // the steps have their own intervals: the watches report each deletion
    context.unwatch(&name);
    context.memory().remove(&name);
    let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    // nothing was written yet; or the status is gone after a removal, and with it which volumes are kept and that a virtual cluster was adopted
    if decide::installed(status).is_none() {
        set_finalizer(&context.client, tenant, false).await?;
        context.metrics.forget(&name);
        return Ok((None, false));
    }
    let removed = match teardown::run(tenant, context).await? {
        Removal::Requeue(after) => return Ok((Some(after), false)),
        Removal::Done(removed) => removed,
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

/// Brings a virtual cluster closer to its spec, and reports; returns the requeue, and whether this cluster's API server refused something or did
/// not answer.
async fn converge(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    mut memory: Memory,
) -> kube::Result<(Duration, bool)> {
    let (outcome, awaits) = Box::pin(attempt(tenant, cluster, context, &mut memory)).await;
    memory.last = Some(Instant::now());
    report(tenant, cluster, context, (&outcome, awaits), memory).await
}

/// Observes, decides and writes. What fails is in the outcome, and is tried again. Returns also whether something is awaited that no watch reports.
async fn attempt(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    memory: &mut Memory,
) -> (Outcome, bool) {
    let (name, now, instant) = (tenant.name_any(), Timestamp::now(), Instant::now());
    let host = Host::new(context.client.clone(), &render_objects::namespace_of(tenant), &name);
    // observe
    let namespace = match observe::namespace(tenant, cluster, (context, &host), memory).await {
        Ok(namespace) => namespace,
        Err(error) => return (Outcome { failed: Some(error), ..Outcome::default() }, true),
    };
    let renders = cluster.backend == VirtualClusterBackend::Helm && namespace.missing_policy.is_none();
    let rendered = if renders {
        Some(rendered::rendered(tenant, cluster, (context, &namespace, memory), now).await)
    } else {
        None
    };
    let state = decide::control_plane(
        &name,
        step::replicas(cluster, &namespace),
        &namespace.live,
        &namespace.pods.control_plane,
    );
    let serves = state == ControlPlane::Ready;
    if !serves {
        (memory.failures, memory.inside) = (0, None);
    }
    let inside = if serves && inside_is_due(memory, instant) {
        Some(Box::pin(observe::inside(tenant, cluster, (context, &host, &namespace), memory)).await)
    } else {
        None
    };
    // decide
    let (rendered_ref, inside_ref) = (rendered.as_ref(), inside.as_ref());
    let observation = Observation {
        tenant,
        cluster,
        namespace: &namespace,
        rendered: rendered_ref,
        inside: inside_ref,
        now,
        instant,
    };
    let step = step(&observation, memory);
    if let Some(Ok(Rendered { key, objects, .. })) = &rendered {
        memory.rendered = Some((key.clone(), objects.clone()));
    }
    // write
    let written = execute::host(tenant, context, &host, (&step, &namespace.live), memory).await;
    memory.rests = !written.any;
    let synced = namespace.pods.synced.as_deref().unwrap_or_default();
    // what was read shortly before is older than this change
    let mut awaits = written.any || namespace.outdated || !memory.orphans.is_empty() || (serves && inside.is_none());
    // a workload that was just written starts again
    let live = decide::after_writes(namespace.live.to_vec(), &written.generations);
    let after = decide::control_plane(&name, step.replicas, &live, &namespace.pods.control_plane);
    let found = match (inside, &step.inside) {
        (Some(Ok(_)), _) if after != ControlPlane::Ready => None,
        (Some(Ok(inside)), Some(order)) => {
            awaits |= inside.nodes.as_ref().is_ok_and(|nodes| order.awaits(nodes));
            let context = (context, &host);
            let executed = execute::inside(tenant, cluster, context, (inside, order, synced), (memory, now));
            Some(Box::pin(executed).await)
        }
        (Some(Err(error)), _) => Some(InsideOutcome::unreachable(error)),
        _ => None,
    };
    if let Some(found) = found {
        memory.failures = if found.failed() { memory.failures.saturating_add(1) } else { 0 };
        // from its end: a slow server has the same pause as others
        memory.inside = Some((Instant::now(), Arc::new(found)));
    }
    (outcome(tenant, cluster, (namespace, rendered), (written, after), memory), awaits)
}

/// The API server inside was not read shortly before.
fn inside_is_due(memory: &Memory, now: Instant) -> bool {
    memory.inside.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= retry(memory))
}

/// The interval while something is awaited, and longer after failures inside.
fn retry(memory: &Memory) -> Duration {
    // the interval without a failure is the first one
    RETRY.after(memory.failures.saturating_add(1))
}

/// What the writes of a step have led to. Pure.
fn outcome(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    (namespace, rendered): (Namespace, Option<Result<Rendered, RenderedError>>),
    (written, after): (execute::Written, ControlPlane),
    memory: &Memory,
) -> Outcome {
    let name = tenant.name_any();
    let Namespace { missing_policy, live, service, too_many_pods, .. } = namespace;
    let policy = missing_policy.clone().map_or(PolicyState::Present, PolicyState::Missing);
    let adopts = cluster.backend == VirtualClusterBackend::External && missing_policy.is_none();
    let adopted = adopts.then(|| {
        adoption::adoption(&name, &render_objects::namespace_of(tenant), &cluster.version, &live, service.as_ref())
    });
    let (rendered, unrendered) = match rendered {
        Some(Ok(rendered)) => (written.objects.is_none().then_some(Ok(rendered.version)), None),
        Some(Err(RenderedError::Render(error))) => (Some(Err(error)), None),
        Some(Err(RenderedError::Host(error))) => (None, Some(error)),
        None => (adopted.as_ref().and_then(|a| a.version.clone()).map(Ok), None),
    };
    // without objects there is nothing to observe
    let observed = matches!(rendered, Some(Ok(_))) || !live.is_empty();
    let state = observed.then_some(after);
    let serves = state == Some(ControlPlane::Ready);
    Outcome {
        policy: Some(policy),
        rendered,
        adopted,
        failed: unrendered.or(written.objects).or(too_many_pods).or(written.pods),
        control_plane: state,
        inside: memory.inside.as_ref().filter(|_| serves).map(|(_, inside)| inside.clone()),
    }
}

/// Writes the status, and an event when the reason of `Ready` has changed; returns the requeue and whether this cluster's API server failed.
async fn report(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    (outcome, awaits): (&Outcome, bool),
    mut memory: Memory,
) -> kube::Result<(Duration, bool)> {
    let (name, namespace) = (tenant.name_any(), render_objects::namespace_of(tenant));
    let old = tenant.status.as_ref().and_then(|s| s.virtual_cluster.clone()).unwrap_or_default();
    let old = VirtualClusterStatus { backend: Some(cluster.backend), ..old };
    let server = access::server(tenant, cluster);
    let facts = Facts {
        generation: tenant.metadata.generation,
        namespace: &namespace,
        server: &server,
        reclaim: cluster.reclaim(),
        upgrade: memory.upgrade.as_ref(),
        now: Timestamp::now(),
    };
    let status = conditions::status(outcome, &old, &facts);
    context.metrics.report(&name, &status, outcome.kubeconfig());
    memory.rests &= conditions::ready(&status).is_some_and(|(_, _, ready)| ready);
    let requeue = requeue(outcome, &status, awaits, &memory);
    let announced = memory.announced;
    context.memory().insert(name.clone(), memory);
    if status != old {
        apply_status(&context.client, &name, Some(&status)).await?;
    }
    let before = announced.map(|(_, reason)| reason).or_else(|| conditions::ready(&old).map(|(reason, ..)| reason));
    // later, and not never: a reason that stays is published when the interval has passed
    let due = announced.is_none_or(|(at, _)| at.elapsed() > EVENT_INTERVAL);
    if let Some((event_type, reason, note)) = step::event(before, &status).filter(|_| due) {
        context.publish(tenant, event_type, reason, note).await;
        if let Some(memory) = context.memory().get_mut(&name) {
            memory.announced = Some((Instant::now(), reason));
        }
    }
    Ok((requeue, outcome.failed.is_some()))
}

/// The time after which another reconcile is needed without a change.
fn requeue(outcome: &Outcome, status: &VirtualClusterStatus, awaits: bool, memory: &Memory) -> Duration {
    let ready = conditions::ready(status).is_some_and(|(_, _, ready)| ready);
    let upgrade_failed = upgrade::failed(memory.upgrade.as_ref()).is_some();
    // what was not read says nothing about the API server inside
    if outcome.policy.is_none() {
        return AWAITING;
    }
    let retry = || {
        let since = memory.inside.as_ref().map(|(at, _)| at.elapsed()).unwrap_or_default();
        retry(memory).saturating_sub(since).max(AWAITING)
    };
    match (&outcome.rendered, &outcome.control_plane) {
        (_, Some(ControlPlane::Paused)) if outcome.failed.is_none() && !awaits => INSIDE_INTERVAL,
        (Some(Err(_)), _) => REFUSED_INTERVAL,
        _ if ready && !awaits => INSIDE_INTERVAL,
        _ if upgrade_failed => retry().max(REFUSED_INTERVAL),
        _ => retry(),
    }
}

mod execute;
mod observe;
mod rendered;
mod step;
#[cfg(test)]
mod tests;
