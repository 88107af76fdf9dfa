//! Mounts, with the target named in every error.

use crate::error::{During, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::path::Path;

/// Mounts a new file system of this kind.
pub fn new(kind: &str, target: &Path, flags: MsFlags, options: &str) -> Result<()> {
    fs::create_dir_all(target).during(|| format!("creating {}", target.display()))?;
    let options = (!options.is_empty()).then_some(options);
    mount(Some(kind), target, Some(kind), flags, options).during(|| format!("mounting {kind} on {}", target.display()))
}

/// Bind-mounts a folder or file.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    if source.is_dir() {
        fs::create_dir_all(target).during(|| format!("creating {}", target.display()))?;
    } else if !target.exists() {
        fs::write(target, "").during(|| format!("creating {}", target.display()))?;
    }
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .during(|| format!("binding {} to {}", source.display(), target.display()))
}

/// Like [`bind`], read-only.
pub fn bind_read_only(source: &Path, target: &Path) -> Result<()> {
    bind(source, target)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>)
        .during(|| format!("making {} read-only", target.display()))
}

/// Mounts made below `/` from now on are seen in the mount namespaces of containers that ask for it.
pub fn share_all() -> Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>)
        .during(|| "sharing the mounts below /".to_owned())
}

/// Unmounts, at once or when the last user ends.
pub fn detach(target: &Path) -> Result<()> {
    umount2(target, MntFlags::MNT_DETACH).during(|| format!("unmounting {}", target.display()))
}
