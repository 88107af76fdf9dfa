//! The container that a process belongs to: its cgroup has the container's id, and kubelet names each container's log after pod,
//! namespace, container and that id. This needs no API server.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

pub use gputenancy_agent_core::attribution::processes::Origin;

use crate::{
    device::DeviceOwner,
    seen_pods::{SeenPod, SeenPods},
};

/// The cgroup of all MPS daemons, at the root of the hierarchy: the end of the agent's container must not end them, and a process in it belongs to no pod.
/// A pod can only make a cgroup of this name below its own, and a process there is of that pod.
pub const MPS_CGROUP: &str = "gputenancy-mps";
/// Folder of kubelet's links to containers' logs, below the host's root.
pub const LOGS: &str = "var/log/containers";

/// Finds the origin of processes.
#[derive(Clone, Debug)]
pub struct Origins {
    /// The node's `/proc`.
    pub proc_root: PathBuf,
    /// The node's `/var/log/containers`.
    pub logs: PathBuf,
    /// Pods by UID, with those that were deleted.
    pub pods: SeenPods,
}

/// Container of a process whose pod is known by its UID only: kubelet cuts the name of a log at 255 bytes, and with it the container's id.
pub const UNKNOWN_CONTAINER: &str = "unknown";

impl Origins {
    /// Where a process comes from.
    pub fn of(&self, pid: u32) -> Origin {
        let Some(task) = living_task(&self.proc_root.join(pid.to_string())) else { return Origin::Ended };
        let cgroup = text(&task.join("cgroup")).unwrap_or_default();
        let Some(InPod { uid, container }) = in_pod(&cgroup) else {
            // an MPS daemon works for all pods with shares of its GPU
            return if is_of_mps(&cgroup) { Origin::Pod(None) } else { Origin::Node };
        };
        let container = container.and_then(|id| self.container(id));
        let Some((uid, seen)) = uid.and_then(|uid| self.pods.seen(&uid).map(|seen| (uid, seen))) else {
            return Origin::Pod(container);
        };
        let SeenPod { name: (namespace, pod), deleted } = seen;
        let unnamed = || DeviceOwner { namespace, pod, container: UNKNOWN_CONTAINER.to_owned() };
        let container = Some(container.unwrap_or_else(unnamed));
        if deleted { Origin::Former(container, uid) } else { Origin::Pod(container) }
    }

    /// UID of the pod of a process; `None` if it is of no pod, or has ended.
    pub fn pod_uid(&self, pid: u32) -> Option<String> {
        pod_of(&self.proc_root, pid)
    }

    /// Whether a process has loaded the library of CUDA's driver; `None` if it has ended, or its memory map cannot be read.
    pub fn loads_cuda(&self, pid: u32) -> Option<bool> {
        let task = living_task(&self.proc_root.join(pid.to_string()))?;
        let maps = fs::read(task.join("maps")).ok()?;
        let mut files = maps.split(|byte| *byte == b'\n').filter_map(|line| line.rsplit(|byte| *byte == b'/').next());
        Some(files.any(|name| name.starts_with(b"libcuda.so")))
    }

    fn container(&self, id: &str) -> Option<DeviceOwner> {
        let logs = fs::read_dir(&self.logs).ok()?.flatten();
        logs.into_iter().find_map(|log| named(log.file_name().to_str()?, id))
    }
}

