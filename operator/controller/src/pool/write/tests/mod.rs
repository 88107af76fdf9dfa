//! The queue against a mocked API server under paused time: conflicts, refusals, errors, requests that hang, and answers that are lost.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gputenancy_cluster::{
    events::Publisher,
    testing::{Answer, MockServer, Request},
};
use gputenancy_crds::GpuPoolStatus;
use gputenancy_decisions::{
    change::{Eviction, EvictionNotice},
    fleet::Fleet,
};
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{FleetWriter, Namespaces, ObjectWrite, WriteQueue, object::Target, state::NodeState};
use crate::{apply::Writer, metrics::Metrics};
use gputenancy_crds::ids::{NodeName, PodName};
use gputenancy_decisions::pool::{
    decide::{labels::Labels, node_specs::GpuWork},
    decision::FleetDecision,
};

mod plugin;

/// How the API server answers requests whose path contains a text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// With this status code.
    Code(u16),
    /// With 500, as the eviction of a pod with two budgets.
    TwoBudgets,
    /// With 403 by the chart's policy on evictions.
    Policy,
    /// Never.
    Hang,
    /// It does what was asked, and the answer is lost.
    Lost,
}

impl From<Rule> for Answer {
    fn from(rule: Rule) -> Self {
        match rule {
            Rule::Code(code) => Self::failure(code, if code == 409 { "Conflict" } else { "" }, "refused"),
            Rule::Policy => {
                let message =
                    "ValidatingAdmissionPolicy 'gputenancy-operator-evictions' denied request: no pods of kube-…";
                Self::failure(403, "Forbidden", message)
            }
            Rule::TwoBudgets => {
                let message =
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                Self::failure(500, "InternalError", message)
            }
            Rule::Hang => Self::Never,
            Rule::Lost => Self::Lost,
        }
    }
}

/// A mocked API server: it accepts everything, except what a rule says.
struct MockApi {
    rules: Arc<Mutex<Vec<(&'static str, Rule)>>>,
    server: MockServer,
}

impl MockApi {
    fn new() -> Self {
        let rules = Arc::<Mutex<Vec<(&'static str, Rule)>>>::default();
        let known = rules.clone();
        let server = MockServer::new(move |request: &Request| {
            let rule = known.lock().unwrap().iter().find(|(text, _)| request.path.contains(text)).map(|(_, r)| *r);
            rule.map_or_else(|| echo(request.body.clone(), &request.path).into(), Answer::from)
        });
        Self { rules, server }
    }

    fn rule(&self, path: &'static str, rule: Option<Rule>) {
        let mut rules = self.rules.lock().unwrap();
        rules.retain(|(p, _)| *p != path);
        rules.extend(rule.map(|rule| (path, rule)));
    }

    /// Number of requests with this method whose path contains the text.
    fn count(&self, method: &str, path: &str) -> usize {
        self.server.count(|request| request.method == method && request.path.contains(path))
    }
}

/// The object as the API server would have it after an apply.
fn echo(mut body: Value, path: &str) -> Value {
    let name = path.rsplit('/').find(|part| !["status", "eviction"].contains(part)).unwrap_or_default();
    if path.ends_with("/eviction") {
        return json!({"kind": "Status", "status": "Success"});
    }
    body["metadata"]["name"] = json!(name);
    body["metadata"]["generation"] = json!(2);
    if let Some(annotations) = body.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|_, value| !value.is_null());
    }
    if path.contains("/gpunodes/") && body["spec"].is_null() {
        body["spec"] = json!({});
    }
    if path.contains("/gpupools/") && body["spec"].is_null() {
        body["spec"] = json!({"nodeSelector": {}, "profiles": []});
    }
    body
}

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// A queue, its API server, and a fleet of nodes `n-00`, `n-01`, ... with a pod `job` on each and one pool.
struct World {
    api: MockApi,
    writer: Arc<FleetWriter>,
    queue: WriteQueue,
    nodes: BTreeMap<Target, NodeState>,
    fleet: Arc<Fleet>,
    begun: Instant,
}

