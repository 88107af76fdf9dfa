//! Resolves a path in a module to the module that defines its target.

use crate::source::{Crate, Module, ModulePath};

/// Limit for chains of re-exports; a longer one is a loop of globs.
const LONGEST_CHAIN: usize = 16;

/// The module that defines what `path` names in `module`; `None` for paths into other crates and for local names.
pub fn defining_module(krate: &Crate, module: &ModulePath, path: &[String]) -> Option<ModulePath> {
    relative(krate, module, path, LONGEST_CHAIN)
}

fn relative(krate: &Crate, module: &ModulePath, path: &[String], chain: usize) -> Option<ModulePath> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => absolute(krate, Vec::new(), rest, chain),
        "self" => absolute(krate, module.clone(), rest, chain),
        "super" => {
            let mut parent = module.clone();
            parent.pop()?;
            match rest.first().map(String::as_str) {
                Some("super") => relative(krate, &parent, rest, chain),
                _ => absolute(krate, parent, rest, chain),
            }
        }
        // a name in scope: a child module, an item of the module itself, or one that a `use` brought in
        _ => in_scope(krate, module, path, chain),
    }
}

fn in_scope(krate: &Crate, module: &ModulePath, path: &[String], chain: usize) -> Option<ModulePath> {
    let name = path.first()?;
    let here: &Module = krate.get(module)?;
    let child = [module.clone(), vec![name.clone()]].concat();
    if krate.contains_key(&child) || here.defines.contains(name) || here.imports.contains_key(name) {
        absolute(krate, module.clone(), path, chain)
    } else {
        None
    }
}

/// Follows `rest` from `at` through child modules and re-exports.
fn absolute(krate: &Crate, mut at: ModulePath, rest: &[String], chain: usize) -> Option<ModulePath> {
    let chain = chain.checked_sub(1)?;
    let mut rest = rest;
    while let Some((name, after)) = rest.split_first() {
        at.push(name.clone());
        if krate.contains_key(&at) {
            rest = after;
            continue;
        }
        at.pop();
        let here = krate.get(&at)?;
        if here.defines.contains(name) {
            break;
        }
        if let Some(target) = here.imports.get(name) {
            let target = [target.as_slice(), after].concat();
            // an imported name of another crate has no module here
            return if target.first() == Some(name) { None } else { relative(krate, &at, &target, chain) };
        }
        return here.globs.iter().find_map(|glob| {
            let found = relative(krate, &at, &[glob.as_slice(), rest].concat(), chain)?;
            krate.get(&found).is_some_and(|m| m.defines.contains(name)).then_some(found)
        });
    }
    krate.contains_key(&at).then_some(at)
}
