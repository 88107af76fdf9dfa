use super::*;
use crate::kubelet::offer::Listed;

const R: &str = "nvidia.com/mig-1g.10gb";

fn id(n: u32) -> DeviceId {
    DeviceId::new(format!("MIG-{n}"))
}

fn offer(ids: &[u32]) -> Offer {
    ids.iter().map(|n| (id(*n), Listed { healthy: true, numa: None })).collect()
}

/// A node at peace with four devices; tests change what they are about.
struct Scene {
    wanted: Offers,
    published: Offers,
    listening: BTreeSet<String>,
    kubelet: Option<BTreeMap<String, BTreeSet<DeviceId>>>,
    node: Option<Counts>,
    taken: Option<Counts>,
    in_flight: Flights,
    stopping: bool,
    memory: Memory,
    now: Instant,
}

impl Scene {
    fn peace() -> Self {
        Self {
            wanted: [(R.to_owned(), offer(&[0, 1, 2, 3]))].into(),
            published: [(R.to_owned(), offer(&[0, 1, 2, 3]))].into(),
            listening: [R.to_owned()].into(),
            kubelet: Some([(R.to_owned(), (0..4).map(id).collect())].into()),
            node: Some([(R.to_owned(), 4)].into()),
            taken: None,
            in_flight: Flights::new(),
            stopping: false,
            memory: Memory::default(),
            now: Instant::now(),
        }
    }

    fn want(&mut self, ids: &[u32]) {
        self.wanted.insert(R.to_owned(), offer(ids));
    }

    fn publish(&mut self, ids: &[u32]) {
        self.published.insert(R.to_owned(), offer(ids));
    }

    fn kubelet_lists(&mut self, ids: &[u32]) {
        self.kubelet = Some([(R.to_owned(), ids.iter().map(|n| id(*n)).collect())].into());
    }

    fn node_counts(&mut self, count: u64) {
        self.node = Some([(R.to_owned(), count)].into());
    }

    fn step(&mut self) -> Step {
        let seen = Seen {
            wanted: &self.wanted,
            published: &self.published,
            listening: &self.listening,
            kubelet: self.kubelet.as_ref(),
            node: self.node.as_ref(),
            taken: self.taken.as_ref(),
            in_flight: &self.in_flight,
            stopping: self.stopping,
            settle: SETTLE,
            now: self.now,
        };
        let (memory, step) = step(&self.memory, &seen);
        self.memory = memory;
        step
    }

    /// A pod is on its way from now on.
    fn bind(&mut self) {
        let count = self.in_flight.get(R).map_or(1, |flight| flight.count + 1);
        self.in_flight = [(R.to_owned(), Flight { count, youngest: self.now })].into();
    }

    fn later(&mut self, time: Duration) {
        self.now += time;
    }
}

fn allocatable(count: u64) -> Action {
    Action::Allocatable([(R.to_owned(), count)].into())
}

#[test]
fn does_nothing_at_peace() {
    assert_eq!(Scene::peace().step(), Step::default());
}

#[test]
fn lowers_the_node_before_it_withdraws_and_gives_the_scheduler_time_to_see() {
    let mut scene = Scene::peace();
    scene.want(&[0, 1, 2]);
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    assert_eq!(scene.step().actions, []);
    scene.later(SETTLE / 2);
    assert_eq!(scene.memory.due(SETTLE, scene.now), Some(SETTLE / 2), "no news will tell that it is over");
    scene.later(SETTLE / 2);
    assert_eq!(scene.memory.due(SETTLE, scene.now), None);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), offer(&[0, 1, 2]))]);
}

#[test]
fn a_write_that_took_long_is_given_longer_to_be_seen() {
    let milliseconds = Duration::from_millis;
    assert_eq!([10, 250, 60_000].map(|took| settling(milliseconds(took))), [SETTLE, milliseconds(1000), SETTLE_MOST]);
}

