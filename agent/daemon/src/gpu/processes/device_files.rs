//! Processes that have NVIDIA's device files open. An instance is destroyed only if neither NVML nor this finds a process.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ffi::{CStr, CString},
    fs::{self, File},
    iter,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use gputenancy_nvml::Process;
use nix::{
    dir::Dir,
    fcntl::{AtFlags, OFlag, readlinkat},
    sys::{
        stat::{Mode, SFlag, fstat, fstatat, major, minor},
        statfs::{PROC_SUPER_MAGIC, fstatfs},
    },
};

use super::{
    cap_minors::{CapMinors, GPU_MAJOR, caps_major},
    process_origin::{command, pod_of, text},
};
use crate::gpu::inventory::Inventory;

/// Files of each process that a scan reads in any case, in ascending order.
const FREE: usize = 64;
/// Further files that a scan reads of all processes of one pod. The kernel keeps an entry of about a kilobyte for each file that is listed or read, and
/// counts it as memory of the agent.
const MOST_OF_POD: usize = 16_384;
/// A pod with more files is logged once in this time.
const QUIET: Duration = Duration::from_mins(10);

/// When each pod with too many files was last logged, by UID.
static LOGGED: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

/// Processes other than this one that have one of these capability files open.
pub fn holders_of(proc_root: &Path, minors: &[u32]) -> Vec<u32> {
    let held = open_files(proc_root, Kind::Capability).into_iter().filter(|(minor, _)| minors.contains(minor));
    held.map(|(_, pid)| pid).collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Processes other than this one that have a capability file open, each after the minor number of the file.
pub fn capability_holders(proc_root: &Path) -> BTreeSet<(u32, u32)> {
    open_files(proc_root, Kind::Capability)
}

/// Adds processes that have an instance's capability file open, as [`capability_holders`] finds them, to its clients, unless NVML lists them.
pub fn add_holders(inventory: &mut Inventory, held: &BTreeSet<(u32, u32)>, proc_root: &Path, driver_root: &Path) {
    if held.is_empty() {
        return;
    }
    let cap_minors = CapMinors::read(proc_root, driver_root);
    for gpu in &mut inventory.gpus {
        for instance in &gpu.instances {
            let gi = instance.gi;
            let compute = instance.compute.iter().map(|compute| Some(compute.ci));
            let minors = iter::once(None).chain(compute).map(|ci| cap_minors.minor(gpu.minor, gi, ci));
            let minors: Vec<u32> = minors.collect();
            for (_, pid) in held.iter().filter(|(minor, _)| minors.contains(minor)) {
                if !gpu.clients.iter().any(|known| known.pid == *pid && known.gi == Some(gi)) {
                    gpu.clients.push(Process { pid: *pid, gi: Some(gi), ci: None, memory: None });
                }
            }
        }
    }
}

/// Text that names the processes with the GPU's device file open; empty if there are none. Such a process, for example a monitoring
/// daemon, blocks a reset without being a client in NVML.
pub fn describe_holders(proc_root: &Path, gpu_minor: u32) -> String {
    let pids = open_files(proc_root, Kind::Gpu).into_iter().filter(|(minor, _)| *minor == gpu_minor);
    let names: Vec<String> = pids.take(8).map(|(_, pid)| format!("{pid} ({})", command(proc_root, pid))).collect();
    if names.is_empty() { String::new() } else { format!("; /dev/nvidia{gpu_minor} is open in {}", names.join(", ")) }
}

/// Processes other than this one that have the device file of a GPU open, by the minor number of the GPU.
pub fn gpu_holders(proc_root: &Path) -> BTreeMap<u32, BTreeSet<u32>> {
    let mut holders: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (minor, pid) in open_files(proc_root, Kind::Gpu) {
        holders.entry(minor).or_default().insert(pid);
    }
    holders
}

/// A kind of NVIDIA's device files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `/dev/nvidia<minor>`.
    Gpu,
    /// `/dev/nvidia-caps/nvidia-cap<minor>`.
    Capability,
}

impl Kind {
    /// The minor number in the name of a file of this kind.
    fn minor(self, file: &Path) -> Option<u32> {
        let start = match self {
            Self::Gpu => "/dev/nvidia",
            Self::Capability => "/dev/nvidia-caps/nvidia-cap",
        };
        file.to_str()?.strip_prefix(start)?.parse().ok()
    }

