//! A node's root: a private copy-on-write view of the host's disk, with its own devices, proc, sys and control groups.

use crate::cgroup::{self, Hierarchy};
use crate::error::{During, Result};
use crate::mount;
use crate::place::{SHARE, node_folder, node_share};
use crate::spec::Plan;
use nix::mount::MsFlags;
use nix::sys::stat::{Mode, SFlag, makedev, mknod, umask};
use std::fs;
use std::path::Path;

/// Folders of `/var/lib` that cannot be on the overlay (containerd creates overlays there); they survive power-off.
const ON_DISK: [&str; 2] = ["containerd", "kubelet"];

/// Kernel-wide settings that kubelet would change on the host: it sees the wanted values instead.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Builds the root of `node` and moves into it.
pub fn enter(plan: &Plan, node: &str, hierarchies: &[Hierarchy]) -> Result<()> {
    let folder = node_folder(node);
    let root = folder.join("root");
    umask(Mode::from_bits_truncate(0o022));
    let (upper, work) = (folder.join("upper"), folder.join("work"));
    for path in [&root, &upper, &work] {
        fs::create_dir_all(path).during(|| format!("creating {}", path.display()))?;
    }
    let layers = format!("lowerdir=/,upperdir={},workdir={}", upper.display(), work.display());
    mount::new("overlay", &root, MsFlags::empty(), &layers)?;
    system(&root, hierarchies)?;
    devices(&root.join("dev"))?;
    for name in ON_DISK {
        let disk = folder.join("disk").join(name);
        fs::create_dir_all(&disk).during(|| format!("creating {}", disk.display()))?;
        mount::bind(&disk, &root.join("var/lib").join(name))?;
    }
    mount::bind(&node_share(node), &root.join(SHARE.trim_start_matches('/')))?;
    for programs in &plan.shown {
        mount::bind_read_only(programs, &root.join(programs.strip_prefix("/").unwrap_or(programs)))?;
    }
    settings(plan, &root)?;
    pivot(&root)
}

fn system(root: &Path, hierarchies: &[Hierarchy]) -> Result<()> {
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount::new("proc", &root.join("proc"), quiet, "")?;
    mount::new("sysfs", &root.join("sys"), quiet, "")?;
    cgroups(&root.join("sys/fs/cgroup"), hierarchies)?;
    mount::new("tmpfs", &root.join("run"), MsFlags::empty(), "mode=755,size=256m")?;
    mount::new("tmpfs", &root.join("tmp"), MsFlags::empty(), "mode=1777")?;
    for path in ["run/lock", "run/lab", "run/settings"] {
        let path = root.join(path);
        fs::create_dir_all(&path).during(|| format!("creating {}", path.display()))?;
    }
    Ok(())
}

/// Mounts the hierarchies; the caller's control group namespace determines the visible part.
pub fn cgroups(at: &Path, hierarchies: &[Hierarchy]) -> Result<()> {
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if !hierarchies.iter().any(Hierarchy::is_whole) {
        mount::new("tmpfs", at, MsFlags::empty(), "mode=755")?;
    }
    for hierarchy in hierarchies {
        let target = at.join(&hierarchy.folder);
        match &hierarchy.options {
            Some(options) => mount::new("cgroup", &target, quiet, options)?,
            None => mount::new("cgroup2", &target, quiet, "")?,
        }
        if hierarchy.is_whole() {
            cgroup::delegate(&target)?;
        }
    }
    Ok(())
}

fn devices(dev: &Path) -> Result<()> {
    mount::new("tmpfs", dev, MsFlags::MS_NOSUID, "mode=755,size=4m")?;
    let characters = [
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("kmsg", 1, 11),
        ("tty", 5, 0),
        ("fuse", 10, 229),
        ("net/tun", 10, 200),
    ];
    for folder in ["pts", "shm", "mqueue", "net"] {
        let path = dev.join(folder);
        fs::create_dir_all(&path).during(|| format!("creating {}", path.display()))?;
    }
    let before = umask(Mode::empty());
    for (name, major, minor) in characters {
        mknod(&dev.join(name), SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(major, minor))
            .during(|| format!("making the device {name}"))?;
    }
    umask(before);
    let links =
        [("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")];
    for (name, target) in links {
        std::os::unix::fs::symlink(target, dev.join(name)).during(|| format!("linking {name}"))?;
    }
    mount::new("devpts", &dev.join("pts"), MsFlags::empty(), "newinstance,ptmxmode=0666,mode=620")?;
    mount::new("tmpfs", &dev.join("shm"), MsFlags::empty(), "mode=1777")?;
    mount::new("mqueue", &dev.join("mqueue"), MsFlags::empty(), "")
}

fn settings(plan: &Plan, root: &Path) -> Result<()> {
    let (shown, proc) = (root.join("run/settings"), root.join("proc"));
    let over = |name: &str, content: &str| {
        let (file, target) = (shown.join(name.replace('/', "_")), proc.join(name));
        if !target.exists() {
            return Ok(());
        }
        fs::write(&file, content).during(|| format!("writing {}", file.display()))?;
        mount::bind(&file, &target)
    };
    for (name, value) in SETTINGS {
        over(&format!("sys/{name}"), &format!("{value}\n"))?;
    }
    let memory = fs::read_to_string(proc.join("meminfo")).during(|| "reading /proc/meminfo".to_owned())?;
    over("meminfo", &with_memory(&memory, plan.node_memory_mib))?;
    // kubelet and the agent detect a reboot by it
    let boot = fs::read_to_string("/proc/sys/kernel/random/uuid").during(|| "reading a fresh UUID".to_owned())?;
    over("sys/kernel/random/boot_id", &boot)?;
    // pods with hostUsers: false may mount /proc only if an unobstructed one is visible
    let clean = root.join("run/.proc");
    mount::new("proc", &clean, MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC, "")
}

/// `/proc/meminfo` of a machine with this much memory, nearly all of it free.
fn with_memory(meminfo: &str, mib: u64) -> String {
    let kib = mib * 1024;
    let line = |line: &str| match line.split_once(':') {
        Some(("MemTotal", _)) => format!("MemTotal: {kib:>15} kB\n"),
        Some((name @ ("MemFree" | "MemAvailable"), _)) => format!("{name}: {:>12} kB\n", kib / 10 * 9),
        _ => format!("{line}\n"),
    };
    meminfo.lines().map(line).collect()
}

fn pivot(root: &Path) -> Result<()> {
    let old = root.join(".old");
    fs::create_dir_all(&old).during(|| format!("creating {}", old.display()))?;
    nix::unistd::chdir(root).during(|| format!("entering {}", root.display()))?;
    nix::unistd::pivot_root(".", ".old").during(|| "changing the root".to_owned())?;
    nix::unistd::chdir("/").during(|| "entering /".to_owned())?;
    mount::detach(Path::new("/.old"))?;
    let _ = fs::remove_dir("/.old");
    mount::share_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_shows_the_memory_of_the_spec() {
        let shown = with_memory("MemTotal:       100 kB\nMemFree:  1 kB\nSwapTotal: 0 kB\n", 2048);
        assert!(shown.contains("MemTotal:         2097152 kB\n"), "{shown}");
        assert!(shown.ends_with("SwapTotal: 0 kB\n"), "{shown}");
    }
}
