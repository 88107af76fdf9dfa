//! What the node agent reads of this machine, by its own code: the board, its MIG profiles, processes, idle memory and faults.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use gputenancy_agent::gpu::{
    Calls, Deadlines, DriverRoot, Inventory, NodePaths, NvmlThread, ObservedBoard, ObservedGpu, Scan,
    fault_class::{FaultClass, text},
    faults::KnownFaults,
};
use gputenancy_crds::Health;
use gputenancy_nvml::InstanceProfile;
use silicon::{Board, boards};
use tokio::runtime::{Builder, Runtime};

use crate::{
    container::{Container, MIB, first_line},
    report::Report,
};

/// Memory of an idle device up to which the agent does not look for the program that uses it, in MiB (`agent/daemon/src/gpu/reader/mod.rs`).
const IDLE_MIB: u64 = 128;
/// How often each kind of scan is timed.
const SCANS: usize = 50;
/// Memory by which an instance may differ from the board's file, in MiB: drivers differ.
const OTHER_DRIVER_MIB: u64 = 512;
/// How long is waited for what the driver does by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// The agent's reader and GPU 0.
struct Agent {
    runtime: Runtime,
    nvml: NvmlThread,
}

impl Agent {
    fn start(container: &Container) -> Result<Self, Box<dyn Error>> {
        let root = |path| DriverRoot { host: container.driver_root.clone(), local: path };
        let paths = NodePaths {
            driver_roots: vec![root(container.driver_root.clone())],
            proc_root: "/proc".into(),
            sys_root: "/sys".into(),
        };
        let nvml = NvmlThread::start(paths, Calls::default(), Deadlines::default())?;
        Ok(Self { runtime: Builder::new_current_thread().enable_all().build()?, nvml })
    }

    fn read(&self, scan: Scan) -> Result<Inventory, Box<dyn Error>> {
        Ok(self.runtime.block_on(self.nvml.read(scan, false, KnownFaults::default()))?)
    }

    fn gpu(&self, scan: Scan) -> Result<ObservedGpu, Box<dyn Error>> {
        Ok(self.read(scan)?.gpus.into_iter().next().ok_or("the agent sees no GPU")?)
    }

