//! What the machine must have before a lab can start; each thing missing is named with the package that brings it.

use crate::error::{Error, Result};
use crate::place::Folders;
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

/// What no lab can do without.
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

/// Everything is there, or one error that lists all that is not.
pub fn check(folders: &Folders) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::Missing("the lab makes namespaces and mounts: run it as root (sudo)".to_owned()));
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
