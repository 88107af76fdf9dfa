//! The library on the node. Its name has a hash of its content, so that a release never changes a file that programs have mapped.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Folder of the library below the folder for enforcement.
const FOLDER: &str = "shim";

/// The library, for containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Its path on the host.
    pub path: PathBuf,
    /// Folder of the shares' files, on the host.
    pub shares: PathBuf,
}

/// Copies the library of this image into the folder, which has the same path on the host, and removes those of other releases: programs keep what
/// they have mapped, and containers that are restarted get the new one.
pub fn install(image: &Path, folder: &Path) -> io::Result<Library> {
    let content = fs::read(image)?;
    let hash = Sha256::digest(&content).iter().take(8).fold(0_u64, |hash, byte| hash << 8 | u64::from(*byte));
    let libraries = folder.join(FOLDER);
    fs::create_dir_all(&libraries)?;
    let path = libraries.join(format!("libcuda-{hash:016x}.so"));
    if !path.exists() {
        let fresh = path.with_extension("new");
        fs::write(&fresh, &content)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        fs::rename(&fresh, &path)?;
    }
    for other in fs::read_dir(&libraries)?.flatten().map(|entry| entry.path()).filter(|other| *other != path) {
        fs::remove_file(other)?;
    }
    Ok(Library { path, shares: folder.join("shares") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_a_file_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("image.so");
        fs::write(&image, "one").unwrap();
        let first = install(&image, &root.path().join("e")).unwrap();
        assert_eq!(install(&image, &root.path().join("e")).unwrap(), first);
        assert_eq!(fs::read(&first.path).unwrap(), b"one");
        fs::write(&image, "two").unwrap();
        let second = install(&image, &root.path().join("e")).unwrap();
        assert_ne!(second.path, first.path);
        assert!(!first.path.exists() && second.path.exists());
        assert!(install(Path::new("/nowhere"), root.path()).is_err());
    }
}
