//! Programs that read NVML with the view in place of the driver's library, each in a mount namespace as in a container.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use gputenancy_ledger::{Limits, Mapped, OnMissing, Usage};
use silicon::{
    Store,
    board::Variant,
    boards,
    install::{Options, install},
    operations,
};

use crate::built;

const MIB: u64 = 1 << 20;
/// MiB that the agent reserves for a context.
const CONTEXT: u64 = 512;
/// Lists of the compute processes of a device.
const COMPUTE: [&str; 4] = [
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetRunningProcessDetailList compute",
];
/// Lists that a share does not have.
const EMPTY: [&str; 8] = [
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetRunningProcessDetailList graphics",
    "nvmlDeviceGetRunningProcessDetailList mps",
];

/// What `nvml-work` prints of a device: the answer of each function.
type Shown = BTreeMap<String, String>;

/// A node with two GPUs without device nodes.
struct Node {
    root: tempfile::TempDir,
    store: Store,
}

/// A container's share of a device.
struct Share {
    folder: PathBuf,
    limits: Mapped<Limits>,
    uuid: String,
}

/// A program that holds memory until it is killed.
struct Holder {
    child: Child,
    /// Open until it ends, so that it can print.
    _output: BufReader<ChildStdout>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let options = Options {
            root: root.path().into(),
            driver_root: "/drv".into(),
            persistent: "/var/lib/nvsim".into(),
            library: built::library(),
            cuda: None,
            tool: None,
            node: "node".into(),
            boards: vec![boards::load("h100-80gb").unwrap()],
            variant: Variant::Normal,
            gpus: 2,
            latency_permille: 0,
            devices: false,
        };
        let store = install(&options).unwrap();
        let libraries = root.path().join("libraries");
        fs::create_dir(&libraries).unwrap();
        for (name, library) in [
            ("nvml.so", "libnvml_sim.so"),
            ("cuda.so", "libcuda_sim.so"),
            ("view.so", "libgputenancy_nvml_view.so"),
            ("shim.so", "libgputenancy_cuda.so"),
        ] {
            symlink(built::shared(library), libraries.join(name)).unwrap();
        }
        Self { root, store }
    }

    fn gpu(&self, index: usize) -> String {
        self.store.read().unwrap().gpus[index].uuid.clone()
    }

    /// A share of a device, with MiB.
    fn share(&self, name: &str, uuid: &str, memory: u64) -> Share {
        let folder = self.root.path().join(name);
        fs::create_dir(&folder).unwrap();
        let limits = Mapped::<Limits>::create(&folder.join("limits")).unwrap();
        limits.write(uuid, memory * MIB, CONTEXT * MIB, OnMissing::Deny);
        Mapped::<Usage>::create(&folder.join("usage")).unwrap();
        Share { folder, limits, uuid: uuid.to_owned() }
    }

    /// A program in a container with this folder as its share.
    fn program(&self, share: &Path, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/in-container"));
        command.arg(self.root.path().join("libraries")).arg(share).arg(built::binary(name)).args(arguments);
        command.env("NVSIM_STATE", self.store.dir()).env("NVSIM_DEV", "all").stdout(Stdio::piped());
        command
    }

    /// Allocates blocks of 64 MiB on the device of the share.
    fn holder(&self, share: &Share, count: &str) -> Holder {
        let mut command = self.program(&share.folder, "cuda-work", &["allocate", "--count", count, "--hold"]);
        let mut child = command.env("CUDA_VISIBLE_DEVICES", &share.uuid).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("granted={count} code=0\n"));
        Holder { child, _output: output }
    }

    /// What programs in a container with this folder see of a device.
    fn shown(&self, share: &Path, uuid: &str) -> Shown {
        let output = self.program(share, "nvml-work", &[]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let own = text
            .split("device ")
            .find_map(|device| device.strip_prefix(uuid))
            .unwrap_or_else(|| panic!("{uuid} is not in {text}"));
        let answers = own.lines().filter_map(|line| line.split_once(" code="));
        answers.map(|(call, answer)| (call.to_owned(), answer.to_owned())).collect()
    }

    /// What `nvidia-smi` prints.
    fn smi(&self, share: &Share, arguments: &[&str]) -> String {
        // the script passes its arguments to a shell, which sets the name of the program
        let run = "exec -a nvidia-smi \"$@\"";
        let program = built::binary("nvsim");
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/in-container"));
        command.arg(self.root.path().join("libraries")).arg(&share.folder).args(["bash", "-c", run, "bash"]);
        command.arg(program).args(arguments).env("NVSIM_STATE", self.store.dir()).env("NVSIM_DEV", "all");
        let output = command.output().unwrap();
        assert!(output.status.success(), "nvidia-smi {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Share {
    /// Memory that both versions of the function show, in MiB.
    fn memory(shown: &Shown) -> &str {
        let [first, second] = ["", "_v2"].map(|version| shown[&format!("nvmlDeviceGetMemoryInfo{version}")].as_str());
        assert_eq!(first, second);
        first
    }
}

/// All lists have these compute processes, and no other process.
fn assert_processes(shown: &Shown, expected: &[(u32, u64)]) {
    let list = expected.iter().map(|(pid, mib)| format!(" {pid}:{mib}")).collect::<Vec<_>>().concat();
    for call in COMPUTE {
        assert_eq!(shown[call], format!("0{list}"), "{call}");
    }
    for call in EMPTY {
        assert_eq!(shown[call], "0", "{call}");
    }
    for call in ["nvmlDeviceGetEncoderSessions", "nvmlDeviceGetFBCSessions", "nvmlDeviceGetAccountingPids"] {
        assert_eq!(shown[call], "0 count=0", "{call}");
    }
    assert_eq!(shown["nvmlDeviceGetProcessUtilization"], "6 count=0", "no sample");
}

#[test]
fn container_sees_its_share_and_its_own_processes_and_none_of_its_neighbour() {
    let node = Node::new();
    let gpu = node.gpu(0);
    let (share, neighbour) = (node.share("own", &gpu, 4096), node.share("neighbour", &gpu, 8192));
    let shown = || node.shown(&share.folder, &gpu);
    assert_eq!(Share::memory(&shown()), "0 total=4096 used=0 free=4096");
    let other = node.holder(&neighbour, "32");
    let first = node.holder(&share, "16");
    // the context of the first process is on top of the limit
    assert_eq!(Share::memory(&shown()), "0 total=4096 used=1024 free=3072");
    assert_processes(&shown(), &[(first.child.id(), 1024 + CONTEXT)]);
    let second = node.holder(&share, "4");
    assert_eq!(Share::memory(&shown()), "0 total=4096 used=1792 free=2304");
    assert_processes(&shown(), &[(first.child.id(), 1024 + CONTEXT), (second.child.id(), 256 + CONTEXT)]);
    // without the view both see all
    fs::create_dir(node.root.path().join("none")).unwrap();
    let whole = node.shown(&node.root.path().join("none"), &gpu);
    for holder in [&other, &first, &second] {
        assert!(whole[COMPUTE[0]].contains(&format!(" {}:", holder.child.id())), "{whole:?}");
    }
    drop(first);
    assert_eq!(Share::memory(&shown()), "0 total=4096 used=256 free=3840");
    assert_processes(&shown(), &[(second.child.id(), 256 + CONTEXT)]);
    assert_processes(&node.shown(&neighbour.folder, &gpu), &[(other.child.id(), 2048 + CONTEXT)]);
}

#[test]
fn share_of_a_mig_instance_hides_its_neighbours_also_in_the_lists_of_the_gpu() {
    let node = Node::new();
    operations::partition(&node.store, 0, &["3g.40gb".to_owned()]).unwrap();
    let (gpu, mig) = (node.gpu(0), node.store.read().unwrap().mig_devices()[0].uuid());
    let (share, neighbour) = (node.share("own", &mig, 4096), node.share("neighbour", &mig, 4096));
    let (own, other) = (node.holder(&share, "16"), node.holder(&neighbour, "32"));
    for device in [&mig, &gpu] {
        let shown = node.shown(&share.folder, device);
        assert_eq!(Share::memory(&shown), "0 total=4096 used=1024 free=3072", "{device}");
        assert_processes(&shown, &[(own.child.id(), 1024 + CONTEXT)]);
    }
    let list = node.smi(&share, &[]);
    assert!(
        list.contains(&format!(" {} ", own.child.id())) && !list.contains(&format!(" {} ", other.child.id())),
        "{list}"
    );
}

#[test]
fn another_gpu_and_a_container_without_limits_are_shown_by_the_driver() {
    let node = Node::new();
    let (gpu, other) = (node.gpu(0), node.gpu(1));
    let share = node.share("share", &gpu, 4096);
    let holder = node.holder(&share, "1");
    assert_eq!(Share::memory(&node.shown(&share.folder, &gpu)), "0 total=4096 used=64 free=4032");
    let shown = node.shown(&share.folder, &other);
    assert_eq!(shown["nvmlDeviceGetMemoryInfo_v2"], "0 total=81559 used=0 free=81047");
    assert_eq!(shown[COMPUTE[2]], "0", "no process is there");
    fs::create_dir(node.root.path().join("none")).unwrap();
    let whole = node.shown(&node.root.path().join("none"), &gpu);
    assert!(whole["nvmlDeviceGetMemoryInfo_v2"].starts_with("0 total=81559 "), "{whole:?}");
    assert!(whole[COMPUTE[2]].contains(&format!(" {}:", holder.child.id())), "{whole:?}");
}

#[test]
fn share_that_cannot_be_read_shows_no_process_and_broken_limits_fail() {
    let node = Node::new();
    let gpu = node.gpu(0);
    let (share, neighbour) = (node.share("share", &gpu, 4096), node.share("neighbour", &gpu, 4096));
    let _other = node.holder(&neighbour, "1");
    fs::write(share.folder.join("usage"), "short").unwrap();
    let shown = node.shown(&share.folder, &gpu);
    assert_eq!(Share::memory(&shown), "0 total=4096 used=0 free=4096");
    assert_processes(&shown, &[]);
    fs::write(share.folder.join("limits"), vec![0xff; 4096]).unwrap();
    let shown = node.shown(&share.folder, &gpu);
    for call in ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"] {
        assert!(shown[call].starts_with("999 total=0 "), "{call}: {}", shown[call]);
    }
    for call in COMPUTE.iter().chain(&EMPTY) {
        assert_eq!(shown[*call], "999", "{call}");
    }
}

#[test]
fn forged_usage_shows_nothing_of_others_and_ends_no_program() {
    let node = Node::new();
    let gpu = node.gpu(0);
    let (share, neighbour) = (node.share("share", &gpu, 4096), node.share("neighbour", &gpu, 4096));
    let other = node.holder(&neighbour, "1");
    let path = share.folder.join("usage");
    let mut bytes = fs::read(&path).unwrap();
    // magic and version stay
    bytes[16..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let shown = node.shown(&share.folder, &gpu);
    assert!(!shown[COMPUTE[0]].contains(&other.child.id().to_string()), "{shown:?}");
    assert!(Share::memory(&shown).starts_with("0 total=4096 "), "{shown:?}");
}

#[test]
fn driver_that_is_not_initialised_or_does_not_know_the_device_answers_with_its_code() {
    let node = Node::new();
    let share = node.share("share", &node.gpu(0), 4096);
    let output = node.program(&share.folder, "nvml-work", &[]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("before nvmlInit code=1\nafter nvmlInit code=2\n"), "{text}");
}

#[test]
fn changed_limit_is_shown_at_once_and_usage_never_exceeds_it() {
    let node = Node::new();
    let gpu = node.gpu(0);
    let share = node.share("share", &gpu, 4096);
    let _holder = node.holder(&share, "16");
    share.limits.resize(512 * MIB);
    assert_eq!(Share::memory(&node.shown(&share.folder, &gpu)), "0 total=512 used=512 free=0");
    share.limits.resize(2048 * MIB);
    assert_eq!(Share::memory(&node.shown(&share.folder, &gpu)), "0 total=2048 used=1024 free=1024");
}

#[test]
fn nvidia_smi_shows_the_share_as_cuda_does() {
    let node = Node::new();
    let gpu = node.gpu(0);
    let (share, neighbour) = (node.share("share", &gpu, 4096), node.share("neighbour", &gpu, 8192));
    let (own, _other) = (node.holder(&share, "16"), node.holder(&neighbour, "32"));
    let fields = "--query-gpu=name,uuid,memory.total,memory.used,memory.free,utilization.gpu";
    let shown = node.smi(&share, &[fields, "--format=csv,noheader,nounits", "-i", "0"]);
    assert_eq!(shown, format!("NVIDIA H100 80GB HBM3, {gpu}, 4096, 1024, 3072, 0\n"));
    let apps = node.smi(&share, &["--query-compute-apps=pid,used_memory", "--format=csv,noheader"]);
    assert_eq!(apps, format!("{}, 1536 MiB\n", own.child.id()));
    let table = node.smi(&share, &[]);
    assert!(table.contains("1024MiB / 4096MiB") && table.contains("cuda-work"), "{table}");
    // a second process counts its context
    let output = node.program(&share.folder, "cuda-work", &["show"]).output().unwrap();
    let cuda = String::from_utf8(output.stdout).unwrap();
    assert_eq!(cuda, "total=4096MiB free=2560MiB device=4096MiB\n");
}

#[test]
fn library_exports_the_functions_of_the_table_and_nothing_else() {
    let library = built::shared("libgputenancy_nvml_view.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let table = include_str!("../src/table.rs");
    let declared = table.lines().filter_map(|line| line.strip_prefix("    fn nvml")?.split_once('('));
    let declared: Vec<String> = declared.map(|(name, _)| format!("nvml{name}")).collect();
    assert_eq!(exported, declared.iter().map(String::as_str).collect());
}
