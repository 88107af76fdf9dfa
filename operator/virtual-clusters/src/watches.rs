//! Watches of the namespaces with a virtual cluster: they start a reconcile of its tenant, and say whether what was read there is still true.
//!
//! One watch for each kind and namespace: this program has no rights on all namespaces. Only metadata is watched, and nothing is kept of it: a team
//! chooses number and size of the objects in its namespace.

use std::{
    future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt as _, channel::mpsc::UnboundedSender, stream};
use gputenancy_cluster::watch::{LONGEST_DELAY, Restarts, events};
use gputenancy_crds::{VirtualClusterBackend, names as labels, vcluster};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PartialObjectMeta},
    runtime::watcher::{Config, Event},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    names,
    render::objects::{KINDS, Kind},
};

/// Time after the failure of a watch in which it may not work: it starts again, with delays of at most ten seconds.
const FAILED: Duration = Duration::from_secs(30);

/// What is watched in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Objects of vCluster's chart.
    Objects,
    /// Pods of the control plane, and those that the syncer has made.
    Pods,
}

/// Which namespace is watched, and for which virtual cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Name of the tenant and of its virtual cluster.
    pub tenant: String,
    /// Its namespace.
    pub namespace: String,
    /// What installs it.
    pub backend: VirtualClusterBackend,
}

/// The watches of one namespace. They end when this is dropped.
pub struct Watches {
    scope: Scope,
    objects: Arc<State>,
    pods: Arc<State>,
    _stop: DropGuard,
}

/// What the watches of one [`Watched`] report.
#[derive(Default)]
struct State {
    /// All of them have listed their objects.
    listed: AtomicBool,
    /// There was a change since [`Watches::take`].
    changed: AtomicBool,
    /// When one of them last failed.
    failed: Mutex<Option<Instant>>,
}

impl Watches {
    /// Starts the watches. Each change sends the name of the tenant to `triggers`.
    pub fn start(client: &Client, scope: Scope, triggers: &UnboundedSender<String>) -> Self {
        let stop = CancellationToken::new();
        let (objects, pods) = (Arc::<State>::default(), Arc::<State>::default());
        for (state, streams) in [(&objects, objects_of(client, &scope)), (&pods, pods_of(client, &scope))] {
            let (state, tenant, triggers) = (state.clone(), scope.tenant.clone(), triggers.clone());
            let changed = move || drop(triggers.unbounded_send(tenant.clone()));
            tokio::spawn(stop.clone().run_until_cancelled_owned(follow(streams, state, changed)));
        }
        Self { scope, objects, pods, _stop: stop.drop_guard() }
    }

    /// They are of this namespace and virtual cluster.
    pub fn are_of(&self, scope: &Scope) -> bool {
        self.scope == *scope
    }

    /// What was read since the last call is still true: the watches work, and there was no change. The next call is about what is read from now on.
    pub fn take(&self, watched: Watched) -> bool {
        let State { listed, changed, failed } = self.state(watched);
        let changed = changed.swap(false, Ordering::Relaxed);
        let failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
        listed.load(Ordering::Relaxed) && !changed && failed.is_none_or(|at| at.elapsed() > FAILED)
    }

    /// What was read is not true any more, or was not read.
    pub fn mark(&self, watched: Watched) {
        self.state(watched).changed.store(true, Ordering::Relaxed);
    }

    fn state(&self, watched: Watched) -> &State {
        match watched {
            Watched::Objects => &self.objects,
            Watched::Pods => &self.pods,
        }
    }
}

/// What of an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    /// An object came, changed or went.
    Change,
    /// A list has ended.
    Listed,
    /// The watch has failed, and starts again.
    Failed,
}

type Reports = Vec<stream::BoxStream<'static, Report>>;

