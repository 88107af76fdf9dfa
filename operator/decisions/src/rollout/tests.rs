use gputenancy_crds::DurationText;
use proptest::prelude::*;

use super::*;

const SOAK: i64 = 600;
const PROFILES: [&str; 2] = ["turns", "slice"];

fn definition(profile: usize, version: u32) -> ProvenDefinition {
    ProvenDefinition { name: PROFILES[profile].into(), hash: version.to_string(), replicas: Some(4) }
}

/// Nodes of one GPU each, which serve a version of one of two profiles.
#[derive(Clone, Debug)]
struct World {
    rules: Rollout,
    /// The version of each profile.
    versions: [u32; 2],
    generation: i64,
    now: i64,
    nodes: Vec<Node>,
    status: Option<RolloutStatus>,
}

#[derive(Clone, Debug)]
struct Node {
    /// The profile that the plan wants here.
    profile: usize,
    serves: (usize, u32),
    /// A change in progress, to this layout.
    to: Option<(usize, u32)>,
    /// The last change that failed: to what, and when.
    failed: Option<((usize, u32), i64)>,
    state: RolloutNode,
}

impl World {
    fn new(nodes: usize, canary_nodes: i32) -> Self {
        let rules = Rollout { canary_nodes, soak: DurationText::parse("10m").unwrap() };
        let node =
            |n: usize| Node { profile: n % 2, serves: (n % 2, 1), to: None, failed: None, state: RolloutNode::Works };
        let nodes = (0..nodes).map(node).collect();
        let mut world = Self { rules, versions: [1, 1], generation: 1, now: 0, nodes, status: None };
        world.step();
        world
    }

    /// As [`World::new`], and all nodes serve the first profile.
    fn of_one_profile(nodes: usize, canary_nodes: i32) -> Self {
        let mut world = Self::new(nodes, canary_nodes);
        world.nodes.iter_mut().for_each(|node| (node.profile, node.serves) = (0, (0, 1)));
        world
    }

    fn target(&self, node: &Node) -> (usize, u32) {
        (node.profile, self.versions[node.profile])
    }

    /// Decides, writes the status, and begins or cancels changes.
    fn step(&mut self) -> Stage {
        let names: Vec<String> = (0..self.nodes.len()).map(|n| format!("node-{n}")).collect();
        let gpus = self.nodes.iter().zip(&names).map(|(node, name)| {
            // the plan does not count on a node that does not report, or that others have marked
            let marked = if let RolloutNode::Marked(why) = &node.state { Some(why.as_str()) } else { None };
            let silent = node.state == RolloutNode::Silent || marked.is_some();
            let target = self.target(node);
            RolloutGpu {
                node: name,
                uses: [PROFILES[if silent { node.serves.0 } else { target.0 }]]
                    .into_iter()
                    .chain(node.to.filter(|_| marked.is_some()).map(|to| PROFILES[to.0]))
                    .collect(),
                wanted: !silent && node.serves != target,
                begun: !silent && node.to == Some(target),
                marked,
                failed: node.failed.map(|((profile, _), at)| FailedChange {
                    uses: [PROFILES[profile]].into(),
                    at: time(at),
                    why: "GPU 0: error".into(),
                }),
                ..RolloutGpu::default()
            }
        });
        let input = RolloutInput {
            rules: &self.rules,
            generation: self.generation,
            definitions: vec![definition(0, self.versions[0]), definition(1, self.versions[1])],
            gpus: gpus.collect(),
            nodes: names.iter().map(String::as_str).zip(self.nodes.iter().map(|node| node.state.clone())).collect(),
            now: time(self.now),
        };
        let stage = stage(self.status.as_ref(), &input);
        let versions = self.versions;
        for (node, name) in self.nodes.iter_mut().zip(&names) {
            let target = (node.profile, versions[node.profile]);
            let staged = stage.is_staged(&[PROFILES[target.0]].into());
            let may = !staged || stage.waits(name).is_none();
            if node.state != RolloutNode::Works {
                continue;
            }
            if may && node.serves != target {
                node.to = Some(target);
            } else if node.to.is_some_and(|to| to != target) || !may {
                node.to = None;
            }
        }
        self.status = Some(stage.status.clone());
        stage
    }

    fn finish(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.state == RolloutNode::Works
            && let Some(to) = node.to.take()
        {
            node.serves = to;
        }
    }

    fn fail(&mut self, n: usize) {
        let now = self.now;
        let node = &mut self.nodes[n];
        if let Some(to) = node.to.take() {
            node.failed = Some((to, now));
        }
    }

    fn status(&self) -> &RolloutStatus {
        self.status.as_ref().unwrap()
    }

