//! The libraries on the node. Their names have a hash of their content, so that a release never changes a file that programs have mapped.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Folder of the libraries below the folder for enforcement.
const FOLDER: &str = "shim";
/// Folder of the shares' files, below the folder for enforcement.
pub const SHARES: &str = "shares";

/// The libraries, for containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Path on the host of the shim, which limits memory and time.
    pub cuda: PathBuf,
    /// Path on the host of the view, through which NVML shows the share.
    pub nvml: PathBuf,
    /// Folder of the shares' files, on the host.
    pub shares: PathBuf,
}

/// Copies the libraries of this image for CUDA and NVML into the folder, which has the same path on the host. Those of another release stay until no
/// specification names them: see [`Library::prune`].
pub fn install(cuda: &Path, nvml: &Path, folder: &Path) -> io::Result<Library> {
    let libraries = folder.join(FOLDER);
    fs::create_dir_all(&libraries)?;
    Ok(Library {
        cuda: copy(cuda, &libraries, "libcuda")?,
        nvml: copy(nvml, &libraries, "libnvidia-ml")?,
        shares: folder.join(SHARES),
    })
}

/// Copies one of them, under a name that starts with `name`.
fn copy(image: &Path, folder: &Path, name: &str) -> io::Result<PathBuf> {
    let content =
        fs::read(image).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", image.display())))?;
    let hash = Sha256::digest(&content).iter().take(8).fold(0_u64, |hash, byte| hash << 8 | u64::from(*byte));
    let path = folder.join(format!("{name}-{hash:016x}.so"));
    if !path.exists() {
        let fresh = path.with_extension("new");
        fs::write(&fresh, &content)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        fs::rename(&fresh, &path)?;
    }
    Ok(path)
}

impl Library {
    /// Removes libraries of other releases, and files of shares of other devices than these. Called when the CDI specification on disk does not name them
    /// any more. Programs keep what they have mapped, and what cannot be removed is left.
    pub fn prune<'d>(&self, devices: impl IntoIterator<Item = &'d str>) {
        let libraries = entries(self.cuda.parent()).into_iter().filter(|path| *path != self.cuda && *path != self.nvml);
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
        let [cuda, nvml] = ["cuda.so", "nvml.so"].map(|name| root.path().join(name));
        fs::write(&cuda, "one").unwrap();
        fs::write(&nvml, "view").unwrap();
        let install_again = || install(&cuda, &nvml, &root.path().join("e")).unwrap();
        let first = install_again();
        assert_eq!(install_again(), first);
        assert_eq!([&first.cuda, &first.nvml].map(|path| fs::read_to_string(path).unwrap()), ["one", "view"]);
        fs::write(&cuda, "two").unwrap();
        let second = install_again();
        assert_eq!((second.cuda == first.cuda, &second.nvml), (false, &first.nvml));
        assert!(first.cuda.exists() && second.cuda.exists(), "the specification still names the first");
        for uuid in ["GPU-a", "MIG-b"] {
            fs::create_dir_all(second.shares.join(uuid).join("0")).unwrap();
        }
        second.prune(["GPU-a"]);
        assert!(!first.cuda.exists() && second.cuda.exists() && second.nvml.exists());
        assert!(second.shares.join("GPU-a/0").exists() && !second.shares.join("MIG-b").exists());
        let error = install(&cuda, Path::new("/nowhere"), root.path()).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere: "), "{error}");
    }
}
