//! References between profiles, pools and tenants.

use gputenancy_crds::GpuPool;
use gputenancy_operator::{
    plan::{self, Problem, Snapshot},
    pool::weights,
    tenant::weight_unknown,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use kube::ResourceExt as _;

use super::{Finding, at, path};
use crate::{
    input::{Document, Object, Other, Step, written},
    world::World,
};

/// Mistakes between objects; `missing`: an object of this name cannot be read, which is reported already.
pub(super) fn check(
    world: &World,
    places: Places<'_>,
    missing: &impl Fn(&str) -> bool,
    not_checked: &mut Vec<String>,
) -> Vec<Finding> {
    let fleet = &world.fleet;
    if fleet.profiles.is_empty() && fleet.pools.is_empty() && world.tenants.is_empty() {
        return Vec::new();
    }
    let cluster = fleet.cluster();
    let (snapshot, mut problems) = Snapshot::read(&cluster);
    let boards = fleet.gpu_nodes.values().any(|n| n.status.is_some());
    problems.extend(plan::plan(&snapshot).problems.iter().cloned());
    if !boards {
        // without a board everything is short
        problems.retain(|p| !matches!(p, Problem::Shortage { .. }));
        not_checked.push(
            "whether the boards suffice for the budgets: the files have no GpuNode (kubectl gpu snapshot writes them)"
                .to_owned(),
        );
    }
    if fleet.profiles.is_empty() {
        not_checked.push("whether profiles exist: the files have no GpuProfile".to_owned());
    }
    if fleet.pools.is_empty() {
        not_checked.push("whether a pool offers what tenants are guaranteed: the files have no GpuPool".to_owned());
    }
    let mut findings: Vec<Finding> = problems.iter().filter_map(|p| located(p, world, places, missing)).collect();
    findings.extend(unserved(world, places, missing));
    findings.extend(unweighed(&snapshot, world, places, boards, not_checked));
    findings.extend(overlaps(world, places));
    findings
}

/// Places of objects: as documents of files, and as items of snapshots.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub trees: &'a [Other],
    pub documents: &'a [Document],
}

/// A finding on the field of an object; `None` where the object is in no file.
fn finding(places: Places<'_>, kind: &str, name: &str, path: &[Step], message: String) -> Option<Finding> {
    let named = |o: &&Other| o.tree.field("metadata").and_then(|m| m.text("name")) == Some(name);
    if let Some(other) = places.trees.iter().filter(|o| o.tree.text("kind") == Some(kind)).find(named) {
        return Some(at(other, path, message));
    }
    let is = |d: &&Document| match &d.object {
        Object::Profile(o) => kind == "GpuProfile" && o.name_any() == name,
        Object::Pool(o) => kind == "GpuPool" && o.name_any() == name,
        Object::Tenant(o) => kind == "GpuTenant" && o.name_any() == name,
        _ => false,
    };
    let place = places.documents.iter().find(is)?;
    let (file, line) = (place.file.clone(), place.line);
    Some(Finding { file, line, object: format!("{kind} {name}"), field: written(path), message })
}

/// An item of a list, or a field of it.
fn item(list: &str, index: usize, field: &str) -> Vec<Step> {
    let field = if field.is_empty() { Vec::new() } else { path(field) };
    [path(list), vec![Step::Item(index)], field].concat()
}

fn located(problem: &Problem, world: &World, places: Places<'_>, missing: &impl Fn(&str) -> bool) -> Option<Finding> {
    let message = problem.to_string();
    let guarantee = |tenant: &str, profile: &str| {
        let at = world.tenant(tenant)?.spec.gpus.iter().position(|g| g.profile == profile)?;
        Some(item("spec.gpus", at, "profile"))
    };
    let listed = |pool: &str, profile: &str| {
        let at = world.pool(pool)?.spec.profiles.iter().position(|p| p == profile)?;
        Some(item("spec.profiles", at, ""))
    };
    let none = world.fleet.profiles.is_empty();
    let (kind, name, field) = match problem {
        Problem::ProfileNotFound { profile, .. } | Problem::PoolProfileNotFound { profile, .. }
            if none || missing(profile.as_str()) =>
        {
            return None;
        }
        Problem::ProfileNotFound { tenant, profile }
        | Problem::TrustTooLow { tenant, profile, .. }
        | Problem::Shortage { tenant, profile, .. } => {
            ("GpuTenant", tenant.to_string(), guarantee(tenant.as_str(), profile.as_str()))
        }
        Problem::PoolProfileNotFound { pool, profile }
        | Problem::BoardCannot { pool, profile, .. }
        | Problem::PluginCannot { pool, profile, .. } => {
            ("GpuPool", pool.to_string(), listed(pool.as_str(), profile.as_str()))
        }
        Problem::FixedDoesNotFit { pool, .. } | Problem::Outage { pool, .. } => {
            ("GpuPool", pool.to_string(), Some(path("spec.layout")))
        }
        Problem::NodeInTwoPools { pools, .. } => {
            ("GpuPool", pools.first()?.to_string(), Some(path("spec.nodeSelector")))
        }
        Problem::ProfileNotServed { profile, .. } => ("GpuProfile", profile.to_string(), Some(path("spec.device"))),
        Problem::ResourceTaken { profile, .. } => ("GpuProfile", profile.to_string(), Some(path("spec.resourceName"))),
        Problem::Unreadable { object, .. } => {
            let (kind, name) = object.split_once(' ')?;
            let kind = ["GpuProfile", "GpuPool", "GpuTenant"].into_iter().find(|k| *k == kind)?;
            (kind, name.to_owned(), None)
        }
        // another owner of a node is no mistake in these files
        Problem::ForeignPartitioner { .. } => return None,
    };
    finding(places, kind, &name, &field.unwrap_or_default(), message)
}