impl World {
    fn new(nodes: usize) -> Self {
        let api = MockApi::new();
        let client = api.server.client();
        let metrics = Arc::new(Metrics::default());
        let writer = FleetWriter {
            writer: Writer::new(client.clone(), metrics.clone()),
            publisher: Publisher::new(client, "gputenancy.io/operator", "test"),
            metrics,
            namespaces: Namespaces {
                home: "gputenancy-system".into(),
                layouts: "gputenancy-system".into(),
                plugin_configs: "nvidia".into(),
            },
            kueue: None,
        };
        let mut fleet = Fleet::default();
        for name in (0..nodes).map(|n| format!("n-{n:02}")) {
            let metadata = json!({"name": name, "uid": name, "resourceVersion": "7", "generation": 1});
            fleet.nodes.insert(name.clone(), Arc::new(read(json!({"metadata": metadata, "spec": {}, "status": {}}))));
            fleet.gpu_nodes.insert(name.clone(), Arc::new(read(json!({"metadata": metadata, "spec": {}}))));
            let pod = json!({"metadata": {"name": "job", "namespace": name, "uid": name}, "spec": {"nodeName": name}});
            fleet.pods.insert(pod_on(&name), Arc::new(read(pod)));
        }
        let finalizers = ["gputenancy.io/finalizer"];
        let metadata = json!({"name": "pool", "uid": "pool", "finalizers": finalizers});
        fleet.pools.push(read(json!({"metadata": metadata, "spec": {"nodeSelector": {}, "profiles": []}})));
        let (queue, writer) = (WriteQueue::default(), Arc::new(writer));
        Self { api, writer, queue, nodes: BTreeMap::new(), fleet: Arc::new(fleet), begun: Instant::now() }
    }

    /// A decision that labels these nodes.
    fn labels(names: &[&str]) -> FleetDecision {
        let labels = Labels::from([("gputenancy.io/pool".to_owned(), "pool".to_owned())]);
        let labels = names.iter().map(|name| (NodeName::from(*name), labels.clone())).collect();
        FleetDecision { labels, ..FleetDecision::default() }
    }

    /// A decision that writes the spec of a node and evicts its pod.
    fn eviction(&self, name: &str) -> FleetDecision {
        let eviction = Eviction { pod: pod_on(name), uid: name.into(), reason: "its device is removed".into() };
        let spec = self.fleet.gpu_nodes[name].spec.clone();
        let work = GpuWork { spec: Some(spec), evictions: vec![eviction], ..GpuWork::default() };
        FleetDecision { nodes: [(name.into(), work)].into(), ..FleetDecision::default() }
    }

    /// A decision that notifies the pod of a node.
    fn notice(name: &str, deadline: i64) -> FleetDecision {
        let notice = EvictionNotice {
            pod: pod_on(name),
            uid: name.into(),
            deadline: Timestamp::from_second(deadline).unwrap(),
            reason: "its device is removed".into(),
            resource: None,
            elsewhere: String::new(),
        };
        let work = GpuWork { notices: vec![notice], ..GpuWork::default() };
        FleetDecision { nodes: [(name.into(), work)].into(), ..FleetDecision::default() }
    }

    fn decide(&mut self, mut decision: FleetDecision) {
        let evictions = decision.nodes.values().flat_map(|work| &work.evictions);
        let evicted = evictions.map(|eviction| eviction.pod.clone()).collect();
        let writes = ObjectWrite::of(&self.fleet, &mut decision);
        self.queue.replace(self.fleet.clone(), (writes, evicted));
        self.queue.start(&self.writer, &self.nodes);
    }

