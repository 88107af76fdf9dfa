//! Cgroups of containers: the folder that the runtime names after the container's id. A limit of it holds for all cgroups below it, so that those that
//! a container creates itself do not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{device::DeviceOwner, gpu::processes::process_origin::containers};

/// Folders below a root of cgroups in which containers are searched: deeper than kubelet and runtimes nest them.
const DEPTH: u32 = 7;

/// Finds containers' cgroups.
#[derive(Debug)]
pub struct Cgroups {
    /// Where the node's cgroups are mounted, in the order of preference.
    roots: Vec<PathBuf>,
    /// Kubelet's folder of containers' logs, whose names have pod, container and id.
    logs: PathBuf,
    /// Containers that were searched, by id.
    searched: BTreeMap<String, Option<PathBuf>>,
}

impl Cgroups {
    /// Cgroups below the first of these roots that has them.
    pub fn new(roots: Vec<PathBuf>, logs: PathBuf) -> Self {
        Self { roots, logs, searched: BTreeMap::new() }
    }

    /// The cgroup of this process, to ask the driver about.
    pub fn own(&self, proc_root: &Path) -> Option<PathBuf> {
        let hierarchy = hierarchy(self.roots.first()?);
        let text = fs::read_to_string(proc_root.join("self/cgroup")).unwrap_or_default();
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = path.map(|path| hierarchy.join(path)).filter(|own| own.is_dir());
        Some(own.unwrap_or(hierarchy)).filter(|own| own.is_dir())
    }

    /// The cgroups of these owners. An owner has several for a moment when its container is restarted, and none before it has started. A container is
    /// searched once, and with `again` once more if it was not found.
    pub fn of<'o>(
        &mut self,
        owners: impl IntoIterator<Item = &'o DeviceOwner>,
        again: bool,
    ) -> BTreeMap<DeviceOwner, Vec<PathBuf>> {
        let owners: BTreeSet<&DeviceOwner> = owners.into_iter().collect();
        if owners.is_empty() {
            self.searched.clear();
            return BTreeMap::new();
        }
        let all: Vec<_> = containers(&self.logs).into_iter().filter(|(owner, _)| owners.contains(owner)).collect();
        self.searched.retain(|id, _| all.iter().any(|(_, other)| other == id));
        self.searched.values_mut().for_each(|found| *found = found.take().filter(|folder| folder.is_dir()));
        let unknown = |(_, id): &&(DeviceOwner, String)| match self.searched.get(id) {
            None => true,
            Some(found) => again && found.is_none(),
        };
        let ids: BTreeSet<&str> = all.iter().filter(unknown).map(|(_, id)| id.as_str()).collect();
        if !ids.is_empty() {
            let mut found = search(&self.roots, &ids);
            self.searched.extend(ids.into_iter().map(|id| (id.to_owned(), found.remove(id))));
        }
        let mut cgroups: BTreeMap<DeviceOwner, Vec<PathBuf>> = BTreeMap::new();
        for (owner, id) in all {
            if let Some(Some(folder)) = self.searched.get(&id) {
                cgroups.entry(owner).or_default().push(folder.clone());
            }
        }
        cgroups
    }
}

/// The hierarchy that counts: version 2, which the driver needs, or the memory controller's of version 1, which it refuses.
fn hierarchy(root: &Path) -> PathBuf {
    if root.join("cgroup.controllers").exists() { root.to_owned() } else { root.join("memory") }
}

/// The folders of these containers, by id, below the first root that has any.
fn search(roots: &[PathBuf], ids: &BTreeSet<&str>) -> BTreeMap<String, PathBuf> {
    roots
        .iter()
        .map(|root| {
            let mut found = BTreeMap::new();
            descend(&hierarchy(root), DEPTH, ids, &mut found);
            found
        })
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

fn descend(folder: &Path, depth: u32, ids: &BTreeSet<&str>, found: &mut BTreeMap<String, PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let name = entry.file_name();
        let id = name.to_str().and_then(container).filter(|id| ids.contains(id));
        match id {
            // the outermost: what is below it is the container's own
            Some(id) => drop(found.entry(id.to_owned()).or_insert_with(|| entry.path())),
            None if depth > 0 => descend(&entry.path(), depth - 1, ids, found),
            None => {}
        }
    }
}

/// The id in the name of a cgroup: `<id>`, or as systemd's scope `cri-containerd-<id>.scope`.
fn container(name: &str) -> Option<&str> {
    name.strip_suffix(".scope").unwrap_or(name).rsplit('-').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "n".into(), pod: pod.into(), container: "main".into() }
    }

    #[test]
    fn cgroup_is_found_with_each_cgroup_driver_and_followed_over_a_restart() {
        let root = tempfile::tempdir().unwrap();
        let (cgroup, logs) = (root.path().join("cgroup"), root.path().join("logs"));
        fs::create_dir_all(&logs).unwrap();
        fs::create_dir_all(&cgroup).unwrap();
        fs::write(cgroup.join("cgroup.controllers"), "cpu").unwrap();
        let ids = ["a", "b", "c"].map(|digit| digit.repeat(64));
        let log = |pod: &str, id: &str| fs::write(logs.join(format!("{pod}_n_main-{id}.log")), "").unwrap();
        log("p", &ids[0]);
        log("q", &ids[1]);
        let plain = cgroup.join(format!("kubepods/burstable/pod1/{}", ids[0]));
        let scope = cgroup.join(format!("kubepods.slice/kubepods-pod2.slice/cri-containerd-{}.scope", ids[1]));
        fs::create_dir_all(plain.join("inner").join(&ids[0])).unwrap();
        let mut cgroups = Cgroups::new(vec![root.path().join("none"), cgroup.clone()], logs.clone());
        let (p, q) = (owner("p"), owner("q"));
        assert_eq!(cgroups.of([&p, &q], false), BTreeMap::from([(p.clone(), vec![plain.clone()])]));
        // not found, and found when it is searched again
        fs::create_dir_all(&scope).unwrap();
        assert_eq!(cgroups.of([&q], false), BTreeMap::new());
        assert_eq!(cgroups.of([&q], true), BTreeMap::from([(q.clone(), vec![scope.clone()])]));
        // the former one is removed, and the new one is searched at once
        fs::remove_dir(&scope).unwrap();
        let again = scope.with_file_name(format!("crio-{}.scope", ids[2]));
        fs::create_dir_all(&again).unwrap();
        log("q", &ids[2]);
        assert_eq!(cgroups.of([&q], false), BTreeMap::from([(q.clone(), vec![again])]));
        assert_eq!(cgroups.of([], true), BTreeMap::new());
    }

    #[test]
    fn own_cgroup_is_that_of_the_process_or_the_root() {
        let root = tempfile::tempdir().unwrap();
        let (cgroup, proc) = (root.path().join("cgroup"), root.path().join("proc/self"));
        fs::create_dir_all(cgroup.join("agent")).unwrap();
        fs::create_dir_all(&proc).unwrap();
        fs::write(cgroup.join("cgroup.controllers"), "").unwrap();
        let cgroups = Cgroups::new(vec![cgroup.clone()], root.path().into());
        let own = || cgroups.own(&root.path().join("proc"));
        fs::write(proc.join("cgroup"), "1:cpu:/x\n0::/agent\n").unwrap();
        assert_eq!(own(), Some(cgroup.join("agent")));
        fs::write(proc.join("cgroup"), "0::/gone\n").unwrap();
        assert_eq!(own(), Some(cgroup.clone()));
        assert_eq!(Cgroups::new(vec!["/nowhere".into()], root.path().into()).own("/proc".as_ref()), None);
    }
}