#[test]
fn waits_anew_when_kubelet_wrote_its_old_number_back_before_the_withdrawal() {
    let mut scene = Scene::peace();
    scene.want(&[0, 1, 2]);
    scene.node_counts(3);
    scene.step();
    scene.later(SETTLE / 2);
    scene.node_counts(4);
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    scene.later(SETTLE / 2);
    assert_eq!(scene.step().actions, [], "the scheduler saw the old number a moment ago");
}

#[test]
fn offers_before_it_raises_the_node() {
    let mut scene = Scene::peace();
    scene.want(&[0, 1, 2, 3, 4]);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), offer(&[0, 1, 2, 3, 4]))]);
    scene.publish(&[0, 1, 2, 3, 4]);
    assert_eq!(scene.step().actions, [], "kubelet does not list it yet");
    scene.kubelet_lists(&[0, 1, 2, 3, 4]);
    assert_eq!(scene.step().actions, [allocatable(5)]);
}

#[test]
fn a_device_that_moves_to_another_resource_counts_there_and_goes_on_counting() {
    const TRIAL: &str = "gputenancy.io/canary_0_3";
    let lists = |r: &[u32], trial: &[u32]| Offers::from([(R.to_owned(), offer(r)), (TRIAL.to_owned(), offer(trial))]);
    let mut scene = Scene::peace();
    (scene.wanted, scene.published) = (lists(&[0, 1, 2, 3], &[]), lists(&[0, 1, 2], &[3]));
    scene.listening.insert(TRIAL.to_owned());
    let mut node = Counts::from([(R.to_owned(), 3), (TRIAL.to_owned(), 1)]);
    for _ in 0..40 {
        let known = |offer: &Offer| offer.keys().cloned().collect();
        scene.kubelet = Some(scene.published.iter().map(|(r, offer)| (r.clone(), known(offer))).collect());
        scene.node = Some(node.clone());
        for action in scene.step().actions {
            match action {
                Action::Allocatable(counts) => {
                    assert!(counts.get(R).is_none_or(|n| *n >= node[R]), "{counts:?} after {node:?}");
                    node.extend(counts);
                }
                Action::Publish(resource, offer) => drop(scene.published.insert(resource, offer)),
                Action::Renew(resource) => panic!("{resource} is listened to"),
            }
        }
        scene.later(Duration::from_millis(50));
    }
    assert_eq!(scene.published, scene.wanted);
    assert_eq!(node, Counts::from([(R.to_owned(), 4), (TRIAL.to_owned(), 0)]));
}

#[test]
fn an_unhealthy_device_is_treated_like_a_withdrawn_one() {
    let mut scene = Scene::peace();
    let mut sick = offer(&[0, 1, 2, 3]);
    sick.insert(id(3), Listed { healthy: false, numa: None });
    scene.wanted.insert(R.to_owned(), sick.clone());
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    scene.step();
    scene.later(SETTLE);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), sick)]);
}

#[test]
fn counts_nothing_while_kubelet_does_not_listen() {
    let mut scene = Scene::peace();
    scene.listening.clear();
    assert_eq!(scene.step().actions, [allocatable(0)]);
}

#[test]
fn withdraws_at_once_when_kubelet_does_not_listen() {
    let mut scene = Scene::peace();
    scene.listening.clear();
    scene.node_counts(0);
    scene.want(&[]);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), offer(&[]))]);
}

#[test]
fn raises_nothing_before_a_restarted_kubelet_lists_the_devices() {
    let mut scene = Scene::peace();
    scene.node_counts(0);
    scene.kubelet_lists(&[]);
    assert_eq!(scene.step().actions, []);
    scene.kubelet_lists(&[0, 1, 2, 3]);
    assert_eq!(scene.step().actions, [allocatable(4)]);
}

