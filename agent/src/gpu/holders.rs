//! Who holds a device file open: the second witness before an instance is destroyed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use gputenancy_nvml::Process;

use super::{Inventory, origin::command};

/// What a file below `/dev/nvidia-caps` gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// A GPU instance.
    Instance {
        /// GPU instance id.
        gi: u32,
    },
    /// A compute instance.
    Compute {
        /// GPU instance id.
        gi: u32,
        /// Compute instance id.
        ci: u32,
    },
}

/// The driver's table of capability files: the kernel's own, or the copy below the root of a driver that is simulated.
pub fn minors_table(proc_root: &Path, driver_root: &Path) -> String {
    let table = "driver/nvidia-caps/mig-minors";
    let of_driver = fs::read_to_string(driver_root.join("proc").join(table));
    of_driver.or_else(|_| fs::read_to_string(proc_root.join(table))).unwrap_or_default()
}

/// Minor numbers of capability files: from the driver's table, or by its formula where the table does not tell.
pub fn cap_minors(table: &str, gpu_minor: u32, capabilities: &[Capability]) -> Vec<u32> {
    let from_table = |key: &str| {
        let rest = table.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        rest.trim().parse().ok()
    };
    let minor = |capability: &Capability| match *capability {
        Capability::Instance { gi } => {
            from_table(&format!("gpu{gpu_minor}/gi{gi}/access")).unwrap_or(3 + 135 * gpu_minor + 9 * gi)
        }
        Capability::Compute { gi, ci } => {
            from_table(&format!("gpu{gpu_minor}/gi{gi}/ci{ci}/access")).unwrap_or(3 + 135 * gpu_minor + 9 * gi + 1 + ci)
        }
    };
    capabilities.iter().map(minor).collect()
}

/// Processes other than this one that have one of these capability files open.
pub fn holders_of(proc_root: &Path, minors: &[u32]) -> Vec<u32> {
    let held = open_files(proc_root);
    let held = held.into_iter().filter(|(_, file)| capability_of(file).is_some_and(|minor| minors.contains(&minor)));
    held.map(|(pid, _)| pid).collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Adds processes that have an instance's capability file open to the instance's clients, unless NVML lists them there.
pub fn count_holders(inventory: &mut Inventory, proc_root: &Path, driver_root: &Path) {
    let files = open_files(proc_root);
    let held: BTreeSet<(u32, u32)> =
        files.iter().filter_map(|(pid, file)| Some((capability_of(file)?, *pid))).collect();
    if held.is_empty() {
        return;
    }
    let table = minors_table(proc_root, driver_root);
    for gpu in &mut inventory.gpus {
        for seen in &gpu.instances {
            let parts = seen.compute.iter().map(|part| Capability::Compute { gi: seen.gi, ci: part.ci });
            let parts: Vec<Capability> = std::iter::once(Capability::Instance { gi: seen.gi }).chain(parts).collect();
            let minors = cap_minors(&table, gpu.minor, &parts);
            for (_, pid) in held.iter().filter(|(minor, _)| minors.contains(minor)) {
                if !gpu.clients.iter().any(|known| known.pid == *pid && known.gi == Some(seen.gi)) {
                    gpu.clients.push(Process { pid: *pid, gi: Some(seen.gi), ci: None, memory_mib: None });
                }
            }
        }
    }
}

/// Who has the GPU's own device file open, in words; empty when nobody has. Such a process, a monitoring daemon say, hinders a reset
/// without being a client of NVML's.
pub fn name_holders(proc_root: &Path, gpu_minor: u32) -> String {
    let own = PathBuf::from(format!("/dev/nvidia{gpu_minor}"));
    let pids: BTreeSet<u32> =
        open_files(proc_root).into_iter().filter(|(_, file)| *file == own).map(|(pid, _)| pid).collect();
    let names: Vec<String> = pids.iter().take(8).map(|pid| format!("{pid} ({})", command(proc_root, *pid))).collect();
    if names.is_empty() { String::new() } else { format!("; {} is open in {}", own.display(), names.join(", ")) }
}

/// NVIDIA's device files that processes other than this one have open. A process that ends meanwhile has none.
fn open_files(proc_root: &Path) -> Vec<(u32, PathBuf)> {
    let own = std::process::id();
    let pids = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| *pid != own);
    let files = |pid: u32| {
        let fds = fs::read_dir(proc_root.join(pid.to_string()).join("fd")).into_iter().flatten().flatten();
        fds.filter_map(move |fd| Some((pid, fs::read_link(fd.path()).ok()?)))
    };
    pids.flat_map(files).filter(|(_, file)| file.as_os_str().as_encoded_bytes().starts_with(b"/dev/nvidia")).collect()
}