/// `<pod>_<namespace>_<container>-<id>.log`; names have no underscore.
fn named(log: &str, id: &str) -> Option<DeviceOwner> {
    let mut parts = log.strip_suffix(".log")?.strip_suffix(id)?.strip_suffix('-')?.splitn(3, '_');
    let (pod, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    Some(DeviceOwner { namespace: namespace.to_owned(), pod: pod.to_owned(), container: container.to_owned() })
}

/// The containers of this node that have a log, with their ids.
pub fn containers(logs: &Path) -> Vec<(DeviceOwner, String)> {
    let of = |name: &str| {
        let (_, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
        let id = container_id(id)?;
        Some((named(name, id)?, id.to_owned()))
    };
    let logs = fs::read_dir(logs).into_iter().flatten().flatten();
    logs.filter_map(|log| of(log.file_name().to_str()?)).collect()
}

/// UID of the pod of a process; `None` if it is of no pod, or has ended.
pub(super) fn pod_of(proc_root: &Path, pid: u32) -> Option<String> {
    let task = living_task(&proc_root.join(pid.to_string()))?;
    in_pod(&text(&task.join("cgroup")).ok()?)?.uid
}

/// What the cgroup of a process of a pod names. Only the outermost pod and container count: a pod may make cgroups with any names below its own.
#[derive(Debug, PartialEq, Eq)]
struct InPod<'a> {
    /// UID of the pod.
    uid: Option<String>,
    /// Id of the container.
    container: Option<&'a str>,
}

/// The pod and container in the text of `/proc/<pid>/cgroup`; `None` for a process of no pod.
fn in_pod(cgroup: &str) -> Option<InPod<'_>> {
    let parts = pod_path(cgroup)?;
    let pod = parts.iter().enumerate().find_map(|(at, part)| Some((at, uid_in(part)?)));
    // without a known form of UID the container follows the folder of all pods
    let inside = pod.as_ref().map_or(0, |(at, _)| *at) + 1;
    let container = parts.iter().copied().skip(inside).find_map(container_id);
    // not the hash of a static pod, which is no UID of the API server
    Some(InPod { uid: pod.map(|(_, uid)| uid).filter(|uid| uid.len() == 36), container })
}

/// The parts of a path from kubelet's cgroup of all pods on. Each line has the path in one hierarchy: that of version 2 counts if it has such a cgroup,
/// then the first one of version 1, and that of systemd, without controllers, last. A path begins with `..` if it is outside of the reader's namespace.
fn pod_path(cgroup: &str) -> Option<Vec<&str>> {
    let paths = cgroup.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        // where containerd does not know that systemd manages cgroups, colons separate the parts
        let parts: Vec<&str> = path.split(['/', ':']).skip_while(|part| !is_of_pods(part)).collect();
        let rank = match (hierarchy, controllers.starts_with("name=")) {
            ("0", _) => 0,
            (_, false) => 1,
            (_, true) => 2,
        };
        (!parts.is_empty()).then_some((rank, parts))
    });
    paths.min_by_key(|(rank, _)| *rank).map(|(_, parts)| parts)
}

/// The cgroup of all pods, with every cgroup driver and also below a root of kubelet's: `kubepods`, `kubepods.slice` or `kubelet-kubepods.slice`.
fn is_of_pods(part: &str) -> bool {
    part.strip_suffix(".slice").unwrap_or(part).split('-').any(|word| word == "kubepods")
}

/// The cgroup of MPS daemons; where a node is simulated, it is below the node's.
fn is_of_mps(cgroup: &str) -> bool {
    cgroup.lines().any(|line| line.splitn(3, ':').nth(2).is_some_and(|path| Path::new(path).ends_with(MPS_CGROUP)))
}

