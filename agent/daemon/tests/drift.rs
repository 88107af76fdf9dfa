//! Random layouts on every MIG board, partitioned by the agent through the C ABI and read back by two programs of NVIDIA: the desired
//! layout, the agent's devices and theirs are equal.

use std::{
    collections::BTreeMap,
    env, fs,
    hash::{BuildHasher, RandomState},
    process::Output,
    sync::Mutex,
};

use crate::draws::{Draws, Layout};
use crate::witness::{Devices, Labels, Witness, devices_of, labels_of, mig_labels, nodes_of, of_mig};
use crate::{
    built,
    common::{Agent, Sim, myself},
};
use gputenancy_agent::kubelet::{
    Config,
    cdi::{self, Driver},
};
use gputenancy_crds::AgentStep;
use proptest::test_runner::Config as ProptestConfig;
use silicon::{
    Machine,
    board::{Board, Placement, Variant},
    boards,
};

/// One of so many cases of a property is a layout: each starts four programs. At least one for each board.
const CASES: usize = 50;
const GPUS: u32 = 2;
/// Replays the layouts of another run.
const SEED: &str = "DRIFT_SEED";

/// Every MIG board, in both variants where they differ.
fn machines() -> Vec<(&'static str, Variant)> {
    let variants = |board: &Board| {
        let geometry = board.geometry.as_ref().unwrap();
        let flipped = (geometry.gi_ids_normal != geometry.gi_ids_flipped).then_some(Variant::Flipped);
        std::iter::once(Variant::Normal).chain(flipped).collect::<Vec<_>>()
    };
    let keys = boards::mig_keys().into_iter();
    keys.flat_map(|key| variants(&boards::load(key).unwrap()).into_iter().map(move |variant| (key, variant))).collect()
}

