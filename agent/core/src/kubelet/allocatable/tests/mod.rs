mod simulation;

use super::*;
use crate::kubelet::device_list::ListedDevice;

const R: &str = "nvidia.com/mig-1g.10gb";

fn id(n: u32) -> DeviceId {
    DeviceId::new(format!("MIG-{n}"))
}

fn list(ids: &[u32]) -> DeviceList {
    ids.iter().map(|n| (id(*n), ListedDevice { healthy: true, numa: None })).collect()
}

/// A converged node with four devices.
struct Scene {
    wanted: DeviceLists,
    published: DeviceLists,
    watched: BTreeSet<String>,
    kubelet: Option<BTreeMap<String, BTreeSet<DeviceId>>>,
    node: Option<Counts>,
    requested: Option<Counts>,
    in_flight: InFlightPods,
    stopping: bool,
    readmits: bool,
    state: State,
    now: Instant,
}

impl Scene {
    fn converged() -> Self {
        Self {
            wanted: [(R.to_owned(), list(&[0, 1, 2, 3]))].into(),
            published: [(R.to_owned(), list(&[0, 1, 2, 3]))].into(),
            watched: [R.to_owned()].into(),
            kubelet: Some([(R.to_owned(), (0..4).map(id).collect())].into()),
            node: Some([(R.to_owned(), 4)].into()),
            requested: None,
            in_flight: InFlightPods::new(),
            stopping: false,
            readmits: false,
            state: State::default(),
            now: Instant::now(),
        }
    }

    fn want(&mut self, ids: &[u32]) {
        self.wanted.insert(R.to_owned(), list(ids));
    }

    fn publish(&mut self, ids: &[u32]) {
        self.published.insert(R.to_owned(), list(ids));
    }

    fn kubelet_lists(&mut self, ids: &[u32]) {
        self.kubelet = Some([(R.to_owned(), ids.iter().map(|n| id(*n)).collect())].into());
    }

    fn node_counts(&mut self, count: u64) {
        self.node = Some([(R.to_owned(), count)].into());
    }

    fn step(&mut self) -> Step {
        let seen = Observation {
            wanted: &self.wanted,
            published: &self.published,
            watched: &self.watched,
            kubelet: self.kubelet.as_ref(),
            node: self.node.as_ref(),
            requested: self.requested.as_ref(),
            in_flight: &self.in_flight,
            stopping: self.stopping,
            readmits: self.readmits,
            propagation: MIN_PROPAGATION,
            now: self.now,
        };
        let (state, step) = step(&self.state, &seen);
        self.state = state;
        step
    }

    /// A pod is in flight from now on.
    fn bind(&mut self) {
        let count = self.in_flight.get(R).map_or(1, |pods| pods.count + 1);
        self.in_flight = [(R.to_owned(), InFlight { count, newest: self.now })].into();
    }

    fn later(&mut self, time: Duration) {
        self.now += time;
    }
}

fn allocatable(count: u64) -> Action {
    Action::WriteAllocatable([(R.to_owned(), count)].into())
}

#[test]
fn converged_node_needs_no_action() {
    assert_eq!(Scene::converged().step(), Step::default());
}

#[test]
fn withdrawal_follows_a_lowered_allocatable_after_the_propagation_time() {
    let mut scene = Scene::converged();
    scene.want(&[0, 1, 2]);
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    assert_eq!(scene.step().actions, []);
    scene.later(MIN_PROPAGATION / 2);
    assert_eq!(scene.state.due(MIN_PROPAGATION, scene.now), Some(MIN_PROPAGATION / 2), "no event reports it");
    scene.later(MIN_PROPAGATION / 2);
    assert_eq!(scene.state.due(MIN_PROPAGATION, scene.now), None);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), list(&[0, 1, 2]))]);
}

#[test]
fn allocatable_has_room_for_running_pods_until_a_restarted_kubelet_has_admitted_them_again() {
    let mut scene = Scene::converged();
    (scene.readmits, scene.requested) = (true, Some([(R.to_owned(), 3)].into()));
    scene.watched.clear();
    assert_eq!(scene.step().actions, [allocatable(3)], "no further pod can be bound");
    scene.node_counts(3);
    assert_eq!(scene.step().actions, []);
    // kubelet without a checkpoint takes the node for a new one
    scene.node_counts(0);
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    // it knows the devices again, one of which is to be withdrawn
    scene.watched = [R.to_owned()].into();
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, []);
    scene.later(IN_FLIGHT_TIMEOUT * 2);
    assert_eq!(scene.step().actions, [], "however long that takes");
    scene.readmits = false;
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn allocatable_stays_while_a_restarted_kubelet_admits_pods_that_are_not_known() {
    let mut scene = Scene::converged();
    scene.readmits = true;
    scene.watched.clear();
    assert_eq!(scene.step().actions, []);
    // a resource of an earlier agent
    (scene.wanted, scene.published) = (DeviceLists::new(), DeviceLists::new());
    scene.kubelet_lists(&[]);
    assert_eq!(scene.step().actions, []);
    scene.requested = Some([(R.to_owned(), 1)].into());
    assert_eq!(scene.step().actions, [allocatable(1)]);
    (scene.readmits, scene.requested) = (false, None);
    assert_eq!(scene.step().actions, [allocatable(0)]);
}

