//! The shape of the workspace.

use std::{collections::BTreeSet, fs, path::Path};

use structure::{cycles::cycles, source, workspace};

/// Crates without I/O.
const PURE: [&str; 4] = ["gputenancy-crds", "gputenancy-plan", "gputenancy-decisions", "gputenancy-agent-core"];
/// Dependencies that a pure crate may not have.
const IMPURE: [&str; 11] = [
    "tokio",
    "axum",
    "hyper",
    "tonic",
    "kube-client",
    "kube-runtime",
    "prometheus-client",
    "nix",
    "libloading",
    "gputenancy-cluster",
    "gputenancy-nvml",
];

/// What is left to untangle, as the test prints it; an entry that no longer occurs is removed.
const KNOWN: &[&str] = &[];

#[test]
fn workspace_modules_have_no_cycles() {
    let targets = workspace::targets().unwrap();
    assert!(targets.len() > 10, "{targets:?}");
    let found = targets.iter().flat_map(|target| {
        let found = cycles(&source::read(&target.src_path).unwrap());
        found.into_iter().map(|cycle| format!("{}: {cycle}", target.name))
    });
    let found: Vec<String> = found.filter(|f| !KNOWN.iter().any(|known| f.starts_with(known))).collect();
    assert!(found.is_empty(), "modules that use each other:\n{}", found.join("\n"));
}

#[test]
fn pure_crates_have_no_runtime_and_no_client() {
    for package in PURE {
        let dependencies = workspace::dependencies(package).unwrap();
        assert!(dependencies.iter().any(|d| d == package), "{dependencies:?}");
        let found: Vec<_> = dependencies.iter().filter(|d| IMPURE.contains(&d.as_str())).collect();
        assert!(found.is_empty(), "{package} depends on {found:?}");
    }
}

#[test]
fn cli_depends_on_pure_crates_of_this_project_only() {
    let dependencies = workspace::dependencies("kubectl-gpu").unwrap();
    // the client of an API server is no part of the operator
    let ours = dependencies.iter().filter(|d| d.starts_with("gputenancy-") && *d != "gputenancy-cluster");
    let found: Vec<_> = ours.filter(|d| !PURE.contains(&d.as_str())).collect();
    assert!(found.is_empty(), "kubectl-gpu depends on {found:?}");
}

#[test]
fn programs_that_plan_nothing_do_not_link_the_planner() {
    for package in ["gputenancy-agent", "gputenancy-virtual-clusters", "gputenancy-cluster"] {
        let dependencies = workspace::dependencies(package).unwrap();
        assert!(dependencies.iter().any(|d| d == "gputenancy-crds"), "{dependencies:?}");
        let planner = ["gputenancy-plan", "gputenancy-decisions"];
        let found: Vec<_> = dependencies.iter().filter(|d| planner.contains(&d.as_str())).collect();
        assert!(found.is_empty(), "{package} depends on {found:?}");
    }
}

#[test]
fn cli_does_not_link_what_daemons_serve_with() {
    let served = |package: &str| {
        let dependencies = workspace::dependencies(package).unwrap();
        let serving = ["axum", "prometheus-client", "tracing-subscriber"];
        dependencies.into_iter().filter(|d| serving.contains(&d.as_str())).collect::<BTreeSet<_>>()
    };
    assert_eq!(served("kubectl-gpu"), BTreeSet::new());
    assert_eq!(served("gputenancy-operator").len(), 3, "the names are those of dependencies");
}

fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    // the runner has a process for each test, and cargo test a thread
    let name = format!("{}-{:?}", std::process::id(), std::thread::current().id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    for (file, text) in files {
        let file = folder.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let found = cycles(&source::read(&folder.join("lib.rs")).unwrap());
    fs::remove_dir_all(folder).unwrap();
    found
}

#[test]
fn cycle_between_folders_is_found_through_a_re_export_and_a_macro() {
    let found = cycles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod deep; mod other; pub use deep::Deep;"),
        ("a/deep.rs", "pub struct Deep;"),
        ("a/other.rs", "pub fn f() { println!(\"{}\", crate::b::g()); }"),
        ("b.rs", "use crate::a::Deep; pub fn g() -> Deep { Deep }"),
    ]);
    assert_eq!(found, ["::{a, b}: a::other uses crate::b::g; b uses Deep"]);
}

#[test]
fn cycle_among_siblings_is_found_through_the_parents_re_export() {
    let found = cycles_of(&[
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod x; mod y; pub use y::Y;"),
        ("a/x.rs", "use super::Y; pub struct X;"),
        ("a/y.rs", "use super::x::X; pub struct Y;"),
    ]);
    assert_eq!(found, ["a::{x, y}: a::x uses super::Y; a::y uses super::x::X"]);
}

#[test]
fn re_exports_test_code_and_parent_items_make_no_cycle() {
    let found = cycles_of(&[
        ("lib.rs", "pub struct Shared; pub mod a; mod b; pub use a::A; pub fn run() { b::next(); }"),
        ("a.rs", "pub struct A(crate::Shared); #[cfg(test)] mod tests { use crate::b::B; }"),
        ("b.rs", "pub struct B(crate::a::A); pub fn next() {}"),
    ]);
    assert_eq!(found, Vec::<String>::new());
}