    /// Scans until something holds of GPU 0; milliseconds, or `None` if it never did.
    fn until(&self, holds: impl Fn(&ObservedGpu) -> bool) -> Result<Option<u128>, Box<dyn Error>> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if holds(&self.gpu(Scan::Quick)?) {
                return Ok(Some(begun.elapsed().as_millis()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }
}

/// The agent's whole view of an idle GPU, of one with a program, and after the program's end.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let agent = Agent::start(container)?;
    let inventory = agent.read(Scan::Full)?;
    let gpu = agent.gpu(Scan::Full)?;
    identity(&inventory, &gpu, report);
    board(&gpu.board, report);
    idle(&gpu, report);
    times(&agent, report)?;
    process(container, &agent, report)?;
    fault(container, &agent, report)
}

/// A number, if there is one.
fn known<T: ToString>(number: Option<T>) -> String {
    number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
}

fn identity(inventory: &Inventory, gpu: &ObservedGpu, report: &mut Report) {
    let Inventory { driver_version, cuda_version, memory_scrub, .. } = inventory;
    let ObservedGpu { uuid, minor, pci_bus_id, numa, mode, clients, .. } = gpu;
    let numa = known(*numa);
    let mode = mode.map_or("absent", |mode| if mode.current { "on" } else { "off" });
    let found = format!(
        "driver {driver_version}, CUDA {cuda_version}, /dev/nvidia{minor}, PCI {pci_bus_id}, NUMA node {numa}, MIG mode {mode}, {} processes, \
         freed memory {memory_scrub:?}",
        clients.len(),
    );
    let whole = uuid.starts_with("GPU-") && gpu.failure.is_none() && gpu.health == Health::Healthy;
    report.holds("agent", "a full scan finds a healthy GPU and all of its identity", &found, whole);
}

/// The board against the data that the simulator and the planner's tests use.
fn board(board: &ObservedBoard, report: &mut Report) {
    let file = boards::keys().into_iter().filter_map(|key| boards::load(key).ok()).find(|b| b.name == board.name);
    let ObservedBoard { name, memory_mib, reserved_mib, mode_needs_reset, profiles, .. } = board;
    let reserved = known(*reserved_mib);
    let found = format!("{name}: {memory_mib} MiB, reserved {reserved} MiB, mode needs a reset: {mode_needs_reset}");
    let Some(file) = file else {
        report.measured("agent", "the board; `integration/sim/silicon/boards` has none of this name", &found);
        return;
    };
    let same = file.memory_mib == *memory_mib && file.arch.mode_needs_reset() == *mode_needs_reset;
    report.holds(
        "agent",
        &format!("the board is as in `integration/sim/silicon/boards/{}.yaml`", file.key),
        &found,
        same,
    );
    if profiles.is_empty() {
        report.measured("agent", "MIG profiles", "this driver lists none while MIG mode is off");
        return;
    }
    let differences = differences(board, &file);
    let found = if differences.is_empty() {
        format!("{} profiles, in id, slices, size, starts, maximum, multiprocessors and engines", profiles.len())
    } else {
        differences.join("; ")
    };
    report.holds("agent", "MIG profiles are as in that file", &found, differences.is_empty());
    let off: Vec<(String, u64, u64)> = memory(board, &file).filter(|(_, found, expected)| found != expected).collect();
    let near = off.iter().all(|(_, found, expected)| found.abs_diff(*expected) <= OTHER_DRIVER_MIB);
    let found: Vec<String> =
        off.iter().map(|(name, found, expected)| format!("{name} {found} MiB, file {expected}")).collect();
    let found = if found.is_empty() { "all as in the file".to_owned() } else { found.join("; ") };
    report.holds("agent", &format!("memory of instances differs by at most {OTHER_DRIVER_MIB} MiB"), &found, near);
}

/// Name, memory by the driver, and memory by the file, of each profile, in MiB.
fn memory<'a>(board: &'a ObservedBoard, known: &'a Board) -> impl Iterator<Item = (String, u64, u64)> + 'a {
    let of = |profile: &'a InstanceProfile| {
        let expected = known.profiles.iter().find(|expected| expected.name == profile.name)?;
        Some((profile.name.clone(), profile.memory_mib, expected.memory_mib))
    };
    board.profiles.iter().filter_map(of)
}

