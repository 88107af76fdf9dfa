//! Control groups: one folder for the lab in each hierarchy, one below it for each node.

use crate::error::{During, Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A mounted hierarchy: version 1 has one for each controller, version 2 a single one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// The name of its folder under `/sys/fs/cgroup`; empty when version 2 is mounted there itself.
    pub folder: String,
    /// Mount options of a version 1 hierarchy; none for version 2.
    pub options: Option<String>,
    /// The group of the calling process.
    pub own: String,
}

/// Polls until unrelated processes have left a group, at ten seconds most.
const TRIES: u32 = 500;
/// Where hierarchies are mounted.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Mount options that are no controllers.
const HOW: [&str; 10] =
    ["rw", "ro", "relatime", "noatime", "nosuid", "nodev", "noexec", "xattr", "clone_children", "nsdelegate"];

/// Reads `/proc/self/cgroup` and `/proc/self/mounts`: which hierarchies there are, and where in each the caller is.
pub fn parse(groups: &str, mounts: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for hierarchy in mounts.lines().filter_map(|mount| hierarchy(groups, mount)) {
        // the lab mounts its own view over the host's, and both are listed
        if !found.iter().any(|known| known.folder == hierarchy.folder) {
            found.push(hierarchy);
        }
    }
    found
}

fn hierarchy(groups: &str, mount: &str) -> Option<Hierarchy> {
    let mut fields = mount.split(' ').skip(1);
    let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
    let folder = at.strip_prefix(ROOT)?.trim_start_matches('/').to_owned();
    let controllers: Vec<&str> = match kind {
        "cgroup2" => Vec::new(),
        "cgroup" => {
            options.split(',').filter(|option| !HOW.contains(option) && !option.starts_with("release_agent=")).collect()
        }
        _ => return None,
    };
    let own = groups.lines().find_map(|line| own_group(line, &controllers))?;
    let listed = controllers.join(",");
    let options = match kind {
        "cgroup2" => None,
        _ if listed.starts_with("name=") => Some(format!("none,{listed}")),
        _ => Some(listed),
    };
    Some(Hierarchy { folder, options, own })
}

/// The path in a line `NUMBER:CONTROLLERS:PATH` of `/proc/self/cgroup`, if it is about these controllers.
fn own_group(line: &str, controllers: &[&str]) -> Option<String> {
    let (_, rest) = line.split_once(':')?;
    let (listed, path) = rest.split_once(':')?;
    let mut have: Vec<&str> = listed.split(',').filter(|name| !name.is_empty()).collect();
    let mut want = controllers.to_vec();
    have.sort_unstable();
    want.sort_unstable();
    (have == want).then(|| path.to_owned())
}

/// The hierarchies of this machine, as this process sees them.
pub fn hierarchies() -> Result<Vec<Hierarchy>> {
    let read = |path: &str| fs::read_to_string(path).during(|| format!("reading {path}"));
    let found = parse(&read("/proc/self/cgroup")?, &read("/proc/self/mounts")?);
    if found.is_empty() {
        return Err(Error::Missing(format!("no control groups are mounted under {ROOT}: containers need them")));
    }
    Ok(found)
}

impl Hierarchy {
    /// The group `name` for a lab: below the caller's own. In a pure version 2 tree it is at the root, since a group
    /// that holds processes (such as a login session's) cannot delegate controllers to groups below it.
    pub fn below_own(&self, name: &str) -> PathBuf {
        let at = Path::new(ROOT).join(&self.folder);
        let own = if self.is_whole() { "" } else { self.own.trim_matches('/') };
        at.join(own).join(name)
    }

    /// Version 2 alone: it carries the controllers.
    pub fn is_whole(&self) -> bool {
        self.options.is_none() && self.folder.is_empty()
    }
}

/// Creates a group that processes can enter.
pub fn create(group: &Path) -> Result<()> {
    fs::create_dir_all(group).during(|| format!("creating the control group {}", group.display()))?;
    // a new cpuset is empty, and no process can enter an empty one
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let (Some(parent), own) = (group.parent(), group.join(file)) else { continue };
        if group.components().any(|part| part.as_os_str() == "cpuset")
            && let Ok(value) = fs::read_to_string(parent.join(file))
        {
            fs::write(&own, value.trim()).during(|| format!("writing {}", own.display()))?;
        }
    }
    Ok(())
}

/// Moves this process into the group.
pub fn enter(group: &Path) -> Result<()> {
    let file = group.join("cgroup.procs");
    fs::write(&file, std::process::id().to_string())
        .during(|| format!("entering the control group {}", group.display()))
}

/// In a pure version 2 tree: moves a process that must not stay in a namespace's root group, because that group delegates controllers.
pub fn move_out(hierarchies: &[Hierarchy], to: &Path, pid: i32) -> Result<()> {
    if !hierarchies.iter().any(Hierarchy::is_whole) {
        return Ok(());
    }
    let file = to.join("cgroup.procs");
    fs::write(&file, pid.to_string()).during(|| format!("moving process {pid} to {}", to.display()))
}

/// Removes a group and all below it, deepest first; true when nothing is left. Groups that still hold processes stay.
pub fn remove(group: &Path) -> bool {
    let Ok(entries) = fs::read_dir(group) else { return true };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}

/// In a pure version 2 tree: moves all processes of the namespace's root group one level down and delegates every controller.
pub fn delegate(root: &Path) -> Result<()> {
    let inner = root.join("init");
    fs::create_dir_all(&inner).during(|| format!("creating {}", inner.display()))?;
    let controllers = root.join("cgroup.controllers");
    let listed = fs::read_to_string(&controllers).during(|| format!("reading {}", controllers.display()))?;
    let all: Vec<_> = listed.split_whitespace().map(|name| format!("+{name}")).collect();
    let file = root.join("cgroup.subtree_control");
    let mut tries = 0..TRIES;
    loop {
        let processes =
            fs::read_to_string(root.join("cgroup.procs")).during(|| format!("reading {}", root.display()))?;
        for pid in processes.lines().filter(|pid| *pid != "0") {
            // a process that has just ended cannot be moved
            let _ = fs::write(inner.join("cgroup.procs"), pid);
        }
        match fs::write(&file, all.join(" ")) {
            // the process that created the namespaces is still in the group; its parent moves it
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && tries.next().is_some() => {
                std::thread::sleep(crate::process::LOOK);
            }
            written => return written.during(|| format!("writing {}", file.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,xattr,release_agent=/lib/systemd/agent,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
";

    #[test]
    fn cgroup_v1_hierarchies_and_own_group_are_found() {
        let own = "5:name=systemd:/\n4:memory:/session/7\n2:cpuacct,cpu:/\n0::/\n";
        let found = parse(own, HYBRID);
        let seen: Vec<_> = found.iter().map(|h| (h.folder.as_str(), h.options.as_deref(), h.own.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("cpu,cpuacct", Some("cpu,cpuacct"), "/"),
                ("memory", Some("memory"), "/session/7"),
                ("systemd", Some("none,name=systemd"), "/"),
                ("unified", None, "/"),
            ]
        );
        assert_eq!(found[1].below_own("x"), Path::new("/sys/fs/cgroup/memory/session/7/x"));
        assert_eq!(found[3].below_own("x"), Path::new("/sys/fs/cgroup/unified/x"));
    }

    #[test]
    fn cgroup_v2_lab_group_is_at_the_root() {
        let found = parse("0::/user.slice/session-1.scope\n", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n");
        assert!(found[0].is_whole());
        assert_eq!(found[0].below_own("x"), Path::new("/sys/fs/cgroup/x"));
    }
}
