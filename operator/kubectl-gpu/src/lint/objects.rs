//! References between profiles, pools and tenants.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuPool, GpuTenant, Guarantee, words::are};
use gputenancy_decisions::quota::{device_weights, unknown_weight_message};
use gputenancy_plan::{self as plan, Problem, Snapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use kube::ResourceExt;

use super::{queues, sharing};
use crate::{
    input::{Finding, Located},
    world::World,
};

/// Mistakes between objects; `broken`: names of objects that cannot be read, which is reported already.
pub(super) fn check(
    world: &World,
    ours: &[Located],
    broken: &BTreeSet<&str>,
    not_checked: &mut Vec<String>,
) -> Vec<Finding> {
    let fleet = &world.fleet;
    if fleet.profiles.is_empty() && fleet.pools.is_empty() && world.tenants.is_empty() {
        return Vec::new();
    }
    let cluster = fleet.cluster();
    let (snapshot, mut problems) = Snapshot::read(&cluster);
    problems.extend(plan::plan(&snapshot).problems.iter().cloned());
    let boards = fleet.gpu_nodes.values().any(|n| n.status.is_some());
    let capped = world.tenants.iter().any(|t| t.spec.gpu_equivalents.is_some());
    let gaps = [
        (!boards, "whether the boards suffice for the budgets", "GpuNode (kubectl gpu snapshot writes them)"),
        (fleet.profiles.is_empty(), "whether profiles exist", "GpuProfile"),
        (fleet.pools.is_empty(), "whether a pool offers what tenants are guaranteed", "GpuPool"),
        (
            !boards && capped,
            "what devices count against spec.gpuEquivalents",
            "GpuNode (kubectl gpu snapshot writes them)",
        ),
    ];
    let missing = gaps.into_iter().filter(|(missing, ..)| *missing);
    not_checked.extend(missing.map(|(_, what, kind)| format!("{what}: the files have no {kind}")));
    if !boards {
        // without a board everything is short
        problems.retain(|p| !matches!(p, Problem::Shortage { .. }));
    }
    let check = Check { world, ours, broken };
    let mut findings: Vec<Finding> = problems.iter().filter_map(|p| check.located(p)).collect();
    if !fleet.pools.is_empty() {
        findings.extend(check.unserved());
        findings.extend(check.left_with_shares());
    }
    if boards {
        findings.extend(check.unweighed(&snapshot));
    }
    findings.extend(check.overlaps());
    findings.extend(check.contested());
    let mistakes = queues::mistakes(world).into_iter();
    findings.extend(mistakes.filter_map(|m| check.finding(m.kind, &m.name, &m.pointer, m.message)));
    findings
}

struct Check<'a> {
    world: &'a World,
    ours: &'a [Located],
    broken: &'a BTreeSet<&'a str>,
}

