//! Manifests as kubectl's `-f` takes them: files, folders, standard input.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use super::finding::ok_unless;
use crate::output;

/// The text of one file.
#[derive(Clone, Debug)]
pub struct Text {
    /// The file, as in messages.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// Reads files in the order given; of folders every `.yaml`, `.yml` and `.json`, also in folders below, in order of names.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Text>, Box<dyn Error>> {
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        match read_one(path) {
            Ok(read) => texts.extend(read),
            Err(error) => errors.push(error),
        }
    }
    ok_unless(&errors, texts)
}

/// A folder without manifests is a mistake: with `--prune` it would mean that nothing is wanted.
fn read_one(path: &Path) -> Result<Vec<Text>, String> {
    let texts = of_path(path)?;
    if texts.is_empty() {
        return Err(format!(
            "{}: no file with the ending .yaml, .yml or .json in this folder or below: name the folder of the manifests",
            path.display()
        ));
    }
    Ok(texts)
}

/// The error names the file.
fn of_path(path: &Path) -> Result<Vec<Text>, String> {
    let name = path.display().to_string();
    let failed = |error: io::Error| format!("{name}: {}", reason(&error));
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

/// The cause with what to do, without the number of the operating system's error.
fn reason(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => ": name a file or a folder, or - for standard input",
        io::ErrorKind::InvalidData => ": write the manifest in UTF-8",
        _ => "",
    };
    format!("{}{remedy}", output::cause(error))
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
}