    /// Waits for the next write that ends: its object, its failure, and whether the fleet has to be decided again.
    async fn next(&mut self) -> (Target, Option<String>, bool) {
        let finished = self.queue.finished().await;
        let again = self.queue.note(&finished.target, &finished.outcome);
        self.nodes.insert(finished.target.clone(), finished.state);
        self.queue.start(&self.writer, &self.nodes);
        (finished.target, finished.outcome.failure, again)
    }

    fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }
}

fn pod_on(node: &str) -> PodName {
    PodName { namespace: node.into(), name: "job".into() }
}

fn node(name: &str) -> Target {
    Target::Node(name.into())
}

fn gpu_node(name: &str) -> Target {
    Target::GpuNode(name.into())
}

#[tokio::test(start_paused = true)]
async fn nodes_whose_requests_hang_delay_no_other_node_and_no_status() {
    let mut world = World::new(80);
    for name in ["/n-00", "/n-01", "/n-02", "/n-03"] {
        world.api.rule(name, Some(Rule::Hang));
    }
    let names: Vec<String> = world.fleet.nodes.keys().cloned().collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut decision = World::labels(&names);
    decision.pools.insert("pool".into(), GpuPoolStatus::default());
    world.decide(decision);
    for _ in 0..77 {
        let (target, failure, _) = world.next().await;
        assert_eq!((failure, world.seconds()), (None, 0), "{target}");
    }
    for _ in 0..4 {
        let (target, failure, again) = world.next().await;
        assert!(failure.unwrap().contains("took longer than 15 s") && !again, "{target}");
        assert_eq!(world.seconds(), 15, "{target}");
    }
    assert_eq!(world.queue.retry_at().map(|at| at - world.begun), Some(Duration::from_secs(17)));
}

