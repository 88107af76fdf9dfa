//! Who holds a device file open: the second witness before an instance is destroyed, and the name of a process that no pod
//! explains.

use std::{
    fs,
    path::{Path, PathBuf},
};

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
    let files: Vec<PathBuf> = minors.iter().map(|minor| format!("/dev/nvidia-caps/nvidia-cap{minor}").into()).collect();
    let own = std::process::id();
    let pids = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own && has_open(&proc_root.join(pid.to_string()).join("fd"), &files)).collect()
}

fn has_open(fds: &Path, files: &[PathBuf]) -> bool {
    // A process that ends while we look holds nothing.
    let fds = fs::read_dir(fds).into_iter().flatten().flatten();
    let mut targets = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    targets.any(|target| files.contains(&target))
}

/// Does a pod explain this process? Kubelet puts the pod's UID into the name of its cgroup, whatever the driver of cgroups.
pub fn belongs_to_a_pod(proc_root: &Path, pid: u32) -> bool {
    let cgroups = fs::read_to_string(proc_root.join(pid.to_string()).join("cgroup")).unwrap_or_default();
    cgroups.lines().any(|line| line.contains("kubepods"))
}

/// The command of a process, or `unknown`.
pub fn command(proc_root: &Path, pid: u32) -> String {
    let name = fs::read_to_string(proc_root.join(pid.to_string()).join("comm")).unwrap_or_default();
    match name.trim() {
        "" => "unknown".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

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
    fn a_pods_process_is_told_by_its_cgroup() {
        let proc = tempfile::tempdir().unwrap();
        let lines = [
            ("7", "11:memory:/kubepods/burstable/pod0f7b/abc\n"),
            ("8", "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0f7b.slice\n"),
            ("9", "0::/system.slice/nvidia-persistenced.service\n"),
        ];
        for (pid, line) in lines {
            fs::create_dir_all(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("cgroup"), line).unwrap();
        }
        assert!(belongs_to_a_pod(proc.path(), 7) && belongs_to_a_pod(proc.path(), 8));
        assert!(!belongs_to_a_pod(proc.path(), 9) && !belongs_to_a_pod(proc.path(), 10));
        assert_eq!(command(proc.path(), 10), "unknown");
    }
}
