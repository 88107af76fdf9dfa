//! What a container with an MPS share gets: variables, and the folders of its server. Pure.

use std::path::{Path, PathBuf};

use gputenancy_crds::SharingMode;

use crate::device::{Device, Share};

/// Folder of the server's pipes in the container.
pub const PIPES: &str = "/run/gputenancy/mps/pipe";
/// Folder of the server's logs in the container.
pub const LOGS: &str = "/run/gputenancy/mps/log";

/// Variables and mounts of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edits {
    /// Environment variables.
    pub env: Vec<(&'static str, String)>,
    /// Mounts.
    pub mounts: Vec<FolderMount>,
}

/// A mounted folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderMount {
    /// Path on the host: a link that `PreStartContainer` sets before the runtime resolves it.
    pub host: PathBuf,
    /// Path in the container, which cannot write to it: a program connects to sockets of a read-only mount, and the daemon and the agent
    /// trust the names in the folder.
    pub container: &'static str,
}

/// The share, if MPS limits it.
pub fn mps_share(device: &Device) -> Option<&Share> {
    device.share.as_ref().filter(|share| share.mode == SharingMode::Mps)
}

/// Folder of one share below the agent's folder for MPS.
pub fn folder(root: &Path, gpu_uuid: &str, number: i32) -> PathBuf {
    root.join(gpu_uuid).join(number.to_string())
}

/// What the container gets, if the device is an MPS share. `root` is the agent's folder for MPS on the host.
pub fn edits(device: &Device, root: &Path) -> Option<Edits> {
    let share = mps_share(device)?;
    let mut env = vec![("CUDA_MPS_PIPE_DIRECTORY", PIPES.to_owned()), ("CUDA_MPS_LOG_DIRECTORY", LOGS.to_owned())];
    // the container sees one GPU, which CUDA numbers 0
    env.extend(share.memory_mib.map(|mib| ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={mib}M"))));
    env.extend(share.compute.map(|percent| ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string())));
    let folder = folder(root, &device.gpu_uuid, share.number);
    let mount = |name, container| FolderMount { host: folder.join(name), container };
    Some(Edits { env, mounts: vec![mount("pipe", PIPES), mount("log", LOGS)] })
}

#[cfg(test)]
pub(crate) mod tests {
    use gputenancy_crds::ResizePolicy;

    use super::*;
    use crate::device::DeviceId;

    pub(crate) fn device(number: i32, mode: SharingMode, memory_mib: Option<i64>, compute: Option<i32>) -> Device {
        Device {
            id: DeviceId::share("GPU-a", number),
            resource: "gputenancy.io/mps".into(),
            gpu_uuid: "GPU-a".into(),
            gpu_minor: 0,
            mig: None,
            share: Some(Share {
                number,
                mode,
                memory_mib,
                compute,
                limit_mib: None,
                pace: None,
                resize: ResizePolicy::default(),
            }),
            numa: None,
            cordoned: false,
            healthy: true,
        }
    }

    #[test]
    fn unequal_shares_get_their_own_limits_and_folders() {
        let of = |device: &Device| edits(device, Path::new("/run/m"));
        let large = of(&device(0, SharingMode::Mps, Some(30_720), Some(50))).unwrap();
        let limits: Vec<_> = large.env[2..].to_vec();
        let expected = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=30720M"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")];
        assert_eq!(limits, expected.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(large.mounts[0].host, Path::new("/run/m/GPU-a/0/pipe"));
        let without = of(&device(7, SharingMode::Mps, None, None)).unwrap();
        assert_eq!(without.env.len(), 2, "a share without limits has none");
        assert_eq!(without.mounts[1].host, Path::new("/run/m/GPU-a/7/log"));
        assert_eq!(of(&device(0, SharingMode::TimeSlice, None, None)), None);
    }
}
