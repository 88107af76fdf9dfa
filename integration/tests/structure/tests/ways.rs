//! The ways from an event to a write, as the documentation shows them: each step is called by the one above it.

use std::{collections::BTreeSet, fs, path::Path};

use structure::{
    resolve::defining_module,
    source::{self, Crate, ModulePath},
    workspace,
};

/// A step: its depth, and its module.
type Step = (usize, ModulePath);

/// The blocks of the page that show the calls within a crate: the crate, and its steps in order.
fn ways(page: &str) -> Vec<(String, Vec<Step>)> {
    let mut blocks = page.split("```calls ").skip(1).map(|rest| rest.split("```").next().unwrap().lines());
    let step = |line: &str| {
        let depth = line.len() - line.trim_start().len();
        let module = line.split_whitespace().next()?;
        Some((depth, module.split("::").map(str::to_owned).collect()))
    };
    let ways = blocks.by_ref().map(|mut lines| {
        let name = lines.next().unwrap().trim().to_owned();
        (name, lines.filter_map(step).collect())
    });
    ways.collect()
}

/// Does the module, or one below it, use the other one or one below that?
fn uses(krate: &Crate, from: &ModulePath, to: &ModulePath) -> bool {
    let below = krate.iter().filter(|(path, _)| path.starts_with(from) && !path.starts_with(to));
    let mut used = below.flat_map(|(path, module)| module.uses.iter().map(move |used| (path, used)));
    used.any(|(path, used)| defining_module(krate, path, used).is_some_and(|found| found.starts_with(to)))
}

#[test]
fn each_step_is_called_by_the_one_above_it_and_entered_once() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/architecture.md");
    let ways = ways(&fs::read_to_string(page).unwrap());
    assert_eq!(ways.len(), 3, "tenants, the fleet's controller and its decisions");
    let targets = workspace::targets().unwrap();
    let mut findings = Vec::new();
    for (name, steps) in ways {
        let target = targets.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no crate {name}"));
        let krate = source::read(&target.src_path).unwrap();
        assert!(steps.len() > 4, "{steps:?}");
        let all: BTreeSet<&ModulePath> = steps.iter().map(|(_, module)| module).collect();
        assert_eq!(all.len(), steps.len(), "a module is entered once: {steps:?}");
        for (at, (depth, module)) in steps.iter().enumerate() {
            let text = module.join("::");
            if !krate.contains_key(module) {
                findings.push(format!("{text} is no module of {name}"));
                continue;
            }
            let Some((_, above)) = steps[..at].iter().rev().find(|(other, _)| other < depth) else { continue };
            if !uses(&krate, above, module) {
                findings.push(format!("{} does not use {text}", above.join("::")));
            }
            if !module.starts_with(above) && !above.starts_with(module) && uses(&krate, module, above) {
                findings.push(format!("{text} goes back to {}", above.join("::")));
            }
        }
    }
    assert!(findings.is_empty(), "docs/architecture.md:\n{}", findings.join("\n"));
}