#[test]
fn nvidia_programs_read_back_random_layouts_over_all_boards() {
    let seed = env::var(SEED).map_or_else(|_| RandomState::new().hash_one(0), |text| text.parse().unwrap());
    let machines = machines();
    let layouts = usize::try_from(ProptestConfig::default().cases).unwrap() / CASES;
    let layouts = layouts.max(machines.len());
    let share = |at: usize| layouts / machines.len() + usize::from(at < layouts % machines.len());
    let next = Mutex::new(0..machines.len());
    let (partitioned, failures) = (Mutex::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(at) = { next.lock().unwrap().next() } {
            match on_a_machine(machines[at], seed.wrapping_add(at as u64), share(at)) {
                Ok(count) => *partitioned.lock().unwrap() += count,
                Err(output) => failures.lock().unwrap().push(format!("{:?}: {output}", machines[at])),
            }
        }
    };
    std::thread::scope(|scope| {
        let others = std::thread::available_parallelism().map_or(0, |all| all.get().min(4) - 1);
        (0..others).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "replay with {SEED}={seed}\n{}", failures.join("\n"));
    assert_eq!(partitioned.into_inner().unwrap(), layouts);
}

/// Partitions and compares in its own process, which has only the device nodes of its own node.
fn on_a_machine((board, variant): (&str, Variant), seed: u64, layouts: usize) -> Result<usize, String> {
    let sim = Sim::with(board, GPUS, |options| {
        fs::create_dir_all(options.root.join("dev")).unwrap();
        (options.devices, options.variant) = (true, variant);
        options.tool = Some(built::binary("nvsim"));
    });
    let case = serde_json::to_string(&(&sim.options.root, board, variant, seed, layouts)).unwrap();
    let Output { status, stdout, stderr } =
        myself("drift::node_process").env("DRIFT_CASE", case).env("NVSIM_DEV", sim.options.dev()).output().unwrap();
    let (output, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let count = output.lines().find_map(|line| line.strip_prefix("partitioned ")?.parse().ok());
    count.filter(|_| status.success()).ok_or_else(|| format!("{output}{errors}"))
}

/// Not a test: the process that partitions one node.
#[tokio::test]
async fn node_process() {
    let Ok(case) = env::var("DRIFT_CASE") else { return };
    let (root, board, variant, seed, layouts): (std::path::PathBuf, String, Variant, u64, usize) =
        serde_json::from_str(&case).unwrap();
    let mut node = Node::at(root, &board, variant).await;
    let mut draws = Draws::new(seed, &node.board, variant);
    let mut before: Vec<Layout> = vec![Layout::default(); GPUS as usize];
    for nth in 0..layouts {
        let wanted: Vec<Layout> = before.iter().map(|layout| draws.after(layout)).collect();
        let old = node.machine();
        node.partition(&wanted).await;
        assert_kept(&old, &node.machine(), &wanted);
        node.compare(&wanted, &format!("layout {nth}: {wanted:?}, after {before:?}"));
        before = wanted;
    }
    println!("\npartitioned {layouts}");
}

/// Instances that both layouts have are neither destroyed nor created again.
fn assert_kept(old: &Machine, new: &Machine, wanted: &[Layout]) {
    for ((old, new), wanted) in old.gpus.iter().zip(&new.gpus).zip(wanted) {
        let wanted_at =
            |p: Placement, profile: u32| wanted.instances.iter().any(|w| w.start == p.start && w.id == profile);
        for kept in old.instances.iter().filter(|gi| wanted.mig && wanted_at(gi.placement, gi.profile)) {
            assert!(new.instances.contains(kept), "{kept:?} was not kept: {:?}", new.instances);
        }
    }
}

/// An agent on a simulated driver, and NVIDIA's programs.
struct Node {
    options: silicon::install::Options,
    store: silicon::Store,
    board: Board,
    variant: Variant,
    witness: Witness,
    agent: Agent,
    uuids: Vec<String>,
}

impl Node {
    async fn at(root: std::path::PathBuf, board: &str, variant: Variant) -> Self {
        let options = crate::common::options(&root, board, GPUS);
        let store = silicon::Store::new(options.state());
        let machine = store.read().unwrap();
        let mut agent = Agent::on(&root);
        agent.uuid().await;
        let uuids = machine.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let witness = Witness::of(&options, &machine);
        Self { board: options.boards[0].clone(), options, store, variant, witness, agent, uuids }
    }

    fn machine(&self) -> Machine {
        (*self.store.read().unwrap()).clone()
    }

    async fn partition(&mut self, wanted: &[Layout]) {
        let gpus = wanted.iter().zip(&self.uuids).map(|(layout, uuid)| layout.spec(uuid));
        self.agent.want_all(gpus.collect());
        self.agent.converge().await;
        let state = self.agent.state.borrow().clone();
        assert!(state.gpus.values().all(|gpu| gpu.step == AgentStep::Steady), "{:?} for {wanted:?}", state.gpus);
    }

    /// Compares with both programs, which run at the same time.
    fn compare(&self, wanted: &[Layout], case: &str) {
        let (labels, toolkit) = (self.witness.feature_discovery(), self.witness.toolkit());
        let (labels, devices) = (labels_of(&labels.text()), toolkit.devices());
        assert_eq!(of_mig(&labels), self.labels(wanted), "gpu-feature-discovery, {case}");
        assert_eq!(labels["nvidia.com/gpu.count"], GPUS.to_string(), "{case}");
        let whole = wanted.iter().any(|layout| !layout.mig);
        assert_eq!(labels["nvidia.com/gpu.replicas"], i32::from(whole).to_string(), "{case}");
        let mut nodes: Vec<&Vec<String>> = devices.values().collect();
        nodes.sort();
        assert_eq!(nodes, self.nodes(wanted).iter().collect::<Vec<_>>(), "nvidia-ctk, {case}");
        assert_eq!(self.devices(), devices, "the agent's CDI specification and nvidia-ctk's, {case}");
        assert_eq!(
            self.amounts(),
            amounts(&labels),
            "the agent's resources and gpu-feature-discovery's counts, {case}"
        );
    }

    /// Labels of a layout, by the board's data.
    fn labels(&self, wanted: &[Layout]) -> Labels {
        mig_labels(&self.board, wanted.iter().flat_map(|layout| &layout.instances).map(|w| w.profile.as_str()))
    }

    /// Device nodes of a layout's devices, by the board's data.
    fn nodes(&self, wanted: &[Layout]) -> Vec<Vec<String>> {
        let geometry = self.board.geometry.as_ref().unwrap();
        let mut nodes = Vec::new();
        for (gpu, layout) in (0..).zip(wanted) {
            let gi = |start, size| geometry.gi_id(self.variant, Placement { start, size }).unwrap();
            nodes.extend(layout.instances.iter().map(|w| nodes_of(gpu, gi(w.start, w.size), 0)));
            nodes.extend((!layout.mig).then(|| vec![format!("/dev/nvidia{gpu}")]));
        }
        nodes.sort();
        nodes
    }

    /// Device nodes in the agent's CDI specification, by UUID.
    fn devices(&self) -> Devices {
        let (host_root, dev_root) = (self.options.root.clone(), self.options.dev());
        let config = Config { host_root, dev_root, ..Config::default() };
        let view = self.agent.view.borrow();
        assert!(view.devices.iter().all(|device| device.advertised() && device.healthy));
        let spec = cdi::render(&view.devices, &Driver::find(&config, &self.options.driver_root));
        // a layout without devices has no specification
        let by_name = spec.as_ref().map(devices_of).unwrap_or_default();
        view.devices.iter().map(|device| (device.id.to_string(), by_name[&cdi::name(&device.id)].clone())).collect()
    }

    /// The agent's devices by MIG resource.
    fn amounts(&self) -> BTreeMap<String, usize> {
        let mut amounts = BTreeMap::new();
        for device in self.agent.view.borrow().devices.iter().filter(|device| device.mig.is_some()) {
            *amounts.entry(device.resource.clone()).or_default() += 1;
        }
        amounts
    }
}

/// Devices by MIG resource in the labels.
fn amounts(labels: &Labels) -> BTreeMap<String, usize> {
    let counts = labels.iter().filter(|(key, _)| key.starts_with("nvidia.com/mig-"));
    counts.filter_map(|(key, value)| Some((key.strip_suffix(".count")?.to_owned(), value.parse().unwrap()))).collect()
}