#[test]
fn stopping_agent_does_not_wait_for_zero_while_kubelet_admits_running_pods() {
    let mut scene = Scene::converged();
    (scene.readmits, scene.stopping, scene.requested) = (true, true, Some([(R.to_owned(), 2)].into()));
    scene.watched.clear();
    assert_eq!(scene.step().actions[..1], [allocatable(2)]);
    scene.node_counts(2);
    scene.published = [(R.to_owned(), DeviceList::new())].into();
    scene.wanted.clear();
    scene.step();
    scene.later(SHUTDOWN_DELAY);
    assert!(scene.step().may_exit);
}

#[test]
fn propagation_grows_with_the_duration_of_the_write() {
    let milliseconds = Duration::from_millis;
    assert_eq!(
        [10, 250, 60_000].map(|took| propagation(milliseconds(took))),
        [MIN_PROPAGATION, milliseconds(1000), MAX_PROPAGATION]
    );
}

#[test]
fn propagation_restarts_when_kubelet_writes_an_old_count() {
    let mut scene = Scene::converged();
    scene.want(&[0, 1, 2]);
    scene.node_counts(3);
    scene.step();
    scene.later(MIN_PROPAGATION / 2);
    scene.node_counts(4);
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    scene.later(MIN_PROPAGATION / 2);
    assert_eq!(scene.step().actions, [], "the scheduler has just seen the old count");
}

#[test]
fn allocatable_is_raised_after_kubelet_lists_the_devices() {
    let mut scene = Scene::converged();
    scene.want(&[0, 1, 2, 3, 4]);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), list(&[0, 1, 2, 3, 4]))]);
    scene.publish(&[0, 1, 2, 3, 4]);
    assert_eq!(scene.step().actions, [], "kubelet does not list it yet");
    scene.kubelet_lists(&[0, 1, 2, 3, 4]);
    assert_eq!(scene.step().actions, [allocatable(5)]);
}

#[test]
fn device_that_moves_to_another_resource_counts_there() {
    const CANARY: &str = "gputenancy.io/canary_0_3";
    let lists =
        |r: &[u32], canary: &[u32]| DeviceLists::from([(R.to_owned(), list(r)), (CANARY.to_owned(), list(canary))]);
    let mut scene = Scene::converged();
    (scene.wanted, scene.published) = (lists(&[0, 1, 2, 3], &[]), lists(&[0, 1, 2], &[3]));
    scene.watched.insert(CANARY.to_owned());
    let mut node = Counts::from([(R.to_owned(), 3), (CANARY.to_owned(), 1)]);
    for _ in 0..40 {
        let known = |list: &DeviceList| list.keys().cloned().collect();
        scene.kubelet = Some(scene.published.iter().map(|(r, list)| (r.clone(), known(list))).collect());
        scene.node = Some(node.clone());
        for action in scene.step().actions {
            match action {
                Action::WriteAllocatable(counts) => {
                    assert!(counts.get(R).is_none_or(|n| *n >= node[R]), "{counts:?} after {node:?}");
                    node.extend(counts);
                }
                Action::Publish(resource, list) => drop(scene.published.insert(resource, list)),
                Action::Register(resource) => panic!("{resource} is watched"),
            }
        }
        scene.later(Duration::from_millis(50));
    }
    assert_eq!(scene.published, scene.wanted);
    assert_eq!(node, Counts::from([(R.to_owned(), 4), (CANARY.to_owned(), 0)]));
}

#[test]
fn unhealthy_device_is_withdrawn() {
    let mut scene = Scene::converged();
    let mut unhealthy = list(&[0, 1, 2, 3]);
    unhealthy.insert(id(3), ListedDevice { healthy: false, numa: None });
    scene.wanted.insert(R.to_owned(), unhealthy.clone());
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    scene.step();
    scene.later(MIN_PROPAGATION);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), unhealthy)]);
}

#[test]
fn allocatable_is_zero_while_kubelet_does_not_watch() {
    let mut scene = Scene::converged();
    scene.watched.clear();
    assert_eq!(scene.step().actions, [allocatable(0)]);
}

