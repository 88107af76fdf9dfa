//! How sources lie in folders: few side by side, and modules in one style.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::files::sources;

/// Most sources side by side in one folder: a reader looks for one among them.
const MOST: usize = 15;

/// Folders with more, and their number, which may only fall: their modules use each other, so that a folder for some of them would be in a cycle with
/// the rest.
const LARGE: &[(&str, usize)] = &[
    ("agent/shim/src", 23),
    ("integration/lab/src", 29),
    ("integration/sim/cuda-sim/src", 25),
    ("integration/sim/silicon/src", 31),
    ("integration/tests/e2e/src", 20),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// All sources, below the root of the repository.
fn files() -> Vec<PathBuf> {
    let root = root();
    let files = sources(&root).into_iter();
    let files: Vec<PathBuf> = files.map(|(file, _)| file.strip_prefix(&root).unwrap().to_owned()).collect();
    assert!(files.len() > 500, "{} files", files.len());
    files
}

#[test]
fn folder_has_few_sources_side_by_side() {
    let mut folders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in files() {
        *folders.entry(file.parent().unwrap().to_owned()).or_default() += 1;
    }
    let most = |folder: &Path| LARGE.iter().find(|(known, _)| Path::new(known) == folder).map_or(MOST, |(_, n)| *n);
    let large = folders.iter().filter(|(folder, count)| **count > most(folder));
    let large: Vec<String> =
        large.map(|(folder, count)| format!("{}: {count} files, at most {}", folder.display(), most(folder))).collect();
    assert!(large.is_empty(), "group them in folders:\n{}", large.join("\n"));
    let smaller = LARGE.iter().filter(|(folder, count)| folders.get(Path::new(folder)).is_none_or(|now| now < count));
    let smaller: Vec<&str> = smaller.map(|(folder, _)| *folder).collect();
    assert!(smaller.is_empty(), "lower their number in LARGE: {smaller:?}");
}

#[test]
fn module_with_children_is_the_mod_file_of_its_folder() {
    let root = root();
    let has_folder = |file: &PathBuf| root.join(file).with_extension("").is_dir();
    let found: Vec<PathBuf> = files().into_iter().filter(has_folder).collect();
    assert!(found.is_empty(), "move them to mod.rs of their folder: {found:?}");
}