#[tokio::test(start_paused = true)]
async fn failing_object_is_retried_with_growing_delay_and_told_once() {
    let mut world = World::new(2);
    world.api.rule("/nodes/n-00", Some(Rule::Code(503)));
    let mut delays = Vec::new();
    for _ in 0..7 {
        world.decide(World::labels(&["n-00"]));
        let (_, failure, _) = world.next().await;
        assert!(failure.unwrap().starts_with("writing labels"));
        let retry = world.queue.retry_at().unwrap();
        delays.push(retry.duration_since(Instant::now()).as_secs());
        // decisions before that time write other nodes only
        world.decide(World::labels(&["n-00", "n-01"]));
        assert_eq!(world.next().await.0, node("n-01"));
        tokio::time::sleep_until(retry).await;
    }
    assert_eq!(delays, [2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(world.api.count("POST", "/events"), 1);
    world.api.rule("/nodes/n-00", None);
    world.decide(World::labels(&["n-00"]));
    assert_eq!(world.next().await, (node("n-00"), None, false));
    assert_eq!(world.queue.retry_at(), None);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_depends_on_a_spec_happens_before_it_is_written() {
    // after a failure the fleet is decided again as well: another node may take the place of this one
    for (answer, failed) in [
        (Rule::Code(409), false),
        (Rule::Code(429), true),
        (Rule::Code(500), true),
        (Rule::Hang, true),
        (Rule::Lost, true),
    ] {
        let mut world = World::new(1);
        world.api.rule("/gpunodes/n-00", Some(answer));
        world.decide(world.eviction("n-00"));
        let (_, failure, decide) = world.next().await;
        assert_eq!((failure.is_some(), decide), (failed, true), "{answer:?}: {failure:?}");
        assert_eq!(world.api.count("POST", "/eviction"), 0, "{answer:?}");
        world.api.rule("/gpunodes/n-00", None);
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.decide(world.eviction("n-00"));
        assert_eq!(world.next().await.1, None);
        assert_eq!(world.api.count("POST", "/eviction"), 1, "{answer:?}");
        // the cache has to show the new spec before the next decision
        assert!(world.nodes.values().all(NodeState::is_lagging));
    }
}

#[tokio::test(start_paused = true)]
async fn refused_eviction_is_remembered_and_others_are_failures() {
    for (answer, failed) in [
        (Rule::Code(429), false),
        (Rule::TwoBudgets, false),
        (Rule::Policy, false),
        (Rule::Code(403), true),
        (Rule::Code(500), true),
        (Rule::Hang, true),
    ] {
        let mut world = World::new(1);
        world.api.rule("/eviction", Some(answer));
        world.decide(world.eviction("n-00"));
        let (_, failure, again) = world.next().await;
        assert_eq!((failure.is_some(), again), (failed, true), "{answer:?}: {failure:?}");
        let refusals: usize = world.nodes.values().map(|n| n.refusals.len()).sum();
        assert_eq!(refusals, usize::from(!failed), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_is_remembered_although_its_budgets_cannot_be_read() {
    let mut world = World::new(1);
    world.api.rule("/eviction", Some(Rule::Code(429)));
    world.api.rule("/namespaces/n-00/pods", Some(Rule::Hang));
    world.decide(world.eviction("n-00"));
    assert_eq!(world.next().await, (gpu_node("n-00"), None, true));
    assert_eq!(world.seconds(), 2);
    assert_eq!(world.nodes.values().map(|n| n.refusals.len()).sum::<usize>(), 1);
}

#[tokio::test(start_paused = true)]
async fn lost_notice_is_written_once() {
    let mut world = World::new(1);
    // the pod's owner removes the annotation, and the notice is decided again
    for (deadline, written) in [(60, 1), (60, 1), (60, 1), (90, 2), (90, 2)] {
        world.decide(World::notice("n-00", deadline));
        assert_eq!(world.next().await.1, None);
        let counts = [("PATCH", "/pods/job"), ("POST", "/events")];
        assert_eq!(counts.map(|(method, path)| world.api.count(method, path)), [written; 2], "{deadline}");
    }
    // a request that fails is tried again
    world.api.rule("/pods/job", Some(Rule::Code(500)));
    world.decide(World::notice("n-00", 120));
    assert!(world.next().await.1.is_some());
    // with that of the failure
    let events = world.api.count("POST", "/events");
    world.api.rule("/pods/job", None);
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.decide(World::notice("n-00", 120));
    assert_eq!(world.next().await.1, None);
    assert_eq!(world.api.count("POST", "/events"), events + 1);
}

#[tokio::test(start_paused = true)]
async fn pods_whose_changes_hang_delay_no_notice_of_another_and_are_told_by_an_event() {
    let mut world = World::new(9);
    for slow in ["/namespaces/n-00/pods", "/namespaces/n-01/pods", "/namespaces/n-02/pods", "/namespaces/n-03/pods"] {
        world.api.rule(slow, Some(Rule::Hang));
    }
    world.api.rule("/namespaces/n-04/pods", Some(Rule::Code(504)));
    // all on one node, each on a GPU of its own
    let one = |name: &str| World::notice(name, 60).nodes.remove(&NodeName::from(name)).unwrap().notices;
    let notices = world.fleet.nodes.keys().flat_map(|name| one(name)).collect();
    let work = GpuWork { notices, ..GpuWork::default() };
    world.decide(FleetDecision { nodes: [("n-00".into(), work)].into(), ..FleetDecision::default() });
    let (_, failure, _) = world.next().await;
    assert_eq!((failure, world.seconds()), (None, 3));
    assert_eq!(world.api.count("PATCH", "/pods/job"), 9);
    assert_eq!(world.api.count("POST", "/events"), 9, "an event for each pod");
}

#[tokio::test(start_paused = true)]
async fn pod_whose_notice_cannot_be_removed_is_not_told_that_it_is() {
    for (answer, events) in [(Some(Rule::Hang), 0), (Some(Rule::Code(504)), 0), (None, 1)] {
        let mut world = World::new(1);
        if let Some(answer) = answer {
            world.api.rule("/namespaces/n-00/pods", Some(answer));
        }
        let cancelled_evictions = [(pod_on("n-00"), "n-00".to_owned())].into();
        world.decide(FleetDecision { cancelled_evictions, ..FleetDecision::default() });
        assert_eq!(world.next().await.1, None);
        assert_eq!(world.api.count("POST", "/events"), events);
    }
}

#[tokio::test(start_paused = true)]
async fn eviction_that_was_decided_long_ago_is_decided_again() {
    let mut world = World::new(40);
    for node in 0..32 {
        world.api.rule(format!("/nodes/n-{node:02}").leak(), Some(Rule::Hang));
    }
    let names: Vec<String> = world.fleet.nodes.keys().take(32).cloned().collect();
    world.decide(World::labels(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    world.decide(world.eviction("n-39"));
    let mut evicting = world.next().await;
    while evicting.0 != gpu_node("n-39") {
        evicting = world.next().await;
    }
    assert_eq!((evicting, world.seconds()), ((gpu_node("n-39"), None, true), 15));
    assert_eq!(world.api.count("POST", "/eviction"), 0);
}

#[tokio::test(start_paused = true)]
async fn eviction_that_a_later_decision_does_not_make_is_not_carried_out() {
    let mut world = World::new(1);
    world.decide(world.eviction("n-00"));
    // its write is in progress, and has sent nothing yet
    world.decide(FleetDecision::default());
    assert_eq!(world.next().await, (gpu_node("n-00"), None, true));
    assert_eq!(world.api.count("POST", "/eviction"), 0);
    world.decide(world.eviction("n-00"));
    assert_eq!(world.next().await, (gpu_node("n-00"), None, false));
    assert_eq!(world.api.count("POST", "/eviction"), 1);
}

#[tokio::test(start_paused = true)]
async fn node_that_fails_or_was_counted_as_begun_makes_room_for_another() {
    let mut world = World::new(2);
    world.api.rule("/gpunodes/n-00", Some(Rule::Code(503)));
    world.decide(world.eviction("n-00"));
    let (target, failure, again) = world.next().await;
    assert_eq!((target, failure.is_some(), again), (gpu_node("n-00"), true, true));
    assert_eq!(world.queue.failing(), ["n-00".to_owned()].into());
    world.decide(world.eviction("n-01"));
    assert_eq!(world.queue.writing(), ["n-01".to_owned()].into());
    // the next decision sees that write in progress
    world.decide(FleetDecision::default());
    assert_eq!(world.next().await, (gpu_node("n-01"), None, true));
}

#[tokio::test(start_paused = true)]
async fn later_decision_replaces_what_waits() {
    let mut world = World::new(34);
    for node in 0..32 {
        world.api.rule(format!("/nodes/n-{node:02}").leak(), Some(Rule::Hang));
    }
    let names: Vec<String> = world.fleet.nodes.keys().take(33).cloned().collect();
    // the 33rd waits for one of the others
    world.decide(World::labels(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    world.decide(World::labels(&["n-33"]));
    for _ in 0..33 {
        world.next().await;
    }
    assert_eq!(world.api.count("PATCH", "/nodes/n-32"), 0);
    assert_eq!(world.api.count("PATCH", "/nodes/n-33"), 1);
}

#[tokio::test(start_paused = true)]
async fn object_in_progress_is_decided_again_and_not_written_twice() {
    let mut world = World::new(1);
    world.decide(world.eviction("n-00"));
    world.decide(world.eviction("n-00"));
    assert_eq!(world.next().await, (gpu_node("n-00"), None, true));
    assert_eq!(world.api.count("POST", "/eviction"), 1);
    // a decision that has nothing more to write about it, and did not count it as begun, needs no other
    world.decide(world.eviction("n-00"));
    assert_eq!(world.next().await, (gpu_node("n-00"), None, false));
}

#[tokio::test(start_paused = true)]
async fn hanging_or_contested_labels_of_a_node_do_not_stop_its_gpus() {
    for hangs in [true, false] {
        let mut world = World::new(1);
        world.api.rule("/nodes/n-00", hangs.then_some(Rule::Hang));
        if !hangs {
            world.decide(World::labels(&["n-00"]));
            assert_eq!(world.next().await, (node("n-00"), None, false));
        }
        // the labels are still missing, so another client has removed them
        let mut decision = World::labels(&["n-00"]);
        decision.nodes = world.eviction("n-00").nodes;
        world.decide(decision);
        while world.next().await.0 != gpu_node("n-00") {}
        assert_eq!((world.api.count("POST", "/eviction"), world.seconds()), (1, 0), "hangs: {hangs}");
    }
}

#[tokio::test(start_paused = true)]
async fn repair_that_is_due_later_wakes_and_keeps_nothing_waiting() {
    let mut world = World::new(1);
    for due in [None, Some(2)] {
        world.decide(World::labels(&["n-00"]));
        assert_eq!(world.next().await, (node("n-00"), None, false));
        // the time of the repair is of the real clock
        let wakes = world.queue.retry_at().map(|at| (at - world.begun + Duration::from_millis(500)).as_secs());
        assert_eq!(wakes, due);
    }
    assert_eq!(world.api.count("PATCH", "/nodes/n-00"), 1);
}

#[tokio::test(start_paused = true)]
async fn gpu_node_that_fails_is_named_until_its_retry_and_keeps_its_back_off() {
    let mut world = World::new(1);
    world.api.rule("/gpunodes/n-00", Some(Rule::Code(500)));
    for delay in [2, 4, 8] {
        world.decide(world.eviction("n-00"));
        assert_eq!(world.queue.writing(), ["n-00".to_owned()].into());
        assert!(world.next().await.1.is_some());
        assert_eq!(world.queue.failing(), ["n-00".to_owned()].into());
        // another GPU has its turn meanwhile
        world.decide(FleetDecision::default());
        let at = world.queue.retry_at().unwrap();
        assert_eq!(at - Instant::now(), Duration::from_secs(delay));
        tokio::time::sleep_until(at).await;
        assert!(world.queue.failing().is_empty() && world.queue.writing().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn status_of_a_pool_is_written_again_after_every_kind_of_failure() {
    for answer in [Rule::Code(429), Rule::Code(503), Rule::Hang, Rule::Lost] {
        let mut world = World::new(0);
        world.api.rule("/gpupools/", Some(answer));
        let decision = || FleetDecision {
            pools: [("pool".to_owned(), GpuPoolStatus::default())].into(),
            ..FleetDecision::default()
        };
        world.decide(decision());
        let (_, failure, again) = world.next().await;
        assert!(failure.is_some() && !again, "{answer:?}");
        assert_eq!(world.api.count("POST", "/events"), 1, "{answer:?}");
        world.api.rule("/gpupools/", None);
        tokio::time::sleep_until(world.queue.retry_at().unwrap()).await;
        world.decide(decision());
        assert_eq!(world.next().await, (Target::Pool("pool".into()), None, false), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn conflict_with_another_client_is_decided_again_and_is_no_warning() {
    let mut world = World::new(0);
    world.api.rule("/gpupools/", Some(Rule::Code(409)));
    let decision =
        || FleetDecision { pools: [("pool".to_owned(), GpuPoolStatus::default())].into(), ..FleetDecision::default() };
    world.decide(decision());
    let (_, failure, _) = world.next().await;
    assert_eq!((failure, world.api.count("POST", "/events")), (None, 0));
    let wake = world.queue.retry_at().unwrap();
    assert!(wake.duration_since(Instant::now()) <= Duration::from_secs(1));
    world.api.rule("/gpupools/", None);
    tokio::time::sleep_until(wake).await;
    world.decide(decision());
    assert_eq!(world.next().await, (Target::Pool("pool".into()), None, false));
}
