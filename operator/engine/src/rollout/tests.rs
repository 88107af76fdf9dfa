use gputenancy_crds::DurationText;
use proptest::prelude::*;

use super::*;

const NEW: &str = "turns";
const SOAK: i64 = 600;

fn definition(version: u32) -> ProvenDefinition {
    ProvenDefinition { name: NEW.into(), hash: version.to_string(), replicas: Some(4) }
}

/// Nodes of one GPU each, which serve a version of one profile.
#[derive(Clone, Debug)]
struct World {
    rules: Rollout,
    wanted: u32,
    generation: i64,
    now: i64,
    nodes: Vec<Node>,
    status: Option<RolloutStatus>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    serves: u32,
    changing: bool,
    failed: Option<(i64, u32)>,
    stalled: bool,
}

impl World {
    fn new(nodes: usize, canary_nodes: i32) -> Self {
        let rules = Rollout { canary_nodes, soak: DurationText::parse("10m").unwrap() };
        let node = Node { serves: 1, ..Node::default() };
        let mut world = Self { rules, wanted: 1, generation: 1, now: 0, nodes: vec![node; nodes], status: None };
        world.step();
        world
    }

    fn name(index: usize) -> String {
        format!("node-{index}")
    }

    /// Decides, writes the status, and begins changes that may begin.
    fn step(&mut self) -> Stage {
        let names: Vec<String> = (0..self.nodes.len()).map(Self::name).collect();
        let gpus = self.nodes.iter().zip(&names).map(|(node, name)| RolloutGpu {
            node: name,
            uses: [NEW].into(),
            wanted: node.serves != self.wanted,
            changing: node.changing,
            blocked: false,
            rank: 0,
            failed: node
                .failed
                .filter(|(_, version)| *version == self.wanted)
                .map(|(at, _)| (time(at), "GPU 0: error".into())),
        });
        let stalled = self.nodes.iter().zip(&names).filter(|(node, _)| node.stalled);
        let input = RolloutInput {
            rules: &self.rules,
            generation: self.generation,
            definitions: vec![definition(self.wanted)],
            gpus: gpus.collect(),
            stalled: stalled.map(|(_, name)| (name.as_str(), "MPS".to_owned())).collect(),
            now: time(self.now),
        };
        let stage = stage(self.status.as_ref(), &input);
        for (node, name) in self.nodes.iter_mut().zip(&names) {
            if node.serves != self.wanted && stage.waits(name, &[NEW].into()).is_none() {
                node.changing = true;
            }
        }
        self.status = Some(stage.status.clone());
        stage
    }

    fn finish(&mut self, index: usize) {
        let (wanted, node) = (self.wanted, &mut self.nodes[index]);
        if node.changing {
            (node.serves, node.changing) = (wanted, false);
        }
    }

    fn fail(&mut self, index: usize) {
        let (wanted, now, node) = (self.wanted, self.now, &mut self.nodes[index]);
        if node.changing {
            (node.changing, node.failed) = (false, Some((now, wanted)));
        }
    }

    fn edit(&mut self) {
        self.wanted += 1;
        self.nodes.iter_mut().for_each(|node| node.changing = false);
    }

    fn status(&self) -> &RolloutStatus {
        self.status.as_ref().unwrap()
    }