    /// Nodes that serve or begin the present version of a profile.
    fn begun(&self, profile: usize) -> usize {
        let version = (profile, self.versions[profile]);
        self.nodes.iter().filter(|node| node.serves == version || node.to == Some(version)).count()
    }

    fn is_proven(&self, profile: usize) -> bool {
        self.status().proven.contains(&definition(profile, self.versions[profile]))
    }
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

#[test]
fn first_node_serves_what_is_new_through_the_soak_time_and_the_others_follow() {
    let mut world = World::of_one_profile(3, 1);
    assert!(world.is_proven(0) && world.is_proven(1));
    world.versions[0] = 2;
    world.step();
    assert_eq!(
        (world.status().nodes.as_slice(), world.begun(0)),
        (&["node-0".to_owned()][..], 0),
        "not before it is written"
    );
    let waiting = world.step();
    assert_eq!(world.begun(0), 1);
    assert!(waiting.waits("node-1").unwrap().contains("node-0 serves turns first"));
    world.finish(0);
    world.now = 100;
    assert_eq!(world.step().ends, Some(time(100 + SOAK)));
    world.now = 100 + SOAK - 1;
    world.step();
    assert_eq!(world.begun(0), 1);
    world.now = 100 + SOAK;
    world.step();
    assert!(world.is_proven(0) && world.status().nodes.is_empty());
    world.step();
    assert_eq!(world.begun(0), 3);
}

#[test]
fn failure_stops_the_rollout_until_an_edit_and_the_way_back_needs_no_stage() {
    let mut world = World::of_one_profile(3, 1);
    world.versions[0] = 2;
    world.step();
    world.step();
    world.now = 5;
    world.fail(0);
    let stopped = world.step();
    assert_eq!(world.status().stopped.as_ref().unwrap().cause, "node node-0: GPU 0: error");
    assert!(stopped.way_back().ends_with("set GpuProfile turns to 4 replicas"), "{}", stopped.way_back());
    world.now = 1_000_000;
    assert!(world.step().waits("node-0").unwrap().contains("stopped"));
    assert_eq!(world.begun(0), 0);

    let mut back = world.clone();
    back.versions[0] = 1;
    back.step();
    assert_eq!((&back.status().stopped, back.status().trying.len()), (&None, 0));

    // an edit of the pool tries the same again
    world.generation += 1;
    world.step();
    world.step();
    assert_eq!((&world.status().stopped, world.begun(0)), (&None, 1));
}

#[test]
fn failure_stops_the_rollout_although_the_plan_moves_to_another_node() {
    let mut world = World::of_one_profile(3, 1);
    // the first node, and no other, wants the second profile, which is new
    world.versions[1] = 2;
    world.nodes[0].profile = 1;
    world.step();
    world.step();
    world.now = 5;
    world.fail(0);
    (world.nodes[0].profile, world.nodes[1].profile) = (0, 1);
    world.step();
    assert!(world.status().stopped.is_some());
    world.step();
    assert_eq!(world.begun(1), 0);
}

#[test]
fn node_that_no_longer_reports_proves_nothing_and_stops_the_rollout_in_the_end() {
    let mut world = World::of_one_profile(3, 1);
    world.versions[0] = 2;
    world.step();
    world.step();
    world.nodes[0].state = RolloutNode::Silent;
    for now in [10, SOAK, 2 * SOAK] {
        world.now = now;
        world.step();
        assert_eq!(
            (world.status().nodes.as_slice(), world.status().settled_at.is_some()),
            (&["node-0".to_owned()][..], false)
        );
    }
    world.nodes[0].state = RolloutNode::Fails("silent for more than 5 minutes".into());
    world.step();
    assert!(world.status().stopped.as_ref().unwrap().cause.contains("node-0: silent"));
    assert_eq!((world.begun(0), world.is_proven(0)), (1, false));
}

#[test]
fn what_only_other_nodes_use_is_not_proven_with_the_first_and_an_edit_begins_the_soak_time_again() {
    let mut world = World::new(4, 1);
    world.versions = [2, 2];
    world.step();
    world.step();
    world.finish(0);
    world.now = 10;
    world.step();
    world.now = 10 + SOAK;
    world.step();
    assert_eq!((world.is_proven(0), world.is_proven(1), world.begun(1)), (true, false, 0));
    // the second profile has a stage of its own
    world.step();
    world.step();
    world.finish(1);
    world.now = 2000;
    world.step();
    world.now = 2000 + SOAK - 1;
    world.step();
    world.versions[1] = 3;
    world.step();
    assert_eq!(world.status().settled_at, None);
    world.step();
    world.finish(1);
    world.now += 1;
    world.step();
    assert_eq!((world.is_proven(1), world.begun(1)), (false, 1));
}

#[test]
fn stalled_agent_of_a_first_node_stops_the_rollout_and_is_not_chosen_before() {
    let mut world = World::of_one_profile(3, 1);
    world.nodes[0].state = RolloutNode::Fails("MPS".into());
    world.versions[0] = 2;
    world.step();
    world.step();
    assert_eq!(world.status().nodes, ["node-1"]);
    world.finish(1);
    world.step();
    world.nodes[1].state = RolloutNode::Fails("MPS".into());
    world.step();
    assert_eq!(world.status().stopped.as_ref().unwrap().cause, "node node-1: MPS");
}

#[test]
fn profile_that_was_away_is_still_proven_and_one_that_was_never_served_is_staged() {
    let mut world = World::of_one_profile(2, 1);
    let input = |definitions| RolloutInput {
        rules: &world.rules,
        generation: 1,
        definitions,
        gpus: Vec::new(),
        nodes: BTreeMap::new(),
        now: time(0),
    };
    let away = stage(world.status.as_ref(), &input(Vec::new()));
    assert_eq!(away.status.proven, world.status().proven);
    world.nodes.iter_mut().for_each(|node| node.serves = (0, 0));
    world.status = None;
    world.step();
    world.step();
    assert_eq!((world.begun(0), world.is_proven(0)), (1, false));
}

fn marked() -> RolloutNode {
    RolloutNode::Marked("it is cordoned".into())
}

#[test]
fn marked_node_is_no_first_node_and_the_others_do_not_wait_for_it() {
    let mut world = World::of_one_profile(4, 1);
    world.nodes[0].state = marked();
    world.versions[0] = 2;
    world.step();
    assert_eq!(world.status().nodes, ["node-1"]);
    // it is marked before it begins
    world.nodes[1].state = marked();
    world.step();
    let stage = world.step();
    assert_eq!((world.status().nodes.as_slice(), world.begun(0)), (&["node-1".to_owned(), "node-2".to_owned()][..], 1));
    let waits = stage.waits("node-3").unwrap();
    assert!(waits.starts_with("Pending: node-2 serves turns first; other nodes follow"), "{waits}");
    assert!(waits.ends_with("; a marked node is not waited for (node node-1: it is cordoned)"), "{waits}");
    // without its mark it waits again, as no more nodes serve it first than permitted
    world.nodes[1].state = RolloutNode::Works;
    world.step();
    assert_eq!((world.status().nodes.as_slice(), world.begun(0)), (&["node-2".to_owned()][..], 1));
    world.finish(2);
    world.now = 10;
    world.step();
    world.now = 10 + SOAK;
    world.step();
    assert!(world.is_proven(0));
}

#[test]
fn node_that_is_marked_during_the_soak_time_proves_nothing_and_is_replaced_once() {
    let mut world = World::of_one_profile(4, 1);
    world.versions[0] = 2;
    world.step();
    world.step();
    world.finish(0);
    world.step();
    assert_eq!(world.status().settled_at, Some(Time(time(0))));
    world.nodes[0].state = marked();
    world.now = 2 * SOAK;
    world.step();
    world.step();
    assert_eq!((world.is_proven(0), &world.status().settled_at, world.begun(0)), (false, &None, 2));
    // what is new may be the cause of both marks
    world.finish(1);
    world.nodes[1].state = marked();
    world.now = 4 * SOAK;
    world.step();
    let stage = world.step();
    assert_eq!((world.is_proven(0), world.status().nodes.len(), world.begun(0)), (false, 2, 2));
    let waits = stage.waits("node-2").unwrap();
    assert!(waits.starts_with("Pending: no node can serve turns first now; "), "{waits}");
    assert!(
        waits.contains("no further node is tried meanwhile, as what is new may be the cause (node node-0: "),
        "{waits}"
    );
    world.nodes[1].state = RolloutNode::Works;
    world.step();
    world.now = 5 * SOAK;
    world.step();
    assert!(world.is_proven(0));
}

#[test]
fn node_that_is_marked_while_it_begins_counts_until_its_mark_ends() {
    let mut world = World::new(5, 1);
    world.nodes[3].profile = 0;
    world.versions[0] = 2;
    world.step();
    world.nodes[0].state = marked();
    world.step();
    world.nodes[2].profile = 1;
    world.step();
    assert_eq!(world.status().nodes, ["node-0", "node-3"]);
    world.step();
    assert_eq!(world.nodes[3].to, Some((0, 2)));
    world.nodes[3].state = marked();
    world.step();
    world.step();
    assert_eq!(
        world.status().nodes,
        ["node-0", "node-3"],
        "its change goes on after the mark, so no third node is tried"
    );
    world.nodes[3].state = RolloutNode::Works;
    world.step();
    assert_eq!((world.status().nodes.len(), world.begun(0)), (2, 1));
}

#[test]
fn withdrawn_gpu_is_not_waited_for_and_no_reason_to_choose_its_node() {
    let rules = Rollout { canary_nodes: 1, soak: DurationText::parse("10m").unwrap() };
    let of =
        |node, wanted, marked| RolloutGpu { node, uses: ["turns"].into(), wanted, marked, ..RolloutGpu::default() };
    let why = Some("GPU-0 is withdrawn");
    let stage_of = |before: &RolloutStatus, gpus| {
        let input = RolloutInput {
            rules: &rules,
            generation: 1,
            definitions: vec![definition(0, 2)],
            gpus,
            nodes: [("a", RolloutNode::Works), ("b", RolloutNode::Works)].into(),
            now: time(0),
        };
        stage(Some(before), &input)
    };
    let new = RolloutStatus::default();
    let only = stage_of(&new, vec![of("a", true, why), of("b", true, None)]);
    assert_eq!(only.status.nodes, ["b"]);
    let beside = stage_of(&new, vec![of("a", true, why), of("a", true, None), of("b", true, None)]);
    assert_eq!(beside.status.nodes, ["a"]);
    let served = stage_of(&beside.status, vec![of("a", true, why), of("a", false, None), of("b", true, None)]);
    assert_eq!(served.ends, Some(time(SOAK)));
    let all = stage_of(&served.status, vec![of("a", false, why), of("a", false, why), of("b", true, None)]);
    assert_eq!((all.status.nodes.as_slice(), all.ends), (&["a".to_owned(), "b".to_owned()][..], None));
}

#[derive(Clone, Debug)]
enum Event {
    Pass(i64),
    Finish(usize),
    Fail(usize),
    Become(usize, RolloutNode),
    Plan(usize, usize),
    Edit(usize),
    Resume,
}

fn event() -> impl Strategy<Value = Event> {
    let node = || 0..5_usize;
    let state = prop_oneof![
        3 => Just(RolloutNode::Works),
        1 => Just(RolloutNode::Silent),
        1 => Just(RolloutNode::Fails("stalled".into())),
        1 => Just(marked()),
    ];
    prop_oneof![
        3 => (1..2 * SOAK).prop_map(Event::Pass),
        6 => node().prop_map(Event::Finish),
        1 => node().prop_map(Event::Fail),
        2 => (node(), state).prop_map(|(n, state)| Event::Become(n, state)),
        1 => (node(), 0..2_usize).prop_map(|(n, profile)| Event::Plan(n, profile)),
        1 => (0..2_usize).prop_map(Event::Edit),
        1 => Just(Event::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// After any sequence of events: while a version is not proven, no node begins it unless the status that was written before
    /// names the node; never more nodes than permitted are named, and as many again for those that are marked; and none begins after a
    /// failure until an edit.
    #[test]
    fn new_versions_stay_on_the_first_nodes(limit in 1..3_i32, events in prop::collection::vec(event(), 0..80)) {
        let mut world = World::new(5, limit);
        let mut most = usize::try_from(limit).unwrap();
        for event in events {
            let written = world.status().clone();
            let before: Vec<_> = world.nodes.iter().map(|node| (node.serves, node.to)).collect();
            let mut edited = false;
            match event {
                Event::Pass(seconds) => world.now += seconds,
                Event::Finish(n) => world.finish(n),
                Event::Fail(n) => world.fail(n),
                Event::Become(n, state) => {
                    if state == marked() {
                        most = 2 * usize::try_from(limit).unwrap();
                    }
                    world.nodes[n].state = state;
                }
                Event::Plan(n, profile) => world.nodes[n].profile = profile,
                Event::Edit(profile) => { world.versions[profile] += 1; edited = true; }
                Event::Resume => { world.generation += 1; edited = true; }
            }
            let proven = [world.is_proven(0), world.is_proven(1)];
            world.step();
            prop_assert!(world.status().nodes.len() <= most, "{world:?}");
            for (n, node) in world.nodes.iter().enumerate() {
                let Some(to) = node.to.filter(|to| before[n] != (node.serves, Some(*to))) else { continue };
                let new = !proven[to.0] && to.1 == world.versions[to.0];
                prop_assert!(!new || written.nodes.contains(&format!("node-{n}")), "{n}: {world:?}");
                prop_assert!(!new || written.stopped.is_none() || edited, "{n}: {world:?}");
            }
        }
    }

    /// Without failures every node gets there.
    #[test]
    fn rollouts_end(limit in 1..3_i32, edits in prop::collection::vec(0..2_usize, 1..4)) {
        let mut world = World::new(5, limit);
        for profile in edits {
            world.versions[profile] += 1;
            for _ in 0..40 {
                world.step();
                (0..5).for_each(|n| world.finish(n));
                world.now += SOAK;
            }
            prop_assert_eq!(world.begun(0) + world.begun(1), 5);
        }
    }
}