#[test]
fn withdrawal_is_immediate_while_kubelet_does_not_watch() {
    let mut scene = Scene::converged();
    scene.watched.clear();
    scene.node_counts(0);
    scene.want(&[]);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), list(&[]))]);
}

#[test]
fn allocatable_is_raised_only_after_a_restarted_kubelet_lists_the_devices() {
    let mut scene = Scene::converged();
    scene.node_counts(0);
    scene.kubelet_lists(&[]);
    assert_eq!(scene.step().actions, []);
    scene.kubelet_lists(&[0, 1, 2, 3]);
    assert_eq!(scene.step().actions, [allocatable(4)]);
}

#[test]
fn resource_keeps_its_plugin_without_devices() {
    let mut scene = Scene::converged();
    scene.wanted.clear();
    scene.node_counts(0);
    scene.step();
    scene.later(MIN_PROPAGATION);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), list(&[]))]);
    scene.publish(&[]);
    scene.kubelet_lists(&[]);
    assert_eq!(scene.step(), Step::default());
}

#[test]
fn allocatable_is_lowered_to_the_requests_until_no_pod_is_in_flight() {
    let mut scene = Scene::converged();
    scene.requested = Some([(R.to_owned(), 3)].into());
    scene.bind();
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    scene.later(MIN_PROPAGATION);
    assert_eq!(scene.step().actions, [], "a pod is in flight");
    scene.in_flight.clear();
    scene.step();
    scene.later(MIN_PROPAGATION);
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn pod_without_device_delays_a_withdrawal_until_its_timeout() {
    let mut scene = Scene::converged();
    scene.requested = Some([(R.to_owned(), 4)].into());
    scene.bind();
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, []);
    scene.later(IN_FLIGHT_TIMEOUT);
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn every_pod_in_flight_has_its_own_timeout() {
    let mut scene = Scene::converged();
    scene.requested = Some([(R.to_owned(), 4)].into());
    scene.bind();
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, []);
    scene.later(IN_FLIGHT_TIMEOUT.saturating_sub(MIN_PROPAGATION));
    scene.bind();
    scene.later(MIN_PROPAGATION);
    assert_eq!(scene.step().actions, [], "the second was just bound");
    scene.later(IN_FLIGHT_TIMEOUT);
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn allocatable_of_a_full_node_is_lowered_at_once() {
    let mut scene = Scene::converged();
    scene.requested = Some([(R.to_owned(), 4)].into());
    scene.step();
    scene.later(MIN_PROPAGATION);
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn stopping_agent_lowers_allocatable_to_zero() {
    let mut scene = Scene::converged();
    scene.stopping = true;
    assert_eq!(scene.step().actions, [allocatable(0)]);
}

#[test]
fn allocatable_of_an_earlier_agent_is_lowered() {
    let mut scene = Scene::converged();
    scene.node =
        Some([(R.to_owned(), 4), ("nvidia.com/mig-3g.40gb".to_owned(), 2), ("hugepages-2Mi".to_owned(), 9)].into());
    assert_eq!(scene.step().actions, [Action::WriteAllocatable([("nvidia.com/mig-3g.40gb".to_owned(), 0)].into())]);
}

#[test]
fn resources_of_another_plugin_are_not_changed() {
    let mut scene = Scene::converged();
    scene.node = Some([(R.to_owned(), 4), ("nvidia.com/gpu".to_owned(), 1)].into());
    scene.kubelet = scene.kubelet.map(|mut lists| {
        lists.insert("nvidia.com/gpu".to_owned(), [DeviceId::new("GPU-b")].into());
        lists
    });
    assert_eq!(scene.step().actions, []);
}

#[test]
fn plugin_registers_again_when_kubelet_keeps_a_stale_list() {
    let mut scene = Scene::converged();
    scene.kubelet_lists(&[]);
    scene.node_counts(0);
    assert_eq!(scene.step().actions, []);
    scene.later(STALE_LIST_TIMEOUT);
    assert_eq!(scene.step().actions, [Action::Register(R.to_owned())]);
}

#[test]
fn nothing_is_written_while_kubelet_or_api_server_does_not_answer() {
    let mut scene = Scene::converged();
    scene.kubelet = None;
    assert_eq!(scene.step().actions, []);
    let mut scene = Scene::converged();
    scene.node = None;
    scene.want(&[0]);
    assert_eq!(scene.step().actions, []);
}

#[test]
fn waiting_names_resource_and_counts() {
    let mut scene = Scene::converged();
    scene.want(&[0, 1, 2]);
    let lines = scene.step().waiting;
    assert_eq!(lines, ["nvidia.com/mig-1g.10gb: lowering the node's allocatable from 4 to 3"]);
}