/// A container's id is 64 hexadecimal digits, with all runtimes.
fn container_id(part: &str) -> Option<&str> {
    let mut words = part.split(|c: char| !c.is_ascii_alphanumeric());
    words.find(|word| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The UID follows `pod` in a part of the path; systemd's names have underscores in place of its dashes. That of a static pod is a hash without dashes.
fn uid_in(part: &str) -> Option<String> {
    let uid = part.strip_suffix(".slice").unwrap_or(part).rsplit_once("pod")?.1.replace('_', "-");
    let is_uid = matches!(uid.len(), 32 | 36) && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    is_uid.then_some(uid)
}

/// The folder of a process, or of one of its threads if the first thread has ended and others run on: the kernel then shows the process
/// as a zombie. `None`: all have ended.
fn living_task(process: &Path) -> Option<PathBuf> {
    let lives = |folder: &PathBuf| match stat(folder) {
        Ok(stat) => is_alive(&stat),
        // any other error is no proof that it has ended
        Err(error) => !is_gone(&error),
    };
    let tasks = || fs::read_dir(process.join("task")).into_iter().flatten().flatten().map(|task| task.path());
    Some(process.to_owned()).filter(lives).or_else(|| tasks().find(lives))
}

/// `stat` of a process or thread.
///
/// # Errors
/// When it has ended, or cannot be read.
pub fn stat(folder: &Path) -> io::Result<String> {
    text(&folder.join("stat"))
}

/// A file of a process. A program chooses its name and those of its files, which need not be UTF-8: what is not becomes a replacement character, and the
/// rest stays.
pub(super) fn text(file: &Path) -> io::Result<String> {
    fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The error of a file of a process that has ended: the folder is gone, or it ended while the file was read.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// A zombie has ended, and may have left its pod's cgroup already. A text without a state is no proof of an end.
fn is_alive(stat: &str) -> bool {
    // the command is in parentheses and may contain some
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_none_or(|state| !matches!(state, 'Z' | 'X' | 'x'))
}

/// Start of a process, in clock ticks since the node booted: with the id it identifies a process. `None` if it has ended.
pub fn start_time(proc_root: &Path, pid: u32) -> Option<u64> {
    let stat = stat(&proc_root.join(pid.to_string())).ok()?;
    // field 22 of proc_pid_stat(5); the third follows the command
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// The command of a process, or `unknown`. The program chooses it, and terminals show it: control characters become replacement characters.
pub fn command(proc_root: &Path, pid: u32) -> String {
    let name = text(&proc_root.join(pid.to_string()).join("comm")).unwrap_or_default();
    match name.trim() {
        "" => "unknown".to_owned(),
        name => name.replace(char::is_control, "\u{fffd}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "b6f3a9c2-0000-4000-8000-000000000001";

    fn node(processes: &[(u32, &str, &str)]) -> (tempfile::TempDir, Origins) {
        let root = tempfile::tempdir().unwrap();
        let (proc_root, logs) = (root.path().join("proc"), root.path().join("logs"));
        let origins = Origins { proc_root, logs, pods: SeenPods::default() };
        fs::create_dir_all(&origins.logs).unwrap();
        for (pid, stat, cgroup) in processes {
            let folder = origins.proc_root.join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("stat"), stat).unwrap();
            fs::write(folder.join("cgroup"), cgroup).unwrap();
        }
        (root, origins)
    }

    #[test]
    fn origin_is_the_container_the_node_or_ended() {
        let cgroupfs = format!("11:memory:/kubepods/burstable/pod{UID}/{ID}\n");
        let systemd = format!("0::/kubepods.slice/kubepods-pod{UID}.slice/cri-containerd-{ID}.scope/worker\n");
        let (_root, origins) = node(&[
            (7, "7 (train (1)) S 1 7", &cgroupfs),
            (8, "8 (nv-hostengine) S 1 8", "0::/system.slice/dcgm.service\n"),
            (9, "9 (train) Z 1 9", "0::/\n"),
            (11, "11 (train) R 1 11", &systemd),
            (12, "12 (pause) S 1 12", "0::/kubepods.slice/kubepods-besteffort.slice\n"),
            (13, "13 (nvidia-cuda-mps) S 1 13", "0::/gputenancy-mps\n"),
        ]);
        fs::write(origins.logs.join(format!("job-x.1_team-a_main-{ID}.log")), "").unwrap();
        let main = DeviceOwner { namespace: "team-a".into(), pod: "job-x.1".into(), container: "main".into() };
        let found = [7, 8, 9, 10, 11, 12, 13].map(|pid| origins.of(pid));
        let main = Origin::Pod(Some(main));
        assert_eq!(
            found,
            [main.clone(), Origin::Node, Origin::Ended, Origin::Ended, main, Origin::Pod(None), Origin::Pod(None)]
        );
    }

    #[test]
    fn names_of_cgroups_that_a_pod_made_below_its_own_change_no_origin() {
        let (forged, other) = (UID.replace('1', "2"), "f".repeat(64));
        let below = format!("kubepods/burstable/pod{forged}/{other}");
        let slice = UID.replace('-', "_");
        let own = InPod { uid: Some(UID.to_owned()), container: Some(ID) };
        for path in [
            format!("0::/kubepods/burstable/pod{UID}/{ID}/{below}"),
            format!("0::/kubepods/burstable/pod{UID}/{ID}/pod{forged}/{other}"),
            format!("0::/kubepods/burstable/pod{UID}/{ID}/gputenancy-mps"),
            format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-{ID}.scope/{below}"),
            format!("0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice/crio-{ID}.scope"),
            format!("0::/../../kubepods-besteffort-pod{slice}.slice/cri-containerd-{ID}.scope/{below}"),
            format!("0::/system.slice/containerd.service/kubepods-pod{slice}.slice:cri-containerd:{ID}"),
            // parts before that of the pods can have the id of a container, such as that of a node
            format!("0::/docker/{other}/kubepods/pod{UID}/{ID}"),
            // the pod of another line, version 2, and a line with controllers
            format!("5:memory:/kubepods/pod{forged}/{other}\n0::/kubepods/pod{UID}/{ID}"),
            format!("9:name=systemd:/kubepods/pod{forged}/{other}\n5:memory:/kubepods/pod{UID}/{ID}\n0::/"),
        ] {
            assert_eq!(in_pod(&path).as_ref(), Some(&own), "{path}");
        }
        // also below a pod without a known container, or with the hash of a static pod
        let found = |path: String| in_pod(&path).map(|found| (found.uid, found.container.map(str::to_owned)));
        assert_eq!(found(format!("0::/kubepods/pod{UID}/x")), Some((Some(UID.to_owned()), None)));
        let hash = "0".repeat(32);
        assert_eq!(found(format!("0::/kubepods/pod{hash}/{ID}/{below}")), Some((None, Some(ID.to_owned()))));
        assert_eq!(found(format!("0::/system.slice/pod{UID}/{ID}")), None);
        let mps = ["0::/gputenancy-mps", "0::/lab/gpu-1/gputenancy-mps", "0::/x-gputenancy-mps"].map(is_of_mps);
        assert_eq!(mps, [true, true, false]);
    }

    #[test]
    fn control_characters_of_a_command_are_replaced() {
        let (_root, origins) = node(&[(7, "7 (x) S 1 7", ""), (8, "8 (x) S 1 8", "")]);
        fs::write(origins.proc_root.join("7/comm"), "a\u{1b}[31mb\nc\n").unwrap();
        fs::write(origins.proc_root.join("8/comm"), "\n").unwrap();
        let found = [7, 8].map(|pid| command(&origins.proc_root, pid));
        assert_eq!(found, ["a\u{fffd}[31mb\u{fffd}c", "unknown"]);
    }

    #[test]
    fn process_of_a_deleted_pod_is_distinguished_from_one_of_a_later_pod_with_its_name() {
        let cgroupfs = format!("11:memory:/kubepods/burstable/pod{UID}/{ID}\n");
        let slice = UID.replace('-', "_");
        let systemd = format!("0::/kubepods.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{ID}.scope\n");
        let other = UID.replace('1', "2");
        let (_root, origins) = node(&[
            (7, "7 (train) S 1 7", &cgroupfs),
            (8, "8 (train) S 1 8", &systemd),
            (9, "9 (train) S 1 9", &cgroupfs.replace(UID, &other)),
        ]);
        let name = || ("n".to_owned(), "p".to_owned());
        // also without a log with the container's id
        let container = DeviceOwner { namespace: "n".into(), pod: "p".into(), container: "unknown".into() };
        assert_eq!(origins.of(7), Origin::Pod(None), "never seen");
        origins.pods.exists(UID, name());
        origins.pods.exists(&other, name());
        assert_eq!(origins.of(7), Origin::Pod(Some(container.clone())));
        origins.pods.deleted(UID);
        let former = Origin::Former(Some(container.clone()), UID.to_owned());
        assert_eq!([7, 8, 9].map(|pid| origins.of(pid)), [former.clone(), former, Origin::Pod(Some(container))]);
        assert_eq!([8, 10].map(|pid| origins.pod_uid(pid)), [Some(UID.to_owned()), None]);
    }

    #[test]
    fn program_that_has_loaded_cuda_is_known_by_its_memory_map() {
        let line = |file: &str| format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 42    {file}\n");
        let (_root, origins) =
            node(&[(7, "7 (train) S 1 7", ""), (8, "8 (game) S 1 8", ""), (9, "9 (train) S 1 9", "")]);
        let maps = |pid: u32, files: &[&str]| {
            let text: String = files.iter().map(|file| line(file)).collect();
            fs::write(origins.proc_root.join(format!("{pid}/maps")), text).unwrap();
        };
        maps(7, &["/usr/bin/train", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"]);
        maps(8, &["/usr/bin/game", "/usr/lib/libnvidia-glcore.so.580.65.06", "/srv/libcuda.so/data"]);
        // the map of process 9 cannot be read, and process 10 has ended
        assert_eq!([7, 8, 9, 10].map(|pid| origins.loads_cuda(pid)), [Some(true), Some(false), None, None]);
    }

    #[test]
    fn process_lives_while_one_of_its_threads_does() {
        let cgroup = format!("11:memory:/kubepods/burstable/pod{UID}/{ID}\n");
        let (_root, origins) =
            node(&[(7, "7 (train) Z 1 7", "11:memory:/\n"), (8, "8 (train) Z 1 8", "11:memory:/\n")]);
        let task = |pid: u32, tid: u32, state: char| {
            let folder = origins.proc_root.join(format!("{pid}/task/{tid}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("stat"), format!("{tid} (train) {state} 1 {pid}")).unwrap();
            fs::write(folder.join("cgroup"), &cgroup).unwrap();
        };
        for (pid, tid, state) in [(7, 7, 'Z'), (7, 70, 'S'), (8, 8, 'Z'), (8, 80, 'X')] {
            task(pid, tid, state);
        }
        assert_eq!([7, 8].map(|pid| origins.of(pid)), [Origin::Pod(None), Origin::Ended]);
    }

    #[test]
    fn process_whose_name_is_not_utf_8_lives_and_is_of_its_container() {
        let cgroup = format!("11:memory:/kubepods/burstable/pod{UID}/{ID}\n");
        let (_root, origins) = node(&[(7, "", &cgroup), (8, "", &cgroup)]);
        let folder = |pid: u32| origins.proc_root.join(pid.to_string());
        fs::write(folder(7).join("stat"), b"7 (\xff\xfe) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 86 1024 1")
            .unwrap();
        fs::write(folder(7).join("comm"), b"\xff\xfe\n").unwrap();
        assert_eq!(origins.of(7), Origin::Pod(None));
        assert_eq!(start_time(&origins.proc_root, 7), Some(86));
        assert_eq!(command(&origins.proc_root, 7), "\u{fffd}\u{fffd}");
        assert_eq!(origins.of(8), Origin::Pod(None), "what cannot be parsed is no proof of an end");
        // a folder in its place cannot be read
        fs::remove_file(folder(8).join("stat")).unwrap();
        fs::create_dir(folder(8).join("stat")).unwrap();
        assert_eq!(origins.of(8), Origin::Pod(None));
        fs::remove_dir(folder(8).join("stat")).unwrap();
        assert_eq!(origins.of(8), Origin::Ended);
    }

    #[test]
    fn start_time_is_the_twenty_second_field() {
        let stat = "7 (train (1) x) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8675309 1024 1";
        let (_root, origins) = node(&[(7, stat, ""), (8, "8 (x) S 1", "")]);
        assert_eq!([7, 8, 9].map(|pid| start_time(&origins.proc_root, pid)), [Some(8_675_309), None, None]);
    }

    #[test]
    fn container_log_of_another_container_is_ignored() {
        assert_eq!(named(&format!("p_n_c-{}.log", "f".repeat(64)), ID), None);
        assert_eq!(named(&format!("nonsense-{ID}.log"), ID), None);
    }
}
