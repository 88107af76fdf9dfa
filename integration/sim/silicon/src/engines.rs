//! The file in which the simulated CUDA keeps when the engine of each device is free: eight bytes for each, which processes map.

use std::{fs, fs::OpenOptions, io, os::unix::fs::PermissionsExt, path::Path};

/// Name of the file in the state folder.
pub const FILE: &str = "engines";
/// Bytes of the file: see [`index`].
pub const SIZE: u64 = 64 * 16 * 8 * 8;

/// Number of a device's engine, of 64 GPUs with 16 GPU instances with 8 compute instances each.
pub fn index(gpu: u32, instance: Option<(u32, u32)>) -> usize {
    let (gi, ci) = instance.unwrap_or((0, 0));
    let index = (gpu.min(63) * 16 + gi.min(15)) * 8 + ci.min(7);
    usize::try_from(index).unwrap_or(0)
}

/// Creates the file, writable for all users because containers are not root on the node.
pub fn create(dir: &Path) -> io::Result<()> {
    let path = dir.join(FILE);
    OpenOptions::new().create(true).truncate(false).write(true).open(&path)?.set_len(SIZE)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_in_the_file() {
        assert_eq!(u64::try_from(index(63, Some((15, 7)))).unwrap() * 8 + 8, SIZE);
        assert_ne!(index(0, Some((1, 0))), index(1, None));
    }
}