/// The minor number of a capability file.
fn capability_of(file: &Path) -> Option<u32> {
    file.to_str()?.strip_prefix("/dev/nvidia-caps/nvidia-cap")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::gpu::{SeenCompute, SeenGpu, SeenInstance};

    #[test]
    fn minors_come_from_the_driver_and_else_from_its_formula() {
        let both = [Capability::Instance { gi: 9 }, Capability::Compute { gi: 9, ci: 0 }];
        assert_eq!(cap_minors("", 0, &both), [84, 85]);
        let table = "config 1\nmonitor 2\ngpu0/gi9/access 300\ngpu0/gi9/ci0/access 301\n";
        assert_eq!(cap_minors(table, 0, &both), [300, 301]);
    }

    #[test]
    fn a_process_with_the_file_open_is_a_holder() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, target) in [("7", "/dev/nvidia-caps/nvidia-cap84"), ("8", "/dev/nvidia-caps/nvidia-cap840")] {
            fs::create_dir_all(proc.path().join(pid).join("fd")).unwrap();
            symlink(target, proc.path().join(pid).join("fd/3")).unwrap();
        }
        assert_eq!(holders_of(proc.path(), &[84]), [7]);
    }

    #[test]
    fn a_process_with_the_gpus_own_file_open_is_named() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(name_holders(proc.path(), 0), "");
        for (pid, target) in [("7", "/dev/nvidia0"), ("8", "/dev/nvidia1"), ("9", "/dev/nvidiactl")] {
            fs::create_dir_all(proc.path().join(pid).join("fd")).unwrap();
            symlink(target, proc.path().join(pid).join("fd/3")).unwrap();
        }
        fs::write(proc.path().join("7/comm"), "nv-hostengine\n").unwrap();
        assert_eq!(name_holders(proc.path(), 0), "; /dev/nvidia0 is open in 7 (nv-hostengine)");
    }

    #[test]
    fn a_holder_is_a_client_of_its_instance_and_counted_once() {
        let proc = tempfile::tempdir().unwrap();
        // GPU instance 9 of GPU 0 and its compute instance, by the driver's formula.
        for (pid, fd, target) in [("7", "3", "nvidia-cap84"), ("7", "4", "nvidia-cap85"), ("8", "3", "nvidia-cap85")] {
            fs::create_dir_all(proc.path().join(pid).join("fd")).unwrap();
            symlink(format!("/dev/nvidia-caps/{target}"), proc.path().join(pid).join("fd").join(fd)).unwrap();
        }
        let instance = |gi| SeenInstance {
            gi,
            compute: vec![SeenCompute { ci: 0, full_width: true, uuid: None }],
            ..SeenInstance::default()
        };
        let listed = Process { pid: 8, gi: Some(9), ci: Some(0), memory_mib: Some(1) };
        let gpu = SeenGpu { instances: vec![instance(9), instance(10)], clients: vec![listed], ..SeenGpu::default() };
        let mut inventory = Inventory { gpus: vec![gpu], ..Inventory::default() };
        count_holders(&mut inventory, proc.path(), Path::new("/nowhere"));
        assert_eq!(inventory.gpus[0].clients, [listed, Process { pid: 7, gi: Some(9), ci: None, memory_mib: None }]);
    }
}