    /// Whether a file of this kind can have this major number. `caps` is that of capability files, if it is known.
    fn has_major(self, major: u64, caps: Option<u32>) -> bool {
        match (self, caps) {
            (Self::Gpu, _) => major == u64::from(GPU_MAJOR),
            (Self::Capability, Some(caps)) => major == u64::from(caps),
            // the driver lets the kernel choose one of those it assigns
            (Self::Capability, None) => matches!(major, 234..=254 | 384..=511),
        }
    }
}

/// The minor numbers of NVIDIA's device files that other processes have open, with the processes.
fn open_files(proc_root: &Path, kind: Kind) -> BTreeSet<(u32, u32)> {
    let Ok(root) = File::open(proc_root) else { return BTreeSet::new() };
    // elsewhere the links are symbolic ones, which lead to no open file
    let is_procfs = !fstatfs(&root).is_ok_and(|found| found.filesystem_type() != PROC_SUPER_MAGIC);
    let mut scan = Scan::new(proc_root, root, kind, is_procfs);
    let found = scan.run();
    scan.log();
    found
}

/// One pass over the open files of all processes.
struct Scan<'a> {
    proc_root: &'a Path,
    root: File,
    kind: Kind,
    /// Major number of capability files, if the kernel lists it.
    caps: Option<u32>,
    /// A program can choose the name of a file, for example in a volume at `/dev/nvidia-caps`: the file has to be a device with these numbers.
    is_verified: bool,
    /// The size of a folder of open files is their number: since Linux 6.2.
    is_counted: bool,
    /// By UID of the pod.
    pods: BTreeMap<String, Budget>,
}

/// Files of one pod beyond the first ones of each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Budget {
    /// So many more are read.
    left: usize,
    /// At most so many were not read.
    unread: usize,
}

impl<'a> Scan<'a> {
    fn new(proc_root: &'a Path, root: File, kind: Kind, is_procfs: bool) -> Self {
        let devices = fs::read_to_string(proc_root.join("devices")).unwrap_or_default();
        // this process has files open
        let is_counted = is_procfs && fs::metadata("/proc/self/fd").is_ok_and(|own| own.len() > 0);
        let pods = BTreeMap::new();
        Self { proc_root, root, kind, caps: caps_major(&devices), is_verified: is_procfs, is_counted, pods }
    }

    /// The minor numbers of open files, each with its process.
    fn run(&mut self) -> BTreeSet<(u32, u32)> {
        let own = std::process::id();
        let entries = fs::read_dir(self.proc_root).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut found = BTreeSet::new();
        for pid in pids.filter(|pid| *pid != own) {
            found.extend(self.minors_of(pid).into_iter().map(|minor| (minor, pid)));
        }
        found
    }

    /// The minor numbers among the open files of a process.
    fn minors_of(&mut self, pid: u32) -> BTreeSet<u32> {
        if let Some(minors) = self.minors(pid, &format!("{pid}/fd")) {
            return minors;
        }
        // the first thread has no files after its end, and others may run on
        let tasks = open(&self.root, &format!("{pid}/task")).map(|mut folder| names(&mut folder, usize::MAX));
        let tasks = tasks.unwrap_or_default().into_iter().filter_map(|task| number(&task));
        let mut others = tasks.filter(|task| u32::try_from(*task) != Ok(pid));
        others.find_map(|task| self.minors(pid, &format!("{pid}/task/{task}/fd"))).unwrap_or_default()
    }

    /// The minor numbers among the files of this folder below `root`; `None` without files. Only the numbers are kept: a process can have any number of
    /// files with long names. Names are resolved in the opened folder: from the root of the file system a thousand files take twice as long.
    fn minors(&mut self, pid: u32, path: &str) -> Option<BTreeSet<u32>> {
        let mut folder = open(&self.root, path)?;
        let most = self.most(path, &folder);
        let has_many = most.is_none_or(|most| most > FREE);
        let files = if has_many { self.many(pid, &mut folder, most) } else { names(&mut folder, FREE) };
        let (mut minors, mut has_files) = (BTreeSet::new(), has_many && most.is_some());
        for file in &files {
            let Ok(link) = readlinkat(&folder, file.as_c_str()) else { continue };
            has_files = true;
            let minor = self.kind.minor(Path::new(&link));
            minors.extend(minor.filter(|minor| self.is_device(pid, path, &folder, file, *minor)));
        }
        has_files.then_some(minors)
    }

