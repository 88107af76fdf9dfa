//! Processes that have NVIDIA's device files open. An instance is destroyed only if neither NVML nor this finds a process.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fs::{self, File},
    iter,
    path::Path,
};

use gputenancy_nvml::Process;
use nix::{
    dir::Dir,
    fcntl::{OFlag, readlinkat},
    sys::stat::Mode,
};

use super::{cap_minors::CapMinors, process_origin::command};
use crate::gpu::inventory::Inventory;

/// Processes other than this one that have one of these capability files open.
pub fn holders_of(proc_root: &Path, minors: &[u32]) -> Vec<u32> {
    let held = open_files(proc_root, &|file| capability_of(file).filter(|minor| minors.contains(minor)));
    held.into_iter().map(|(_, pid)| pid).collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Processes other than this one that have a capability file open, each after the minor number of the file.
pub fn capability_holders(proc_root: &Path) -> BTreeSet<(u32, u32)> {
    open_files(proc_root, &capability_of)
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
    let pids = open_files(proc_root, &|file| gpu_of(file).filter(|minor| *minor == gpu_minor));
    let names: Vec<String> =
        pids.iter().take(8).map(|(_, pid)| format!("{pid} ({})", command(proc_root, *pid))).collect();
    if names.is_empty() { String::new() } else { format!("; /dev/nvidia{gpu_minor} is open in {}", names.join(", ")) }
}

/// Processes other than this one that have the device file of a GPU open, by the minor number of the GPU.
pub fn gpu_holders(proc_root: &Path) -> BTreeMap<u32, BTreeSet<u32>> {
    let mut holders: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (minor, pid) in open_files(proc_root, &gpu_of) {
        holders.entry(minor).or_default().insert(pid);
    }
    holders
}

/// The minor numbers of NVIDIA's device files that other processes have open, with the processes.
fn open_files(proc_root: &Path, minor: &dyn Fn(&Path) -> Option<u32>) -> BTreeSet<(u32, u32)> {
    let own = std::process::id();
    let pids = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| *pid != own);
    let Ok(root) = File::open(proc_root) else { return BTreeSet::new() };
    let files = |pid: u32| numbers_of(&root, pid, minor).into_iter().map(move |minor| (minor, pid));
    pids.flat_map(files).collect()
}

/// The minor numbers among the open files of a process.
fn numbers_of(root: &File, pid: u32, minor: &dyn Fn(&Path) -> Option<u32>) -> BTreeSet<u32> {
    // the first thread has no files after its end, and others may run on
    let of_others = || {
        let tasks = names(root, &format!("{pid}/task")).map(|(_, tasks)| tasks).unwrap_or_default();
        let others = tasks.iter().filter_map(|task| task.to_str().ok()?.parse().ok()).filter(|task: &u32| *task != pid);
        others.into_iter().find_map(|task| numbers(root, &format!("{pid}/task/{task}/fd"), minor))
    };
    numbers(root, &format!("{pid}/fd"), minor).or_else(of_others).unwrap_or_default()
}

/// The minor numbers among the files of this folder below `root`; `None` without files. Only the numbers are kept: a process can have any number of
/// files with long names. Names are resolved in the opened folder: from the root of the file system a thousand files take twice as long.
fn numbers(root: &File, folder: &str, minor: &dyn Fn(&Path) -> Option<u32>) -> Option<BTreeSet<u32>> {
    let (folder, files) = names(root, folder).filter(|(_, files)| !files.is_empty())?;
    let number = |file: &CString| minor(Path::new(&readlinkat(&folder, file.as_c_str()).ok()?));
    Some(files.iter().filter_map(number).collect())
}

/// A folder below `root`, and the names in it.
fn names(root: &File, folder: &str) -> Option<(Dir, Vec<CString>)> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut folder = Dir::openat(root, folder, flags, Mode::empty()).ok()?;
    // an error may repeat for ever
    let names = folder.iter().map_while(Result::ok).map(|entry| entry.file_name().to_owned());
    let names = names.filter(|name| !name.to_bytes().starts_with(b".")).collect();
    Some((folder, names))
}

/// The minor number of a GPU's file.
fn gpu_of(file: &Path) -> Option<u32> {
    file.to_str()?.strip_prefix("/dev/nvidia")?.parse().ok()
}

/// The minor number of a capability file.
fn capability_of(file: &Path) -> Option<u32> {
    file.to_str()?.strip_prefix("/dev/nvidia-caps/nvidia-cap")?.parse().ok()
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
