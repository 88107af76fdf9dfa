//! Manifests as kubectl's `-f` takes them: files, folders, standard input.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::error::{FileError, InputError};

/// The text of one file.
#[derive(Clone, Debug)]
pub struct Text {
    /// The file, as in messages.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// Reads files in the order given; of folders every `.yaml`, `.yml` and `.json`, also in folders below, in order of names.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Text>, InputError> {
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        match read_one(path) {
            Ok(read) => texts.extend(read),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(texts) } else { Err(InputError::Files(errors)) }
}

fn read_one(path: &Path) -> Result<Vec<Text>, FileError> {
    let texts = of_path(path)?;
    if texts.is_empty() {
        return Err(FileError::Empty(path.display().to_string()));
    }
    Ok(texts)
}

fn of_path(path: &Path) -> Result<Vec<Text>, FileError> {
    let name = path.display().to_string();
    let failed = |source| FileError::Read { name: name.clone(), source };
    if name == "-" {
        let text = io::read_to_string(io::stdin()).map_err(failed)?;
        return Ok(vec![Text { name: "(standard input)".into(), text }]);
    }
    if !path.is_dir() {
        let text = fs::read_to_string(path).map_err(failed)?;
        return Ok(vec![Text { name, text }]);
    }
    let entries: io::Result<Vec<PathBuf>> =
        fs::read_dir(path).and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect());
    let mut entries = entries.map_err(failed)?;
    entries.sort();
    let mut texts = Vec::new();
    for entry in entries.iter().filter(|e| e.is_dir() || is_manifest(e)) {
        texts.extend(of_path(entry)?);
    }
    Ok(texts)
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
}
