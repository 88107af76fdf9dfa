//! Condition types in the sources of the programs are in the table, and so on the reference page. Reasons need no such test: a
//! `Reason` can only come from the table.

use std::{collections::BTreeSet, fs, path::Path};

use gputenancy_crds::reasons;

/// Crates whose code sets conditions.
const CRATES: [&str; 2] = ["../agent/daemon/src", "../operator/controller/src"];

/// Text constants in `CamelCase` of files that set conditions.
fn types(folder: &Path, found: &mut BTreeSet<String>) {
    for path in fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            types(&path, found);
        } else if let Ok(text) = fs::read_to_string(&path)
            && text.contains("ConditionUpdate")
        {
            let constants = text.lines().filter_map(|line| line.split_once(": &str = \"")?.1.strip_suffix("\";"));
            found.extend(constants.filter(|c| c.starts_with(char::is_uppercase)).map(str::to_owned));
        }
    }
}

#[test]
fn sources_use_only_listed_condition_types() {
    let mut found = BTreeSet::new();
    for folder in CRATES {
        types(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found);
    }
    let (_, entries) = reasons::SECTIONS[0];
    let unknown: Vec<&String> = found.iter().filter(|name| entries.iter().all(|e| e.name != name.as_str())).collect();
    assert!(found.len() >= 10 && unknown.is_empty(), "not in crds/src/reasons.rs: {unknown:?}");
}
