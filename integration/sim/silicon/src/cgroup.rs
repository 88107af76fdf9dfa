//! Cgroups of processes and of limits, by the id that the kernel gives each: the inode number of its folder, which is the same in every
//! cgroup namespace and mount.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where cgroups are mounted.
pub const ROOT: &str = "/sys/fs/cgroup";
/// The controller whose hierarchy counts where cgroup v1 is mounted; the real driver has limits with v2 alone.
const V1_CONTROLLER: &str = "memory";

/// The folder of the hierarchy that counts.
pub fn hierarchy() -> PathBuf {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() { root.to_owned() } else { root.join(V1_CONTROLLER) }
}

/// Id of a cgroup; `None` if there is no such folder.
pub fn id(folder: &Path) -> Option<u64> {
    fs::metadata(folder).ok().filter(fs::Metadata::is_dir).map(|meta| meta.ino())
}

/// The cgroup of this process and those above it, as far as they are visible to it, by id.
pub fn of_this_process() -> Vec<u64> {
    let hierarchy = hierarchy();
    let lines = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = path_in(&lines, hierarchy.ends_with(V1_CONTROLLER)).unwrap_or("/");
    let own = hierarchy.join(path.trim_start_matches('/'));
    // a container whose cgroup is mounted as the root does not have the path that /proc shows
    let own = if own.is_dir() { own } else { hierarchy.clone() };
    own.ancestors().take_while(|folder| folder.starts_with(&hierarchy)).filter_map(id).collect()
}

/// The path of the hierarchy in the lines of `/proc/<pid>/cgroup`.
fn path_in(lines: &str, v1: bool) -> Option<&str> {
    lines.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let named = if v1 { controllers.split(',').any(|c| c == V1_CONTROLLER) } else { controllers.is_empty() };
        named.then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_that_of_the_hierarchy() {
        let hybrid = "4:cpu,memory:/a/b:c\n1:cpuset:/\n0::/d\n";
        assert_eq!((path_in(hybrid, true), path_in(hybrid, false)), (Some("/a/b:c"), Some("/d")));
        assert_eq!(path_in("0::/d\n", true), None);
    }

    #[test]
    fn process_is_in_its_cgroup_and_in_those_above_it() {
        let found = of_this_process();
        assert_eq!(found.last().copied(), id(&hierarchy()));
    }
}