    /// At most so many files are in this folder of a process or thread; `None`: not known.
    fn most(&self, path: &str, folder: &Dir) -> Option<usize> {
        if self.is_counted {
            return usize::try_from(fstat(folder).ok()?.st_size).ok();
        }
        let status = text(&self.proc_root.join(path).with_file_name("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok())
    }

    /// Names of files that are read of a process with many: those that are read in any case, and as many further ones as its pod has left. To list a file
    /// costs as much as to read it, so the first ones are tried by their numbers.
    fn many(&mut self, pid: u32, folder: &mut Dir, most: Option<usize>) -> Vec<CString> {
        let first = (0..FREE).filter_map(|number| CString::new(number.to_string()).ok());
        // processes of the node itself are not limited
        let pod = pod_of(self.proc_root, pid);
        let budget = pod.map(|uid| self.pods.entry(uid).or_insert(Budget { left: MOST_OF_POD, unread: 0 }));
        let left = budget.as_ref().map_or(usize::MAX, |budget| budget.left);
        let listed = if left == 0 { Vec::new() } else { names(folder, left.saturating_add(FREE)) };
        let further = listed.into_iter().filter(|name| number(name).is_none_or(|number| number >= FREE));
        let further: Vec<CString> = further.take(left).collect();
        if let Some(budget) = budget {
            budget.left = left.saturating_sub(further.len());
            if budget.left == 0 {
                let read = further.len().saturating_add(FREE);
                budget.unread = budget.unread.saturating_add(most.unwrap_or(usize::MAX).saturating_sub(read));
            }
        }
        first.chain(further).collect()
    }

    /// Whether a link with the name of a device leads to this device.
    fn is_device(&self, pid: u32, path: &str, folder: &Dir, file: &CStr, minor: u32) -> bool {
        if !self.is_verified {
            return true;
        }
        let has_major = |major| self.kind.has_major(major, self.caps);
        // A file that was opened for its path only gives no access to the device, and the rules of a pod's cgroup do not apply to it: a pod that may
        // make device nodes can have one of any number. Simulated nodes of the host can be opened in no other way.
        leads_to_device(folder, file, minor, &has_major)
            && !(self.is_path_only(path, file) && pod_of(self.proc_root, pid).is_some())
    }

    /// Whether a file was opened with `O_PATH`, by its flags in `fdinfo`.
    fn is_path_only(&self, path: &str, file: &CStr) -> bool {
        let info = self.proc_root.join(format!("{path}info/{}", file.to_string_lossy()));
        let info = text(&info).unwrap_or_default();
        let flags = info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
        flags.is_some_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_PATH))
    }

    /// Logs pods whose files were not all read.
    fn log(&self) {
        let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|_, at| at.elapsed() < QUIET);
        for (uid, Budget { unread, .. }) in self.pods.iter().filter(|(_, budget)| budget.unread > 0) {
            if let Entry::Vacant(first) = logged.entry(uid.clone()) {
                first.insert(Instant::now());
                tracing::warn!(pod_uid = uid, unread_at_most = unread, "open files of a pod not read: it has too many");
            }
        }
    }
}

/// Whether a link leads to a character device with this minor number, and a major number that satisfies `has_major`.
fn leads_to_device(folder: &Dir, file: &CStr, number: u32, has_major: &dyn Fn(u64) -> bool) -> bool {
    fstatat(folder, file, AtFlags::empty()).is_ok_and(|found| {
        let is_character = found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits();
        is_character && minor(found.st_rdev) == u64::from(number) && has_major(major(found.st_rdev))
    })
}

/// A folder below `root`.
fn open(root: &File, folder: &str) -> Option<Dir> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Dir::openat(root, folder, flags, Mode::empty()).ok()
}

/// The first names in a folder, at most so many. The kernel lists up to 1,365 more at a time.
fn names(folder: &mut Dir, most: usize) -> Vec<CString> {
    // an error may repeat for ever
    let names = folder.iter().map_while(Result::ok).map(|entry| entry.file_name().to_owned());
    names.filter(|name| !name.to_bytes().starts_with(b".")).take(most).collect()
}