    fn begun(&self) -> usize {
        self.nodes.iter().filter(|node| node.serves == self.wanted || node.changing).count()
    }
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

#[test]
fn first_node_serves_what_is_new_through_the_soak_time_and_the_others_follow() {
    let mut world = World::new(3, 1);
    assert_eq!(world.status().proven, [definition(1)]);
    world.edit();
    world.step();
    assert_eq!(
        (world.status().nodes.as_slice(), world.begun()),
        (&["node-0".to_owned()][..], 0),
        "not before it is written"
    );
    let waiting = world.step();
    assert_eq!(world.begun(), 1);
    assert!(waiting.waits("node-1", &[NEW].into()).unwrap().contains("node-0 serves turns first"));
    world.finish(0);
    world.now = 100;
    assert_eq!(world.step().ends, Some(time(100 + SOAK)));
    world.now = 100 + SOAK - 1;
    world.step();
    assert_eq!(world.begun(), 1);
    world.now = 100 + SOAK;
    world.step();
    assert_eq!((world.status().proven.as_slice(), world.status().nodes.len()), (&[definition(2)][..], 0));
    world.step();
    assert_eq!(world.begun(), 3);
}

#[test]
fn failure_stops_the_rollout_until_an_edit_and_the_way_back_needs_no_stage() {
    let mut world = World::new(3, 1);
    world.edit();
    world.step();
    world.step();
    world.now = 5;
    world.fail(0);
    let stopped = world.step();
    assert_eq!(world.status().stopped.as_ref().unwrap().cause, "node node-0: GPU 0: error");
    assert!(stopped.way_back().ends_with("set GpuProfile turns to 4 replicas"), "{}", stopped.way_back());
    world.now = 1_000_000;
    assert!(world.step().waits("node-0", &[NEW].into()).unwrap().contains("stopped"));
    assert_eq!(world.begun(), 0);

    let mut back = world.clone();
    back.wanted = 1;
    back.step();
    assert_eq!((&back.status().stopped, back.status().trying.len()), (&None, 0));

    // an edit of the pool tries the same again
    world.generation += 1;
    world.step();
    world.step();
    assert_eq!((&world.status().stopped, world.begun()), (&None, 1));
}

#[test]
fn stalled_agent_of_a_first_node_stops_the_rollout_and_is_not_chosen_before() {
    let mut world = World::new(3, 1);
    world.nodes[0].stalled = true;
    world.edit();
    world.step();
    world.step();
    assert_eq!(world.status().nodes, ["node-1"]);
    world.finish(1);
    world.step();
    world.nodes[1].stalled = true;
    world.step();
    assert_eq!(world.status().stopped.as_ref().unwrap().cause, "node node-1: MPS");
}

#[test]
fn what_a_pool_has_never_served_is_staged_too() {
    let mut world = World::new(2, 1);
    world.nodes.iter_mut().for_each(|node| node.serves = 0);
    world.status = None;
    world.step();
    world.step();
    assert_eq!((world.begun(), world.status().proven.len()), (1, 0));
}

#[derive(Clone, Debug)]
enum Event {
    Pass(i64),
    Finish(usize),
    Fail(usize),
    Stall(usize),
    Edit,
    Resume,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1..2 * SOAK).prop_map(Event::Pass),
        5 => (0..5_usize).prop_map(Event::Finish),
        1 => (0..5_usize).prop_map(Event::Fail),
        1 => (0..5_usize).prop_map(Event::Stall),
        1 => Just(Event::Edit),
        1 => Just(Event::Resume),
    ]
}

proptest! {
    /// Whatever happens, and in whatever order: until a version is proven no more than the permitted nodes begin it, and none begins after
    /// a failure until an edit.
    #[test]
    fn new_versions_stay_on_the_first_nodes(limit in 1..3_i32, events in prop::collection::vec(event(), 0..60)) {
        let mut world = World::new(5, limit);
        for event in events {
            let stopped = world.status().stopped.is_some();
            let before = world.begun();
            let mut edited = false;
            match event {
                Event::Pass(seconds) => world.now += seconds,
                Event::Finish(index) => world.finish(index),
                Event::Fail(index) => world.fail(index),
                Event::Stall(index) => world.nodes[index].stalled ^= true,
                Event::Edit => { world.edit(); edited = true; }
                Event::Resume => { world.generation += 1; edited = true; }
            }
            let proven = |world: &World| world.status().proven.contains(&definition(world.wanted));
            let was_proven = proven(&world);
            world.step();
            if !was_proven {
                prop_assert!(world.begun() <= usize::try_from(limit).unwrap(), "{world:?}");
            }
            if stopped && !edited {
                prop_assert!(world.begun() <= before, "{world:?}");
            }
        }
    }

    /// Without failures every node gets there.
    #[test]
    fn rollouts_end(limit in 1..3_i32, edits in 1..4_u32) {
        let mut world = World::new(5, limit);
        for _ in 0..edits {
            world.edit();
            for _ in 0..20 {
                world.step();
                (0..5).for_each(|index| world.finish(index));
                world.now += SOAK;
            }
            prop_assert_eq!(world.begun(), 5);
        }
    }
}