#[test]
fn a_resource_keeps_its_plugin_when_its_last_device_goes() {
    let mut scene = Scene::peace();
    scene.wanted.clear();
    scene.node_counts(0);
    scene.step();
    scene.later(SETTLE);
    assert_eq!(scene.step().actions, [Action::Publish(R.to_owned(), offer(&[]))]);
    scene.publish(&[]);
    scene.kubelet_lists(&[]);
    assert_eq!(scene.step(), Step::default());
}

#[test]
fn sinks_to_what_is_bound_first_and_below_it_when_everybody_has_landed() {
    let mut scene = Scene::peace();
    scene.taken = Some([(R.to_owned(), 3)].into());
    scene.bind();
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, [allocatable(3)]);
    scene.node_counts(3);
    scene.later(SETTLE);
    assert_eq!(scene.step().actions, [], "one is on its way");
    scene.in_flight.clear();
    scene.step();
    scene.later(SETTLE);
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn does_not_wait_forever_for_a_pod_that_gets_no_device() {
    let mut scene = Scene::peace();
    scene.taken = Some([(R.to_owned(), 4)].into());
    scene.bind();
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, []);
    scene.later(PATIENCE);
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn every_pod_on_its_way_has_its_own_time_to_land() {
    let mut scene = Scene::peace();
    scene.taken = Some([(R.to_owned(), 4)].into());
    scene.bind();
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, []);
    scene.later(PATIENCE.saturating_sub(SETTLE));
    scene.bind();
    scene.later(SETTLE);
    assert_eq!(scene.step().actions, [], "the second was bound a moment ago");
    scene.later(PATIENCE);
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn sinks_at_once_on_a_node_that_has_been_full_for_a_while() {
    let mut scene = Scene::peace();
    scene.taken = Some([(R.to_owned(), 4)].into());
    scene.step();
    scene.later(SETTLE);
    scene.want(&[0, 1]);
    assert_eq!(scene.step().actions, [allocatable(2)]);
}

#[test]
fn leaves_nothing_to_be_counted_on_when_it_stops() {
    let mut scene = Scene::peace();
    scene.stopping = true;
    assert_eq!(scene.step().actions, [allocatable(0)]);
}

#[test]
fn lowers_what_an_earlier_agent_left_behind() {
    let mut scene = Scene::peace();
    scene.node =
        Some([(R.to_owned(), 4), ("nvidia.com/mig-3g.40gb".to_owned(), 2), ("hugepages-2Mi".to_owned(), 9)].into());
    assert_eq!(scene.step().actions, [Action::Allocatable([("nvidia.com/mig-3g.40gb".to_owned(), 0)].into())]);
}

#[test]
fn leaves_another_plugins_resources_alone_as_long_as_kubelet_serves_them() {
    let mut scene = Scene::peace();
    scene.node = Some([(R.to_owned(), 4), ("nvidia.com/gpu".to_owned(), 1)].into());
    scene.kubelet = scene.kubelet.map(|mut lists| {
        lists.insert("nvidia.com/gpu".to_owned(), [DeviceId::new("GPU-b")].into());
        lists
    });
    assert_eq!(scene.step().actions, []);
}

#[test]
fn connects_anew_when_kubelet_listens_without_listing() {
    let mut scene = Scene::peace();
    scene.kubelet_lists(&[]);
    scene.node_counts(0);
    assert_eq!(scene.step().actions, []);
    scene.later(DEAF);
    assert_eq!(scene.step().actions, [Action::Renew(R.to_owned())]);
}

#[test]
fn writes_nothing_while_kubelet_or_the_api_server_is_away() {
    let mut scene = Scene::peace();
    scene.kubelet = None;
    assert_eq!(scene.step().actions, []);
    let mut scene = Scene::peace();
    scene.node = None;
    scene.want(&[0]);
    assert_eq!(scene.step().actions, []);
}

#[test]
fn says_what_it_waits_for() {
    let mut scene = Scene::peace();
    scene.want(&[0, 1, 2]);
    let lines = scene.step().waiting;
    assert_eq!(lines, ["nvidia.com/mig-1g.10gb: the node's allocatable is 4 and has to come down to 3"]);
}
