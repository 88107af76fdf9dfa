//! Requirements of the machine; a missing one is named with its package.

use crate::error::{Error, Result};
use crate::place::Folders;
use std::fs;
use std::path::{Path, PathBuf};

/// Programs, and the Debian packages they come in.
const PROGRAMS: [(&str, &str); 9] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setsid", "util-linux"),
    ("ip", "iproute2"),
    ("tini", "tini"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("busybox", "busybox-static"),
];

/// Programs that every lab needs.
const TOOLS: [&str; 11] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "containerd",
    "ctr",
    "runc",
    "coredns",
];

/// A program in one of the usual folders or on `PATH`.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Watchers (inotify instances) of a control plane and of each node, with a reserve.
const WATCHERS: (usize, usize) = (16, 10);

/// Checks that enough watchers are left for a lab of this size; without them kubelets fail with misleading errors.
pub fn check_watchers(nodes: usize) -> Result<()> {
    let file = "/proc/sys/fs/inotify/max_user_instances";
    let limit = fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let (used, needed) = (watchers_in_use(), WATCHERS.0 + nodes * WATCHERS.1);
    match limit {
        Some(limit) if used + needed > limit => Err(Error::Missing(format!(
            "a lab of {nodes} nodes needs {needed} inotify instances, {used} of {limit} are in use: \
             `make prerequisites` raises fs.inotify.max_user_instances, or end another lab"
        ))),
        _ => Ok(()),
    }
}

fn watchers_in_use() -> usize {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let files = processes.filter_map(|process| fs::read_dir(process.path().join("fd")).ok()).flatten().flatten();
    files
        .filter(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == "anon_inode:inotify"))
        .count()
}

/// Checks all requirements; the error lists everything missing.
pub fn check(folders: &Folders) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::Missing("the lab creates namespaces and mounts: run it as root (sudo)".to_owned()));
    }
    let mut missing: Vec<String> = PROGRAMS
        .iter()
        .filter(|(program, _)| which(program).is_none())
        .map(|(program, package)| format!("{program} (apt-get install {package})"))
        .collect();
    let absent = |tool: &&&str| !Path::new(&folders.toolset).join("bin").join(tool).exists();
    let tools: Vec<_> = TOOLS.iter().filter(absent).copied().collect();
    if !tools.is_empty() {
        missing.push(format!("{} (make tools)", tools.join(", ")));
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Missing(format!("the lab needs {}", missing.join("; "))))
}