/// The number that is the name of a file.
fn number(name: &CStr) -> Option<usize> {
    name.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::gpu::inventory::{ObservedCompute, ObservedGpu, ObservedInstance};

    #[test]
    fn holders_have_exactly_this_capability_file_open() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, target) in [("7", "/dev/nvidia-caps/nvidia-cap84"), ("8", "/dev/nvidia-caps/nvidia-cap840")] {
            fs::create_dir_all(proc.path().join(pid).join("fd")).unwrap();
            symlink(target, proc.path().join(pid).join("fd/3")).unwrap();
        }
        assert_eq!(holders_of(proc.path(), &[84]), [7]);
    }

    #[test]
    fn files_of_a_process_are_those_of_its_threads_after_the_end_of_the_first() {
        let proc = tempfile::tempdir().unwrap();
        // the folder of a thread that has ended, and of a thread of the kernel, is empty
        for folder in ["7/fd", "7/task/7/fd", "7/task/70/fd", "7/task/71/fd", "2/fd", "2/task/2/fd"] {
            fs::create_dir_all(proc.path().join(folder)).unwrap();
        }
        symlink("/dev/nvidia-caps/nvidia-cap84", proc.path().join("7/task/71/fd/3")).unwrap();
        assert_eq!(holders_of(proc.path(), &[84]), [7]);
    }

    /// The descriptors of this process, each a link to its target.
    fn process(proc: &Path, pid: u32, files: impl IntoIterator<Item = (usize, &'static str)>) {
        let folder = proc.join(format!("{pid}/fd"));
        fs::create_dir_all(&folder).unwrap();
        for (number, target) in files {
            symlink(target, folder.join(number.to_string())).unwrap();
        }
    }

    /// A scan of a folder as of a procfs, without its number of files.
    fn verified(proc: &Path, kind: Kind) -> Scan<'_> {
        let scan = Scan::new(proc, File::open(proc).unwrap(), kind, true);
        Scan { is_counted: false, ..scan }
    }

    #[test]
    fn file_with_the_name_of_a_device_does_not_count_unless_it_is_the_device() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("3"), "").unwrap();
        // a character device with the numbers 1 and 3
        symlink("/dev/null", folder.path().join("4")).unwrap();
        symlink("/nowhere", folder.path().join("5")).unwrap();
        let opened = open(&File::open(folder.path()).unwrap(), ".").unwrap();
        let leads = |file: &CStr, number: u32, expected: u64| {
            leads_to_device(&opened, file, number, &|major: u64| major == expected)
        };
        assert!(leads(c"4", 3, 1));
        assert!(!leads(c"4", 5, 1) && !leads(c"4", 3, 195), "another device");
        assert!(!leads(c"3", 0, 0) && !leads(c"5", 3, 1), "no device");

        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 7, [(3, "/dev/nvidia-caps/nvidia-cap4000000"), (4, "/dev/nvidia4000000")]);
        for kind in [Kind::Gpu, Kind::Capability] {
            assert_eq!(verified(proc.path(), kind).run(), BTreeSet::new());
        }
    }

    #[test]
    fn majors_are_those_of_the_driver() {
        let has = Kind::has_major;
        assert!(has(Kind::Gpu, 195, None) && !has(Kind::Gpu, 1, None));
        assert!(has(Kind::Capability, 235, Some(235)) && !has(Kind::Capability, 511, Some(235)));
        // a terminal can have any minor number
        assert!(has(Kind::Capability, 511, None) && !has(Kind::Capability, 136, None));
    }

    #[test]
    fn file_that_was_opened_for_its_path_is_known_by_its_flags() {
        let proc = tempfile::tempdir().unwrap();
        let info = proc.path().join("7/fdinfo");
        fs::create_dir_all(&info).unwrap();
        for (file, flags) in [("3", "012000000"), ("4", "02100002")] {
            fs::write(info.join(file), format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t25\n")).unwrap();
        }
        let scan = verified(proc.path(), Kind::Gpu);
        assert_eq!([c"3", c"4", c"5"].map(|file| scan.is_path_only("7/fd", file)), [true, false, false]);
    }

    #[test]
    fn files_of_a_pod_beyond_its_budget_are_not_read_and_its_neighbour_is_found() {
        const UID: &str = "b6f3a9c2-0000-4000-8000-000000000001";
        let proc = tempfile::tempdir().unwrap();
        let many = 10_000;
        for pid in [7, 8, 9] {
            process(proc.path(), pid, (0..many).map(|number| (number, "/tmp/x")));
            fs::write(proc.path().join(format!("{pid}/status")), "Name:\tx\nFDSize:\t16384\n").unwrap();
        }
        for pid in [7, 8] {
            let folder = proc.path().join(pid.to_string());
            fs::write(folder.join("stat"), format!("{pid} (x) S 1 {pid}")).unwrap();
            fs::write(folder.join("cgroup"), format!("0::/kubepods/burstable/pod{UID}/c\n")).unwrap();
        }
        // a process of the node has no limit
        process(proc.path(), 9, [(many, "/dev/nvidia1")]);
        process(proc.path(), 10, [(3, "/dev/nvidia0")]);
        let mut scan = Scan::new(proc.path(), File::open(proc.path()).unwrap(), Kind::Gpu, false);
        assert_eq!(scan.run(), [(0, 10), (1, 9)].into());
        // of the 16,384 files that both processes could have at most
        let read = MOST_OF_POD - (many - FREE) + FREE;
        assert_eq!(scan.pods, [(UID.to_owned(), Budget { left: 0, unread: 16_384 - read })].into());
        // the first files of each process are read all the same
        fs::remove_file(proc.path().join("8/fd/63")).unwrap();
        process(proc.path(), 8, [(63, "/dev/nvidia2")]);
        assert_eq!(scan.minors_of(8), [2].into());
        assert_eq!(scan.pods[UID].left, 0);
    }

    /// Not a check: prints how long a scan of this machine takes.
    #[test]
    #[ignore = "a measurement"]
    fn scan_of_this_machine() {
        let mut took: Vec<_> = (0..100)
            .map(|_| {
                let begun = std::time::Instant::now();
                capability_holders(Path::new("/proc"));
                begun.elapsed()
            })
            .collect();
        took.sort();
        println!("p50 {:?}, largest {:?}", took[50], took[99]);
    }

    #[test]
    fn gpu_holders_have_the_file_of_a_gpu_open_and_not_another_file_of_the_driver() {
        let proc = tempfile::tempdir().unwrap();
        let files = [("7", "nvidia0"), ("7", "nvidia1"), ("8", "nvidia1"), ("9", "nvidiactl"), ("9", "nvidia-uvm")];
        for (fd, (pid, file)) in files.iter().enumerate() {
            fs::create_dir_all(proc.path().join(pid).join("fd")).unwrap();
            symlink(format!("/dev/{file}"), proc.path().join(pid).join("fd").join(fd.to_string())).unwrap();
        }
        assert_eq!(gpu_holders(proc.path()), [(0, [7].into()), (1, [7, 8].into())].into());
    }

    #[test]
    fn describe_holders_names_processes_with_the_gpu_file_open() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(describe_holders(proc.path(), 0), "");
        for (pid, target) in [("7", "/dev/nvidia0"), ("8", "/dev/nvidia1"), ("9", "/dev/nvidiactl")] {
            fs::create_dir_all(proc.path().join(pid).join("fd")).unwrap();
            symlink(target, proc.path().join(pid).join("fd/3")).unwrap();
        }
        fs::write(proc.path().join("7/comm"), "nv-hostengine\n").unwrap();
        assert_eq!(describe_holders(proc.path(), 0), "; /dev/nvidia0 is open in 7 (nv-hostengine)");
    }

    #[test]
    fn add_holders_adds_each_unlisted_process_once() {
        let proc = tempfile::tempdir().unwrap();
        // minors of GPU instance 9 of GPU 0 and of its compute instance
        for (pid, fd, target) in [("7", "3", "nvidia-cap84"), ("7", "4", "nvidia-cap85"), ("8", "3", "nvidia-cap85")] {
            fs::create_dir_all(proc.path().join(pid).join("fd")).unwrap();
            symlink(format!("/dev/nvidia-caps/{target}"), proc.path().join(pid).join("fd").join(fd)).unwrap();
        }
        let instance = |gi| ObservedInstance {
            gi,
            compute: vec![ObservedCompute { ci: 0, full_width: true, uuid: None }],
            ..ObservedInstance::default()
        };
        let listed = Process { pid: 8, gi: Some(9), ci: Some(0), memory: None };
        let gpu =
            ObservedGpu { instances: vec![instance(9), instance(10)], clients: vec![listed], ..ObservedGpu::default() };
        let mut inventory = Inventory { gpus: vec![gpu], ..Inventory::default() };
        add_holders(&mut inventory, &capability_holders(proc.path()), proc.path(), Path::new("/nowhere"));
        assert_eq!(inventory.gpus[0].clients, [listed, Process { pid: 7, gi: Some(9), ci: None, memory: None }]);
    }
}