/// What the driver says of profiles, where it is not what the file says.
fn differences(board: &ObservedBoard, known: &Board) -> Vec<String> {
    let mut differences = Vec::new();
    for profile in &board.profiles {
        let Some(expected) = known.profiles.iter().find(|expected| expected.name == profile.name) else {
            differences.push(format!("{} is missing in the file: {profile:?}", profile.name));
            continue;
        };
        let numbers = |list: [(&'static str, u64, u64); 10]| list.into_iter().filter(|(_, a, b)| a != b);
        let engines = profile.engines;
        let unequal = numbers([
            ("id", profile.id.into(), expected.id.into()),
            ("slices", profile.slices.into(), expected.slices.into()),
            ("size", profile.size.into(), expected.size.into()),
            ("max", profile.max.into(), expected.max_instances.into()),
            ("multiprocessors", profile.multiprocessors.into(), expected.engines.sm.into()),
            ("copy engines", engines.copy.into(), expected.engines.copy_engines.into()),
            ("decoders", engines.decoder.into(), expected.engines.decoders.into()),
            ("encoders", engines.encoder.into(), expected.engines.encoders.into()),
            ("JPEG", engines.jpeg.into(), expected.engines.jpeg.into()),
            ("OFA", engines.ofa.into(), expected.engines.ofa.into()),
        ]);
        differences.extend(unequal.map(|(what, found, file)| format!("{} {what}: {found}, file {file}", profile.name)));
        if profile.starts != expected.starts {
            differences.push(format!("{} starts: {:?}, file {:?}", profile.name, profile.starts, expected.starts));
        }
    }
    let listed = |name: &str| board.profiles.iter().any(|profile| profile.name == name);
    let unlisted = known.profiles.iter().filter(|profile| !listed(&profile.name));
    differences.extend(unlisted.map(|profile| format!("{} is not listed by the driver", profile.name)));
    differences
}

fn idle(gpu: &ObservedGpu, report: &mut Report) {
    let Some(memory) = gpu.memory.get(&None) else {
        report.measured("agent", "memory of an idle GPU", "this driver does not tell");
        return;
    };
    let found = format!("used {} MiB, reserved {} MiB", memory.used / MIB, memory.reserved / MIB);
    let what = format!("an idle GPU uses no more than {IDLE_MIB} MiB, without what the driver reserves");
    report.holds("agent", &what, &found, gpu.clients.is_empty() && memory.used / MIB <= IDLE_MIB);
}

fn times(agent: &Agent, report: &mut Report) -> Result<(), Box<dyn Error>> {
    for (scan, name) in [(Scan::Quick, "quick"), (Scan::Full, "full")] {
        let mut times = Vec::new();
        for _ in 0..SCANS {
            let begun = Instant::now();
            agent.read(scan)?;
            times.push(begun.elapsed());
        }
        times.sort();
        let of = |part: usize| times.get(part * (SCANS - 1) / 100).copied().unwrap_or_default().as_secs_f64() * 1e3;
        let found = format!("median {:.2} ms, longest {:.2} ms", of(50), of(100));
        report.measured("agent", &format!("{SCANS} {name} scans"), &found);
    }
    Ok(())
}

/// A program is seen with its memory, and its memory is free soon after it was killed.
fn process(container: &Container, agent: &Agent, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let mut child = container.begin(None, "allocate --count 16 --hold")?;
    first_line(&mut child)?;
    let pid = child.id();
    let of = |gpu: &ObservedGpu| gpu.clients.iter().find(|client| client.pid == pid).map(|client| client.memory);
    let seen = agent.until(|gpu| of(gpu).is_some())?;
    let memory = of(&agent.gpu(Scan::Quick)?).flatten();
    let found = format!("after {} ms, with {} MiB", known(seen), known(memory.map(|bytes| bytes / MIB)));
    let ok = seen.is_some() && memory.is_some_and(|bytes| bytes >= 1024 * MIB);
    report.holds("agent", "a program with 1 GiB is listed by its process id, with its memory", &found, ok);
    child.kill()?;
    child.wait()?;
    let gone = agent.until(|gpu| of(gpu).is_none() && gpu.unexplained.is_empty())?;
    let what = "after SIGKILL and its end: no process, and memory of an idle GPU";
    report.holds("agent", what, &format!("after {} ms", known(gone)), gone.is_some());
    Ok(())
}

/// An invalid access of a program is an event of the driver, and of a class that leaves the GPU in use.
fn fault(container: &Container, agent: &Agent, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let known = agent.read(Scan::Quick)?.faults.len();
    let output = container.work(None, "fault")?;
    let begun = Instant::now();
    let mut inventory = agent.read(Scan::Quick)?;
    while inventory.faults.len() == known && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
        inventory = agent.read(Scan::Quick)?;
    }
    let new: Vec<_> = inventory.faults.iter().skip(known).collect();
    let names: Vec<String> = new.iter().map(|fault| text(fault.kind)).collect();
    let first = output.text.lines().next().unwrap_or_default().to_owned();
    let found = format!("{first}; events: {}", names.join(", "));
    let of_program = !new.is_empty() && new.iter().all(|fault| FaultClass::of(fault.kind) == FaultClass::Application);
    let healthy = inventory.gpus.iter().all(|gpu| gpu.health == Health::Healthy);
    let what = "an invalid access is an error of its program: the driver reports a fault of a program, and the GPU stays healthy";
    report.holds("agent", what, &found, of_program && healthy && output.number("code=") == Some(700.0));
    Ok(())
}