/// Guarantees of profiles that none of the files' pools lists.
fn unserved(world: &World, places: Places<'_>, missing: &impl Fn(&str) -> bool) -> Vec<Finding> {
    let pools = &world.fleet.pools;
    if pools.is_empty() {
        return Vec::new();
    }
    let offered = |profile: &str| pools.iter().any(|p| p.spec.profiles.iter().any(|name| name == profile));
    let mut findings = Vec::new();
    for tenant in &world.tenants {
        for (index, guarantee) in tenant.spec.gpus.iter().enumerate() {
            let profile = guarantee.profile.as_str();
            // one that does not exist is reported as such
            if guarantee.count == 0 || offered(profile) || world.profile(profile).is_none() || missing(profile) {
                continue;
            }
            let message = format!(
                "{} of profile {profile} are guaranteed, and no GpuPool among the files offers it: list it in spec.profiles of a pool",
                guarantee.count
            );
            let field = item("spec.gpus", index, "profile");
            findings.extend(finding(places, "GpuTenant", &tenant.name_any(), &field, message));
        }
    }
    findings
}

/// Profiles of tenants with `gpuEquivalents` without a known weight; without boards none is known.
fn unweighed(
    snapshot: &Snapshot,
    world: &World,
    places: Places<'_>,
    boards: bool,
    not_checked: &mut Vec<String>,
) -> Vec<Finding> {
    let mut capped = world.tenants.iter().filter(|t| t.spec.gpu_equivalents.is_some()).peekable();
    if capped.peek().is_some() && !boards {
        not_checked.push(
            "what devices count against spec.gpuEquivalents: the files have no GpuNode (kubectl gpu snapshot writes them)"
                .to_owned(),
        );
        return Vec::new();
    }
    let weights = weights(snapshot);
    let mut findings = Vec::new();
    for tenant in capped {
        for (index, guarantee) in tenant.spec.gpus.iter().enumerate().filter(|(_, guarantee)| guarantee.count > 0) {
            // a profile that does not exist or cannot be used is reported as such
            let known = snapshot.profiles.iter().find(|(name, _)| name.as_str() == guarantee.profile);
            let Some((_, profile)) = known.filter(|(_, profile)| tenant.spec.trust >= profile.trust) else { continue };
            if !weights.contains_key(&profile.resource) {
                let field = item("spec.gpus", index, "profile");
                let message = weight_unknown(&guarantee.profile);
                findings.extend(finding(places, "GpuTenant", &tenant.name_any(), &field, message));
            }
        }
    }
    findings
}

/// Pools of which one selects every node of the other. Other overlaps depend on the labels of nodes.
fn overlaps(world: &World, places: Places<'_>) -> Vec<Finding> {
    let pools = &world.fleet.pools;
    let mut findings = Vec::new();
    for (index, one) in pools.iter().enumerate() {
        for other in pools.iter().skip(index + 1) {
            let (narrow, wide) = match (within(one, other), within(other, one)) {
                (true, _) => (one, other),
                (false, true) => (other, one),
                (false, false) => continue,
            };
            let (narrow, wide) = (narrow.name_any(), wide.name_any());
            let message = format!(
                "every node of this pool is also selected by pool {wide}, and neither acts on such a node: narrow spec.nodeSelector so that \
                 one pool selects it"
            );
            findings.extend(finding(places, "GpuPool", &narrow, &path("spec.nodeSelector"), message));
        }
    }
    findings
}

/// Whether the first selector contains everything the second requires.
fn within(narrow: &GpuPool, wide: &GpuPool) -> bool {
    let (narrow, wide) = (&narrow.spec.node_selector, &wide.spec.node_selector);
    let has = |key: &String, value: &String| narrow.match_labels.iter().flatten().any(|(k, v)| k == key && v == value);
    let asks = |wanted: &LabelSelectorRequirement| narrow.match_expressions.iter().flatten().any(|e| e == wanted);
    wide.match_labels.iter().flatten().all(|(k, v)| has(k, v)) && wide.match_expressions.iter().flatten().all(asks)
}
