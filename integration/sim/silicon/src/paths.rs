//! Paths in the state folder and in the simulated driver root.

use std::path::{Path, PathBuf};

/// State folder of a driver root.
pub const STATE_IN_ROOT: &str = "run/nvsim";
/// State folder inside a container.
pub const STATE_IN_CONTAINER: &str = "/run/nvsim";
/// Variable that names the state folder.
pub const STATE_VARIABLE: &str = "NVSIM_STATE";
/// Folder of libraries in a driver root.
pub const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// The state folder for a library or program in a driver root: the root is what precedes its known folder.
pub fn state_of(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    [LIBRARY_FOLDER, "lib/x86_64-linux-gnu", "usr/lib64", "usr/bin"].into_iter().find_map(|known| {
        let text = folder.to_str()?;
        let root = text.strip_suffix(known)?;
        Some(Path::new(if root.is_empty() { "/" } else { root }).join(STATE_IN_ROOT))
    })
}

/// The state folder of a program: from the variable, its own path in a driver root, or a container's.
pub fn state_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os(STATE_VARIABLE).filter(|v| !v.is_empty()) {
        return folder.into();
    }
    let own = std::env::current_exe().ok().and_then(|exe| state_of(&exe)).filter(|s| s.join("state.json").exists());
    own.unwrap_or_else(|| STATE_IN_CONTAINER.into())
}
