//! The specification on disk, replaced in one piece.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::Spec;

/// Our file in the folder of CDI specifications.
#[derive(Debug)]
pub struct SpecFile {
    path: PathBuf,
    written: Option<Vec<u8>>,
}

impl SpecFile {
    /// In this folder; nothing is written yet.
    pub fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join("gputenancy.io-gpu.json"), written: None }
    }

    /// Removes the file, if it is there.
    pub fn remove(&mut self) -> io::Result<()> {
        self.written = None;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the file say this. Container runtimes refuse a specification without devices: then there is no file.
    pub fn write(&mut self, spec: &Spec) -> io::Result<()> {
        if spec.is_empty() {
            return self.remove();
        }
        let content = serde_json::to_vec_pretty(spec)?;
        if self.written.as_ref() == Some(&content) && self.path.exists() {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // runtimes read only names that end in .json or .yaml
        let draft = self.path.with_extension("draft");
        fs::write(&draft, &content)?;
        fs::rename(&draft, &self.path)?;
        self.written = Some(content);
        Ok(())
    }
}
