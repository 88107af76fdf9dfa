//! What cargo builds: few programs of tests, and each dependency once.

use std::path::{Path, PathBuf};

use structure::workspace;

use super::files::sources;

/// Crates with more than one program of integration tests, each with its number and the reason.
const PROGRAMS: &[(&str, usize, &str)] = &[];

#[test]
fn crate_has_one_program_of_integration_tests() {
    let all = workspace::test_programs().unwrap();
    assert!(all.len() > 20, "{all:?}");
    for (name, programs) in all {
        let most = PROGRAMS.iter().find(|(known, ..)| *known == name).map_or(1, |(_, most, _)| *most);
        let list = programs.join(", ");
        assert!(
            programs.len() <= most,
            "{name} links {list}: make them modules of tests/main.rs, with autotests = false"
        );
    }
}

/// The names by which other files refer to a file.
fn names(file: &Path) -> [String; 2] {
    let stem = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let module = if stem(file) == "mod" { stem(file.parent().unwrap()) } else { stem(file) };
    [format!("mod {module};"), format!("{}\"", file.file_name().unwrap().to_str().unwrap())]
}

#[test]
fn every_file_of_tests_and_benchmarks_belongs_to_a_program() {
    let roots = workspace::roots().unwrap();
    let crates = roots.iter().filter_map(|root| root.ancestors().find(|folder| folder.join("Cargo.toml").exists()));
    let mut all = Vec::new();
    for folder in crates.collect::<std::collections::BTreeSet<_>>() {
        for part in ["tests", "benches"] {
            all.extend(sources(&folder.join(part)));
        }
    }
    assert!(all.len() > 100, "{}", all.len());
    let refers = |text: &str, file: &Path| names(file).iter().any(|name| text.contains(name));
    let orphan = |file: &PathBuf| !roots.contains(file) && !all.iter().any(|(_, text)| refers(text, file));
    let orphans: Vec<&PathBuf> = all.iter().map(|(file, _)| file).filter(|file| orphan(file)).collect();
    assert!(orphans.is_empty(), "no program has these files: add `mod NAME;` to tests/main.rs: {orphans:?}");
}

#[test]
fn dependencies_have_the_same_features_in_builds_and_tests() {
    let (builds, tests) = (workspace::features(false).unwrap(), workspace::features(true).unwrap());
    // crates of this workspace are rebuilt in any case: they are cheap or tests
    let registry = builds.iter().filter(|(package, _)| !package.contains("(/"));
    let mut findings = Vec::new();
    for (package, features) in registry {
        let more = tests.get(package).into_iter().flatten().filter(|set| !features.contains(*set));
        findings.extend(more.map(|set| format!("{package}: {set}, in builds {features:?}")));
    }
    assert!(builds.len() > 200, "{} crates", builds.len());
    assert!(findings.is_empty(), "add to integration/workspace-hack/Cargo.toml:\n{}", findings.join("\n"));
}
