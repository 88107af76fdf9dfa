//! `integration/levels` names tests that exist, and its gate has a test for each group of promises.

use std::{fs, path::Path};

use super::files::sources;

const GROUPS: [&str; 10] = [
    "MIG change",
    "sharing modes",
    "enforcement",
    "hand-over of devices",
    "admission",
    "budget",
    "usage",
    "liveness",
    "chart upgrade",
    "virtual clusters",
];

fn integration() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// The lines under a heading of the list.
fn section(name: &str) -> Vec<String> {
    let list = fs::read_to_string(integration().join("levels")).unwrap();
    let lines = list.lines().skip_while(|line| *line != format!("[{name}]")).skip(1);
    lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn tests_of_the_gate_exist() {
    let names: Vec<String> = section("gate").into_iter().filter(|line| !line.starts_with('#')).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let (module, function) = name.rsplit_once("::").unwrap();
        let path = integration().join("tests/e2e/tests/e2e").join(module.replace("::", "/"));
        let folder = path.join("mod.rs");
        let file = if folder.exists() { folder } else { path.with_extension("rs") };
        let text = fs::read_to_string(&file).unwrap_or_default();
        assert!(text.contains(&format!("fn {function}()")), "integration/levels: {name} is not in {}", file.display());
    }
}

#[test]
fn tests_of_level_full_exist() {
    let files = sources(integration().parent().unwrap());
    for name in section("full").into_iter().filter(|line| !line.starts_with('#')) {
        let function = format!("fn {}()", name.rsplit("::").next().unwrap());
        assert!(files.iter().any(|(_, text)| text.contains(&function)), "integration/levels: no test is named {name}");
    }
}

#[test]
fn gate_has_a_test_for_each_group_of_promises() {
    let lines = section("gate");
    let headings: Vec<&String> = lines.iter().filter(|line| line.starts_with('#')).collect();
    assert_eq!(headings.len(), GROUPS.len(), "{headings:?}");
    for (heading, group) in headings.iter().zip(GROUPS) {
        assert!(heading.trim_start_matches("# ").starts_with(group), "{heading}: not {group}");
    }
    let ends_with_heading = lines.last().is_some_and(|line| line.starts_with('#'));
    let two = lines.windows(2).find(|pair| pair.iter().all(|line| line.starts_with('#')));
    assert!(two.is_none() && !ends_with_heading, "a group without a test: {two:?}");
}