impl Check<'_> {
    /// A finding on the field of an object; `None` where the object is in no file.
    fn finding(&self, kind: &str, name: &str, pointer: &str, message: String) -> Option<Finding> {
        let is = |o: &&Located| o.text("/kind") == Some(kind) && o.text("/metadata/name") == Some(name);
        // of two objects with one name the later one counts
        Some(self.ours.iter().rfind(is)?.finding(pointer, message))
    }

    fn located(&self, problem: &Problem) -> Option<Finding> {
        let guarantee = |tenant: &str, profile: &str| {
            let at = self.world.tenant(tenant)?.spec.gpus.iter().position(|g| g.profile == profile)?;
            Some(format!("/spec/gpus/{at}/profile"))
        };
        let listed = |pool: &str, profile: &str| {
            let at = self.world.pool(pool)?.spec.profiles.iter().position(|p| p == profile)?;
            Some(format!("/spec/profiles/{at}"))
        };
        let none = self.world.fleet.profiles.is_empty();
        let (kind, name, pointer) = match problem {
            // a profile of the files that is not found is refused for another reason, which is reported
            Problem::ProfileNotFound { profile, .. } | Problem::PoolProfileNotFound { profile, .. }
                if none || self.broken.contains(profile.as_str()) || self.world.profile(profile.as_str()).is_some() =>
            {
                return None;
            }
            Problem::ProfileNotFound { tenant, profile }
            | Problem::TrustTooLow { tenant, profile, .. }
            | Problem::SharingNotAcknowledged { tenant, profile, .. }
            | Problem::Shortage { tenant, profile, .. } => {
                ("GpuTenant", tenant.as_str(), guarantee(tenant.as_str(), profile.as_str()))
            }
            Problem::PoolProfileNotFound { pool, profile }
            | Problem::ProfileNotSupported { pool, profile, .. }
            | Problem::ShareNotServed { pool, profile, .. }
            | Problem::StrategyMismatch { pool, profile, .. }
            | Problem::ShareNotSupported { pool, profile, .. }
            | Problem::ResourceNameNotSupported { pool, profile, .. } => {
                ("GpuPool", pool.as_str(), listed(pool.as_str(), profile.as_str()))
            }
            Problem::FixedDoesNotFit { pool, .. } | Problem::Outage { pool, .. } => {
                ("GpuPool", pool.as_str(), Some("/spec/layout".into()))
            }
            Problem::NodeInTwoPools { pools, .. } => {
                ("GpuPool", pools.first()?.as_str(), Some("/spec/nodeSelector".into()))
            }
            Problem::ResourceNameConflict { profile, .. } => {
                ("GpuProfile", profile.as_str(), Some("/spec/resourceName".into()))
            }
            Problem::NamespaceConflict { tenant, namespace, .. } => {
                let at =
                    self.world.tenant(tenant.as_str())?.spec.namespaces.iter().position(|n| n.name == *namespace)?;
                ("GpuTenant", tenant.as_str(), Some(format!("/spec/namespaces/{at}/name")))
            }
            Problem::InvalidSpec { object, what } => {
                let (kind, name) = object.split_once(' ')?;
                let (field, message) = what.split_once(": ").filter(|(field, _)| field.starts_with("spec.")).unzip();
                let pointer = field.map_or_else(String::new, |field| format!("/{}", field.replace('.', "/")));
                return self.finding(kind, name, &pointer, message.unwrap_or(what).to_owned());
            }
            // another owner of a node, and what its agent can limit, is no mistake in these files
            Problem::ForeignPartitioner { .. } | Problem::EnforcementTooWeak { .. } => return None,
        };
        self.finding(kind, name, &pointer.unwrap_or_default(), problem.to_string())
    }

    /// Every guarantee of devices, with the pointer of its profile.
    fn guarantees(&self) -> impl Iterator<Item = (&GpuTenant, &Guarantee, String)> {
        self.world.tenants.iter().flat_map(|tenant| {
            let guarantees = tenant.spec.gpus.iter().enumerate().filter(|(_, guarantee)| guarantee.count > 0);
            guarantees.map(move |(at, guarantee)| (tenant, guarantee, format!("/spec/gpus/{at}/profile")))
        })
    }

    /// Guarantees of profiles that none of the files' pools lists. Profiles that do not exist are reported as such.
    fn unserved(&self) -> impl Iterator<Item = Finding> {
        let pools = &self.world.fleet.pools;
        let served = |profile: &String| {
            let exists = self.world.profile(profile).is_some() && !self.broken.contains(profile.as_str());
            !exists || pools.iter().any(|p| p.spec.profiles.contains(profile))
        };
        let unserved = self.guarantees().filter(move |(_, guarantee, _)| !served(&guarantee.profile));
        unserved.filter_map(|(tenant, guarantee, pointer)| {
            let message = format!(
                "{} of profile {} {} guaranteed, and no GpuPool among the files offers it: list it in spec.profiles of a pool",
                guarantee.count,
                guarantee.profile,
                are(&guarantee.count)
            );
            self.finding("GpuTenant", &tenant.name_any(), &pointer, message)
        })
    }

    /// Workloads of the snapshot on whole GPUs, where a pool offers shares and none whole GPUs.
    fn left_with_shares(&self) -> impl Iterator<Item = Finding> {
        let shared = |pool: &&GpuPool| {
            let share =
                |name: &String| self.world.profile(name).is_some_and(|p| p.spec.device.sharing_mode().is_some());
            pool.spec.profiles.iter().any(share)
        };
        let pool = self.world.fleet.pools.iter().find(shared).map(ResourceExt::name_any);
        let workloads = pool.map(|pool| (pool, sharing::left_with_shares(self.world)));
        workloads.into_iter().flat_map(|(pool, all)| all.into_iter().map(move |one| (pool.clone(), one))).filter_map(
            |(pool, (workload, why))| self.finding("GpuPool", &pool, "/spec/profiles", format!("{workload} {why}")),
        )
    }

    /// Profiles of tenants with `gpuEquivalents` without a known weight. Profiles that cannot be used are reported as such.
    fn unweighed(&self, snapshot: &Snapshot) -> impl Iterator<Item = Finding> {
        let weights = device_weights(snapshot);
        let capped = self.guarantees().filter(|(tenant, ..)| tenant.spec.gpu_equivalents.is_some());
        capped.filter_map(move |(tenant, guarantee, pointer)| {
            let (_, profile) = snapshot.profiles.iter().find(|(name, _)| name.as_str() == guarantee.profile)?;
            let share = profile.shape.sharing_mode().is_some();
            let usable = tenant.spec.trust >= profile.trust && (!share || tenant.spec.acknowledges_shares());
            let unknown = usable && !weights.contains_key(&profile.resource);
            let message = unknown.then(|| unknown_weight_message(&guarantee.profile))?;
            self.finding("GpuTenant", &tenant.name_any(), &pointer, message)
        })
    }

    /// Namespaces that two tenants list. One whose owner is known is reported as a conflict.
    fn contested(&self) -> Vec<Finding> {
        let owned = |namespace: &str| {
            let states = self.world.tenants.iter().flat_map(|t| &t.status).flat_map(|status| &status.namespaces);
            states.filter(|state| state.is_own()).any(|state| state.name == namespace)
        };
        let mut first: BTreeMap<&str, String> = BTreeMap::new();
        let mut findings = Vec::new();
        for tenant in &self.world.tenants {
            for (at, namespace) in tenant.spec.namespaces.iter().enumerate() {
                let Some(other) = first.get(namespace.name.as_str()).filter(|other| **other != tenant.name_any())
                else {
                    first.entry(&namespace.name).or_insert_with(|| tenant.name_any());
                    continue;
                };
                if owned(&namespace.name) {
                    continue;
                }
                let message = format!(
                    "GpuTenant {other} lists {} as well, and a namespace has one tenant: choose another name",
                    namespace.name
                );
                let pointer = format!("/spec/namespaces/{at}/name");
                findings.extend(self.finding("GpuTenant", &tenant.name_any(), &pointer, message));
            }
        }
        findings
    }

    /// Pools of which one selects every node of the other. Other overlaps depend on the labels of nodes.
    fn overlaps(&self) -> Vec<Finding> {
        let pools = &self.world.fleet.pools;
        let mut findings = Vec::new();
        for (index, one) in pools.iter().enumerate() {
            for other in pools.iter().skip(index + 1) {
                let (narrow, wide) = match (within(one, other), within(other, one)) {
                    (true, _) => (one, other),
                    (false, true) => (other, one),
                    (false, false) => continue,
                };
                let message = format!(
                    "every node of this pool is also selected by pool {}, and neither acts on such a node: narrow spec.nodeSelector so \
                     that one pool selects it",
                    wide.name_any()
                );
                findings.extend(self.finding("GpuPool", &narrow.name_any(), "/spec/nodeSelector", message));
            }
        }
        findings
    }
}

/// Whether the first selector contains everything the second requires.
fn within(narrow: &GpuPool, wide: &GpuPool) -> bool {
    let (narrow, wide) = (&narrow.spec.node_selector, &wide.spec.node_selector);
    let has = |key: &String, value: &String| narrow.match_labels.iter().flatten().any(|(k, v)| k == key && v == value);
    let requires = |wanted: &LabelSelectorRequirement| narrow.match_expressions.iter().flatten().any(|e| e == wanted);
    wide.match_labels.iter().flatten().all(|(k, v)| has(k, v)) && wide.match_expressions.iter().flatten().all(requires)
}
