//! The specification on disk, replaced atomically.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde_json::Value;

use crate::kubelet::remove_if_exists;

/// The agent's file in the folder of CDI specifications.
#[derive(Debug)]
pub struct SpecFile {
    path: PathBuf,
    /// Time of its last change and length, as written; `None`: there is no file.
    written: Option<(SystemTime, u64)>,
}

impl SpecFile {
    /// In this folder; nothing is written yet.
    pub fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join("gputenancy.io-gpu.json"), written: None }
    }

    /// Removes the file, if it exists.
    pub fn remove(&mut self) -> io::Result<()> {
        self.written = None;
        remove_if_exists(&self.path)
    }

    /// Has another program changed or removed it since it was written?
    pub fn is_changed(&self) -> bool {
        self.written != self.seen()
    }

    fn seen(&self) -> Option<(SystemTime, u64)> {
        let found = fs::metadata(&self.path).ok()?;
        Some((found.modified().ok()?, found.len()))
    }

    /// Writes the specification unless the file has it; without one, removes the file.
    pub fn write(&mut self, spec: Option<&Value>) -> io::Result<()> {
        let Some(spec) = spec else { return self.remove() };
        let content = serde_json::to_vec_pretty(spec)?;
        // read, because another program may have changed it
        if fs::read(&self.path).is_ok_and(|present| present == content) {
            self.written = self.seen();
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // runtimes read only files with the extension .json or .yaml
        let temporary = self.path.with_extension("temporary");
        fs::write(&temporary, &content)?;
        fs::rename(&temporary, &self.path)?;
        self.written = self.seen();
        Ok(())
    }
}
