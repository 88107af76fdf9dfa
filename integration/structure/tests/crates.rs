//! What cargo builds: few programs of tests, and each dependency once.

use structure::workspace;

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
