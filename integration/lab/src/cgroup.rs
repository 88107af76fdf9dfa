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
    /// The group of the process that asks.
    pub own: String,
}

/// Where hierarchies are mounted.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Reads `/proc/self/cgroup` and `/proc/self/mounts`: which hierarchies there are, and where in each the caller is.
pub fn parse(groups: &str, mounts: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for mount in mounts.lines() {
        let mut fields = mount.split(' ').skip(1);
        let (Some(at), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let Some(folder) = at.strip_prefix(ROOT).map(|rest| rest.trim_start_matches('/').to_owned()) else { continue };
        if found.iter().any(|known| known.folder == folder) {
            // the lab mounts its own view over the host's, and both are listed
            continue;
        }
        let group = |wanted: &dyn Fn(&str) -> bool| {
            groups.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                wanted(controllers).then(|| path.to_owned())
            })
        };
        match kind {
            "cgroup2" => {
                if let Some(own) = group(&str::is_empty) {
                    found.push(Hierarchy { folder, options: None, own });
                }
            }
            "cgroup" => {
                let controllers = options.split(',').filter(|option| {
                    !matches!(*option, "rw" | "ro" | "relatime" | "nosuid" | "nodev" | "noexec" | "noatime" | "xattr")
                        && !option.contains('/')
                });
                let controllers: Vec<_> = controllers
                    .filter(|option| !option.starts_with("release_agent") && *option != "clone_children")
                    .collect();
                let listed = controllers.join(",");
                let same = |have: &str| {
                    let mut have: Vec<_> = have.split(',').collect();
                    let mut want = controllers.clone();
                    have.sort_unstable();
                    want.sort_unstable();
                    have == want
                };
                if let Some(own) = group(&same) {
                    let options = if listed.starts_with("name=") { format!("none,{listed}") } else { listed };
                    found.push(Hierarchy { folder, options: Some(options), own });
                }
            }
            _ => {}
        }
    }
    found
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
    /// The group `name` for a lab: below the caller's own. In a pure version 2 tree it lies at the root, since a group
    /// that holds processes (such as a login session's) can hand no controllers to groups below it.
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

/// Makes a group that processes can enter.
pub fn create(group: &Path) -> Result<()> {
    fs::create_dir_all(group).during(|| format!("creating the control group {}", group.display()))?;
    // a new cpuset is empty, and an empty one takes no process
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

/// In a pure version 2 tree: moves all processes of the namespace's root group one down and hands every controller to the groups below.
pub fn delegate(root: &Path) -> Result<()> {
    let inner = root.join("init");
    fs::create_dir_all(&inner).during(|| format!("creating {}", inner.display()))?;
    let processes = fs::read_to_string(root.join("cgroup.procs")).during(|| format!("reading {}", root.display()))?;
    for pid in processes.lines() {
        // one that has just ended cannot be moved, and need not be
        let _ = fs::write(inner.join("cgroup.procs"), pid);
    }
    let controllers = root.join("cgroup.controllers");
    let listed = fs::read_to_string(&controllers).during(|| format!("reading {}", controllers.display()))?;
    let all: Vec<_> = listed.split_whitespace().map(|name| format!("+{name}")).collect();
    let file = root.join("cgroup.subtree_control");
    fs::write(&file, all.join(" ")).during(|| format!("writing {}", file.display()))
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
    fn finds_every_hierarchy_of_a_version_1_machine_and_the_callers_place_in_it() {
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
    fn on_a_version_2_machine_the_lab_lies_at_the_root() {
        let found = parse("0::/user.slice/session-1.scope\n", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n");
        assert!(found[0].is_whole());
        assert_eq!(found[0].below_own("x"), Path::new("/sys/fs/cgroup/x"));
    }
}