/// Records what the watches report, without end.
async fn follow(watches: Reports, state: Arc<State>, changed: impl Fn()) {
    let mut listed = vec![false; watches.len()];
    let watches = watches.into_iter().enumerate().map(|(at, reports)| reports.map(move |report| (at, report)).boxed());
    let mut all = stream::select_all(watches);
    while let Some((at, report)) = all.next().await {
        if report == Report::Failed {
            *state.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            continue;
        }
        if let Some(listed) = listed.get_mut(at) {
            *listed = true;
        }
        // a new list may lack what was known
        state.changed.store(true, Ordering::Relaxed);
        state.listed.store(listed.iter().all(|listed| *listed), Ordering::Relaxed);
        changed();
    }
}

/// A watch of the metadata of one kind.
fn reports(
    resource: &'static str,
    api: Api<PartialObjectMeta<DynamicObject>>,
    selector: &str,
) -> stream::BoxStream<'static, Report> {
    let mut restarts = Restarts::new(resource).meanwhile("changes in one namespace are found by the next resync");
    let events = events(api, Config::default().labels(selector), LONGEST_DELAY);
    let reports = events.filter_map(move |event| {
        let report = match restarts.note(event) {
            None => Some(Report::Failed),
            Some(Event::Apply(_) | Event::Delete(_)) => Some(Report::Change),
            Some(Event::InitDone) => Some(Report::Listed),
            Some(Event::Init | Event::InitApply(_)) => None,
        };
        future::ready(report)
    });
    reports.boxed()
}

fn objects_of(client: &Client, scope: &Scope) -> Reports {
    let Scope { tenant, namespace, backend } = scope;
    let own = format!("{}={},{}={tenant}", labels::MANAGED_BY_LABEL, names::MANAGED_BY, labels::TENANT_LABEL);
    let (kinds, selector): (Vec<Kind>, _) = match backend {
        VirtualClusterBackend::Helm => (KINDS.to_vec(), own),
        // of an adopted one the workload is read, and its Service each time
        VirtualClusterBackend::External => {
            (KINDS.into_iter().filter(|kind| kind.is_workload()).collect(), names::control_plane(tenant))
        }
    };
    let watch =
        |kind: Kind| reports(kind.plural, Api::namespaced_with(client.clone(), namespace, &kind.resource()), &selector);
    kinds.into_iter().map(watch).collect()
}

fn pods_of(client: &Client, Scope { tenant, namespace, .. }: &Scope) -> Reports {
    let synced = format!("{}={tenant}", vcluster::MANAGED_BY);
    let watch = |selector: &str| {
        let api = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Pod>(&()));
        reports("pods", api, selector)
    };
    vec![watch(&names::control_plane(tenant)), watch(&synced)]
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_was_read_is_true_until_a_watch_reports_a_change_or_fails() {
        let (senders, streams): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::unbounded()).unzip();
        let watches = Watches {
            scope: Scope { tenant: "t".into(), namespace: "n".into(), backend: VirtualClusterBackend::Helm },
            objects: Arc::default(),
            pods: Arc::default(),
            _stop: CancellationToken::new().drop_guard(),
        };
        let (triggers, mut triggered) = mpsc::unbounded();
        let streams = streams.into_iter().map(futures::StreamExt::boxed).collect();
        tokio::spawn(follow(streams, watches.objects.clone(), move || drop(triggers.unbounded_send(()))));
        let report = async |at: usize, report: Report| {
            senders[at].unbounded_send(report).unwrap();
            tokio::task::yield_now().await;
        };
        let holds = || watches.take(Watched::Objects);
        report(0, Report::Listed).await;
        assert!(!holds() && !holds(), "the other one has not listed yet");
        report(1, Report::Listed).await;
        assert!(!holds() && holds(), "what was read after the list");
        report(1, Report::Change).await;
        assert!(!holds() && holds(), "what was read after the change");
        watches.mark(Watched::Objects);
        assert!(!holds() && holds());
        report(0, Report::Failed).await;
        assert!(!holds() && !holds(), "changes may be missed");
        let mut count = 0;
        while triggered.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, 3, "a failure starts no reconcile");
    }
}
