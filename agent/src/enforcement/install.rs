//! The library on the node. Its name has a hash of its content, so that a release never changes a file that programs have mapped.

use std::{
    collections::BTreeSet,
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

/// Copies the library of this image into the folder, which has the same path on the host. The one of another release stays until no specification
/// names it: see [`Library::prune`].
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
    Ok(Library { path, shares: folder.join("shares") })
}

impl Library {
    /// Removes libraries of other releases, and files of shares of other devices than these. Called when the CDI specification on disk does not name them
    /// any more. Programs keep what they have mapped, and what cannot be removed is left.
    pub fn prune<'d>(&self, devices: impl IntoIterator<Item = &'d str>) {
        let libraries = entries(self.path.parent()).into_iter().filter(|path| *path != self.path);
        libraries.for_each(|path| drop(fs::remove_file(path)));
        let known: BTreeSet<&str> = devices.into_iter().collect();
        let is_known =
            |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|n| known.contains(n));
        let unknown = entries(Some(&self.shares)).into_iter().filter(|path| !is_known(path));
        unknown.for_each(|path| drop(fs::remove_dir_all(path)));
    }
}

fn entries(folder: Option<&Path>) -> Vec<PathBuf> {
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
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
        assert!(first.path.exists() && second.path.exists(), "the specification still names the first");
        for uuid in ["GPU-a", "MIG-b"] {
            fs::create_dir_all(second.shares.join(uuid).join("0")).unwrap();
        }
        second.prune(["GPU-a"]);
        assert!(!first.path.exists() && second.path.exists());
        assert!(second.shares.join("GPU-a/0").exists() && !second.shares.join("MIG-b").exists());
        assert!(install(Path::new("/nowhere"), root.path()).is_err());
    }
}
