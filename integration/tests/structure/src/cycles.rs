//! Modules that depend on each other.
//!
//! Compares the children of one module, each with all of its descendants. A parent may define what its children share and call
//! them: parent and child count as one unit.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};

use crate::{
    resolve::defining_module,
    source::{Crate, ModulePath},
};

/// One use between siblings: the names of both and the place where it is written.
type Uses<'a> = BTreeMap<(&'a str, &'a str), String>;

/// Groups of sibling modules that use each other, each with the uses that form the cycle.
pub fn cycles(krate: &Crate) -> Vec<String> {
    let targets: Vec<(&ModulePath, ModulePath, String)> = krate
        .iter()
        .flat_map(|(path, module)| {
            module
                .uses
                .iter()
                .filter_map(move |used| Some((path, defining_module(krate, path, used)?, used.join("::"))))
        })
        .collect();
    let mut by_parent: BTreeMap<ModulePath, Uses> = BTreeMap::new();
    for (from, to, used) in &targets {
        let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        if let (Some(a), Some(b)) = (from.get(shared), to.get(shared)) {
            let place = format!("{} uses {used}", from.join("::"));
            by_parent.entry(to.iter().take(shared).cloned().collect()).or_default().entry((a, b)).or_insert(place);
        }
    }
    by_parent.iter().flat_map(|(parent, uses)| groups(parent, uses)).collect()
}

fn groups(parent: &[String], uses: &Uses) -> Vec<String> {
    let graph: DiGraphMap<&str, ()> = uses.keys().copied().collect();
    let groups = tarjan_scc(&graph).into_iter().filter(|group| group.len() > 1);
    let describe = |group: Vec<&str>| {
        let group: BTreeSet<_> = group.into_iter().collect();
        let within = uses.iter().filter(|((a, b), _)| group.contains(a) && group.contains(b));
        let places: Vec<_> = within.map(|(_, place)| place.as_str()).collect();
        format!("{}::{{{}}}: {}", parent.join("::"), Vec::from_iter(group).join(", "), places.join("; "))
    };
    groups.map(describe).collect()
}
