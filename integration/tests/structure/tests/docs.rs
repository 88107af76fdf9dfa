//! References in the documentation: links, file paths, make targets and chart values.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use structure::docs::{Page, pages};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

fn all() -> Vec<Page> {
    let root = root();
    let all: Vec<Page> = pages(&root).unwrap().iter().map(|path| Page::read(&root, path).unwrap()).collect();
    assert!(all.len() > 10, "{} pages", all.len());
    all
}

/// Fails with all findings.
fn report(findings: &[String]) {
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn links_lead_to_existing_files_and_headings() {
    let (root, mut findings) = (root(), Vec::new());
    for page in all() {
        for (line, target) in page.links().into_iter().filter(|(_, target)| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
            let path = if file.is_empty() { page.path.clone() } else { page.path.parent().unwrap().join(file) };
            let exists = root.join(&path).exists();
            let anchored = anchor.is_none_or(|a| exists && Page::read(&root, &path).unwrap().anchors().contains(a));
            if !exists || !anchored {
                findings.push(format!("{}:{line}: {target} does not exist", page.path.display()));
            }
        }
    }
    report(&findings);
}

#[test]
fn file_paths_in_code_exist() {
    let root = root();
    let folders: Vec<String> = fs::read_dir(&root)
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.path().is_dir() && entry.file_name() != "target")
        .map(|entry| format!("{}/", entry.file_name().display()))
        .collect();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let mut findings = Vec::new();
    for page in all() {
        for (line, word) in page.code() {
            let path = word.trim_end_matches([',', ';', ':', ')']);
            let named = folders.iter().any(|folder| path.starts_with(folder)) && path.chars().all(plain);
            if named && !root.join(path).exists() {
                findings.push(format!("{}:{line}: {path} does not exist", page.path.display()));
            }
        }
    }
    report(&findings);
}

#[test]
fn make_targets_in_code_exist() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let mut findings = Vec::new();
    for page in all() {
        let code = page.code();
        for pair in code.windows(2) {
            let [(first, "make"), (second, target)] = pair else { continue };
            let named = first == second && target.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            if named && !makefile.contains(&format!("\n{target}:")) {
                findings.push(format!("{}:{first}: make {target} does not exist", page.path.display()));
            }
        }
    }
    report(&findings);
}

/// Whether the values have this path; below an empty map and in a list every key is possible.
fn has_value(values: &Value, path: &[&str]) -> bool {
    let Some((key, rest)) = path.split_first() else { return true };
    match values {
        Value::Object(map) if map.is_empty() => true,
        Value::Object(map) => map.get(*key).is_some_and(|value| has_value(value, rest)),
        Value::Array(_) => true,
        _ => false,
    }
}

#[test]
fn chart_values_in_code_exist() {
    let values = fs::read_to_string(root().join("helm/gputenancy/values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let mut findings = Vec::new();
    for page in all() {
        for (line, word) in page.code() {
            let name = word.trim_start_matches(['\'', '"']).split(['=', ':']).next().unwrap_or_default();
            let path: Vec<&str> = name.split('.').collect();
            let value = path.len() > 1
                && values.get(path[0]).is_some()
                && path.iter().all(|key| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric()));
            if value && !has_value(&values, &path) {
                findings.push(format!("{}:{line}: the chart has no value {name}", page.path.display()));
            }
        }
    }
    report(&findings);
}

#[test]
fn readme_has_at_most_150_lines() {
    let lines = Page::read(&root(), Path::new("README.md")).unwrap().lines();
    assert!(lines <= 150, "README.md has {lines} lines");
}

#[test]
fn every_metric_is_in_the_reference() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/reference/metrics.md")).unwrap();
    let mut findings = Vec::new();
    for (program, prefix, least) in [
        ("operator/controller/src/metrics.rs", "gputenancy_operator", 9),
        ("agent/daemon/src/metrics/mod.rs", "gputenancy_agent", 9),
        ("operator/virtual-clusters/src/metrics.rs", "gputenancy", 7),
    ] {
        let source = fs::read_to_string(root.join(program)).unwrap();
        // the name is the first text after each call
        let calls = source.split("register(").skip(1).chain(source.split("register_with_unit(").skip(1));
        let calls = calls.map(str::trim_start).filter(|call| call.starts_with("r,") || call.starts_with('"'));
        let names: Vec<&str> = calls.filter_map(|call| call.split('"').nth(1)).collect();
        assert!(names.len() >= least, "{program}: {names:?}");
        for name in names {
            let name = format!("{prefix}_{name}");
            let is_listed =
                ["`", "_total`", "_seconds`"].iter().any(|ending| page.contains(&format!("`{name}{ending}")));
            if !is_listed {
                findings.push(format!("docs/reference/metrics.md lacks {name}"));
            }
        }
    }
    report(&findings);
}
