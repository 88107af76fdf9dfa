//! Device nodes: `/dev/nvidia*` that open with ENXIO, as nodes without a driver do.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};

use crate::ids;
use crate::machine::{Devices, Machine};

/// Major number of NVIDIA's GPUs.
pub const NVIDIA_MAJOR: u32 = 195;
/// Folder of the capability nodes in `/dev`.
pub const CAPS: &str = "nvidia-caps";
/// File next to the capability nodes that names their creator.
pub const MARKER: &str = "nvidia-caps/simulated";

/// Creates or corrects a character device node.
pub fn make(path: &Path, (maj, min): (u32, u32), mode: u32) -> io::Result<()> {
    let device = makedev(maj.into(), min.into());
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_char_device() && meta.rdev() == device => {}
        Ok(_) => {
            fs::remove_file(path)?;
            mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), device)?;
        }
        Err(_) => mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), device)?,
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Present capability minors of a machine: those to configure and monitor MIG, and two for each MIG device.
pub fn cap_minors(machine: &Machine) -> BTreeSet<u32> {
    let instances = machine.gpus.iter().flat_map(|gpu| gpu.instances.iter().map(move |gi| (gpu.index, gi)));
    let of_instances = instances.flat_map(|(gpu, gi)| {
        let compute = gi.compute.iter().map(move |ci| ids::ci_minor(gpu, gi.id, ci.id));
        std::iter::once(ids::gi_minor(gpu, gi.id)).chain(compute)
    });
    [1, 2].into_iter().chain(of_instances).collect()
}

/// Updates the capability nodes, if permitted; only in a `/dev` that the simulator owns.
pub fn sync_caps(dev: &Path, machine: &Machine) -> io::Result<()> {
    let Some(Devices { caps_major }) = machine.devices else { return Ok(()) };
    if !dev.join(MARKER).exists() {
        return Ok(());
    }
    let caps = dev.join(CAPS);
    let wanted = cap_minors(machine);
    for entry in fs::read_dir(&caps)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|n| n.strip_prefix("nvidia-cap")?.parse::<u32>().ok());
        if number.is_some_and(|n| !wanted.contains(&n)) {
            remove_if_there(&entry.path())?;
        }
    }
    // as with the real driver, only root may read them, and container runtimes grant access by the device cgroup
    wanted.iter().try_for_each(|n| make(&caps.join(format!("nvidia-cap{n}")), (caps_major, *n), 0o444))
}

/// Whether there are NVIDIA device nodes that the simulator did not create.
pub fn foreign(dev: &Path) -> bool {
    let ours = dev.join(MARKER).exists();
    let nvidia = fs::metadata(dev.join("nvidiactl")).is_ok_and(|m| major(m.rdev()) == u64::from(NVIDIA_MAJOR));
    nvidia && !ours
}

/// Unused majors, highest first, from the text of `/proc/devices`.
pub fn free_majors(proc_devices: &str) -> Vec<u32> {
    let characters = proc_devices.split("Block devices:").next().unwrap_or_default();
    let taken: Vec<u32> = characters.lines().filter_map(|l| l.split_whitespace().next()?.parse().ok()).collect();
    (384..=511).rev().filter(|m| !taken.contains(m)).collect()
}

/// Major and minor of a node.
pub fn numbers(path: &Path) -> io::Result<(u64, u64)> {
    let rdev = fs::metadata(path)?.rdev();
    Ok((major(rdev), minor(rdev)))
}

/// Removes a file that another process may be removing as well.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
