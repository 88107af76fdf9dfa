//! From what could be read to the report.

use std::collections::BTreeSet;

use gputenancy_crds::{
    Device, GpuProfile, GrantedProfile, QueueUse, TimeSlice,
    projection::{self, SlimQuota},
    quantity::Amount,
    quota::resource_key,
};
use gputenancy_plan::resource_name;
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition},
};
use kube::ResourceExt as _;

use super::{
    Contract, EquivalentBudget, NamespaceObjects, Problem, ProfileBudget, QueuedJobs, ResourceBudget, Share, Sources,
    TenantReport, VirtualPod, Waiting,
    queue::order,
    waiting::{requested, unnamed, waiting},
};
use crate::inside::Inside;

/// Conditions of a tenant that are false when all is well.
const FALSE_WHEN_HEALTHY: &[&str] = &["Reconciling", "Stalled", "Suspended"];
/// Conditions that sum up the others.
const SUMMARIES: &[&str] = &["Ready", "Reconciling", "Stalled"];

/// The report about a tenant. Pure.
pub fn report(sources: &Sources) -> TenantReport {
    let names = profile_names(sources);
    let resources: Vec<(String, String)> =
        names.iter().map(|name| (name.clone(), resource_of(sources, name).unwrap_or_default())).collect();
    let waiting = waiting(sources, &resources);
    let status = sources.tenant.as_ref().and_then(|t| t.status.clone()).unwrap_or_default();
    let ready = |conditions: &[Condition]| {
        conditions.iter().find(|c| c.type_ == "Ready").map_or_else(|| "Unknown".to_owned(), |c| c.status.clone())
    };
    TenantReport {
        api_version: "gputenancy.io/v1alpha1".into(),
        kind: "TenantReport".into(),
        tenant: sources.name.clone(),
        trust: sources.tenant.as_ref().map(|t| format!("{:?}", t.spec.trust)),
        ready: sources.tenant.is_some().then(|| ready(&status.conditions)),
        profiles: resources.iter().map(|(name, resource)| profile(sources, name, resource, &waiting)).collect(),
        equivalents: equivalents(sources),
        queue: status.queue.as_ref().and_then(queue),
        queue_order: order(sources),
        resources: other_resources(sources),
        pods: virtual_pods(sources, &resources),
        waiting,
        waiting_unnamed: unnamed(sources),
        problems: problems(&status.conditions),
        not_visible: sources.hidden.clone(),
    }
}

/// Pods with devices of the tenant's virtual cluster. Agents and NVML know their host names only.
fn virtual_pods(sources: &Sources, resources: &[(String, String)]) -> Vec<VirtualPod> {
    let Some(tenant) = sources.tenant.as_ref().filter(|t| t.spec.virtual_cluster.is_some()) else { return Vec::new() };
    let one = |place: &NamespaceObjects, pod: &Pod| {
        let ended =
            pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| matches!(p, "Succeeded" | "Failed"));
        let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).filter(|_| !ended)?;
        let profiles = requested(pod, resources);
        let (namespace, name) = (place.name.clone(), pod.name_any());
        let inside = Inside::of(tenant, &pod.metadata);
        (!profiles.is_empty()).then_some(VirtualPod { namespace, name, inside, node, profiles })
    };
    let pods = sources.namespaces.iter().flat_map(|place| place.pods.iter().filter_map(move |pod| one(place, pod)));
    let mut pods: Vec<VirtualPod> = pods.collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    pods
}

fn grants(sources: &Sources) -> impl Iterator<Item = &GrantedProfile> {
    sources.namespaces.iter().filter_map(|p| p.grant.as_ref()).flat_map(|g| &g.spec.profiles)
}

fn profile_names(sources: &Sources) -> Vec<String> {
    if let Some(tenant) = &sources.tenant {
        return tenant.spec.gpus.iter().map(|g| g.profile.clone()).collect();
    }
    grants(sources).map(|p| p.name.clone()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn resource_of(sources: &Sources, profile: &str) -> Option<String> {
    let status = sources.tenant.as_ref().and_then(|t| t.status.as_ref());
    let reported = status.into_iter().flat_map(|s| &s.gpus).find(|g| g.profile == profile);
    let reported = reported.map(|g| g.resource_name.clone()).filter(|name| !name.is_empty());
    let granted = || grants(sources).find(|p| p.name == profile).map(|p| p.resource_name.clone());
    let known = || Some(resource_name(profile, &profile_of(sources, profile)?.spec));
    reported.or_else(granted).or_else(known)
}

fn profile_of<'a>(sources: &'a Sources, profile: &str) -> Option<&'a GpuProfile> {
    sources.profiles.iter().find(|p| p.name_any() == profile)
}

fn profile(sources: &Sources, name: &str, resource: &str, waiting: &[Waiting]) -> ProfileBudget {
    let status = sources.tenant.as_ref().and_then(|t| t.status.as_ref());
    let reported = status.into_iter().flat_map(|s| &s.gpus).find(|g| g.profile == name);
    let wanted = sources.tenant.iter().flat_map(|t| &t.spec.gpus).find(|g| g.profile == name).map(|g| g.count);
    let granted = grants(sources).find(|p| p.name == name);
    let key = resource_key(resource);
    let counted: Amount = uses(sources, &key).sum();
    let waits = waiting.iter().filter(|w| w.profiles.iter().any(|p| p == name)).count();
    ProfileBudget {
        profile: name.to_owned(),
        resource_name: resource.to_owned(),
        // the budget is the spec, even before the operator has reconciled it
        budget: wanted.or(granted.map(|g| g.budget)).unwrap_or(0),
        used: reported.map_or_else(|| counted.quantity().0.parse().unwrap_or(i32::MAX), |t| t.used),
        available: reported.map(|t| t.available),
        waiting: reported.map_or_else(|| i32::try_from(waits).unwrap_or(i32::MAX), |t| t.waiting),
        borrowed: reported.map_or(0, |t| t.borrowed),
        lent: reported.map_or(0, |t| t.lent),
        share: reported.and_then(|t| t.share.clone()),
        namespaces: shares(sources, &key),
        contract: contract(profile_of(sources, name), granted),
    }
}

fn equivalents(sources: &Sources) -> Option<EquivalentBudget> {
    let tenant = sources.tenant.as_ref()?;
    let reported = tenant.status.as_ref().and_then(|s| s.equivalents.as_ref());
    let budget = tenant.spec.gpu_equivalents.clone()?;
    Some(EquivalentBudget { budget, used: reported.map(|t| t.used.clone()) })
}

/// The jobs of a queue; `None`: it has none.
fn queue(reported: &QueueUse) -> Option<QueuedJobs> {
    let QueueUse { waiting, admitted } = *reported;
    (waiting > 0 || admitted > 0).then_some(QueuedJobs { waiting, admitted })
}

fn uses<'a>(sources: &'a Sources, key: &'a str) -> impl Iterator<Item = Amount> + 'a {
    sources.namespaces.iter().filter_map(|p| Amount::parse(p.quota.as_ref()?.status.used.get(key)?))
}

/// The larger of the quota's spec and its enforced limit, up to which pods are admitted.
fn limit(quota: &SlimQuota, key: &str) -> Option<Quantity> {
    let of = |hard: &projection::Amounts| {
        hard.get(key).and_then(|quantity| Some((Amount::parse(quantity)?, quantity.clone())))
    };
    let both = of(&quota.spec.hard).into_iter().chain(of(&quota.status.hard));
    both.max_by_key(|(amount, _)| *amount).map(|(_, quantity)| quantity)
}

fn shares(sources: &Sources, key: &str) -> Vec<Share> {
    let share = |place: &NamespaceObjects| {
        let quota = place.quota.as_ref()?;
        let used = quota.status.used.get(key).and_then(Amount::parse).unwrap_or_default();
        let most = Amount::parse(&limit(quota, key)?)?;
        Some(Share { namespace: place.name.clone(), limit: amount_text(key, most), used: amount_text(key, used) })
    };
    sources.namespaces.iter().filter_map(share).collect()
}

/// One form for all amounts of a resource: 5000 is not 5k in one column and 5000 in another.
fn amount_text(key: &str, amount: Amount) -> String {
    gputenancy_decisions::quota::quantity(key, amount).0
}

fn limits<'a>(sources: &'a Sources, key: &'a str) -> impl Iterator<Item = Amount> + 'a {
    sources.namespaces.iter().filter_map(|p| Amount::parse(&limit(p.quota.as_ref()?, key)?))
}

fn other_resources(sources: &Sources) -> Vec<ResourceBudget> {
    // a device's key has a slash behind "requests."
    let other = |key: &&String| key.strip_prefix("requests.").is_none_or(|resource| !resource.contains('/'));
    let quotas = sources.namespaces.iter().filter_map(|p| p.quota.as_ref());
    let budgets = sources.tenant.as_ref().map(|t| &t.spec.resources);
    let keys: BTreeSet<&String> = quotas
        .flat_map(|q| q.spec.hard.keys())
        .filter(other)
        .chain(budgets.into_iter().flat_map(|b| b.keys()))
        .collect();
    let budget = |key: &String| {
        let used: Amount = uses(sources, key).sum();
        let text = |amount: Amount| amount_text(key, amount);
        // the chart's default for every tenant is not readable here; the quotas add up to it
        let sum = || text(limits(sources, key).sum());
        ResourceBudget {
            resource: key.clone(),
            written: budgets.is_some_and(|b| b.contains_key(key)),
            budget: budgets.map(|b| b.get(key).and_then(Amount::parse).map_or_else(sum, text)),
            used: text(used),
            namespaces: shares(sources, key),
        }
    };
    keys.into_iter().map(budget).collect()
}

fn contract(profile: Option<&GpuProfile>, granted: Option<&GrantedProfile>) -> Option<Contract> {
    let spec = profile.map(|p| &p.spec);
    let (expected, incident) = match (spec, granted) {
        (Some(spec), _) => (spec.support.expected.clone(), spec.support.incident.clone()),
        (None, Some(granted)) => (granted.expected.clone(), granted.incident.clone()),
        (None, None) => return None,
    };
    Some(Contract {
        isolation: spec.map(|s| format!("{:?}", s.device.isolation())),
        enforcement: spec.map(|s| enforcement(&s.device).to_owned()),
        expected,
        incident,
    })
}

/// The mechanism that enforces a pod's share of a GPU.
fn enforcement(device: &Device) -> &'static str {
    match device {
        Device { whole: Some(_), .. } => "not needed: the pod has the whole GPU",
        Device { mig: Some(_), .. } => "the GPU (MIG)",
        Device { mps: Some(_), .. } => "NVIDIA's MPS server",
        Device { fraction: Some(_), .. } => {
            "a library in the container limits memory and the part of the time, unless the platform has switched it off"
        }
        Device { time_slice: Some(TimeSlice { of: Some(_), .. }), .. } => {
            "MIG around the instance; between its pods a library in the container limits memory, unless the platform has switched it off"
        }
        Device { whole: None, mig: None, mps: None, fraction: None, time_slice: _ } => {
            "a library in the container limits memory, unless the platform has switched it off; pods take equal turns"
        }
    }
}

/// Unhealthy conditions, without summaries of another one.
fn problems(conditions: &[Condition]) -> Vec<Problem> {
    let wrong = |c: &&Condition| (c.status == "True") == FALSE_WHEN_HEALTHY.contains(&c.type_.as_str());
    let problem =
        |c: &Condition| Problem { condition: c.type_.clone(), reason: c.reason.clone(), message: c.message.clone() };
    let (overall, parts): (Vec<&Condition>, Vec<&Condition>) =
        conditions.iter().filter(wrong).partition(|c| SUMMARIES.contains(&c.type_.as_str()));
    let mut problems: Vec<Problem> = parts.into_iter().map(problem).collect();
    for one in overall.into_iter().map(problem) {
        if !problems.iter().any(|p| p.message == one.message) {
            problems.push(one);
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_omit_summaries_of_other_conditions() {
        let condition = |type_: &str, status: &str, message: &str| Condition {
            type_: type_.into(),
            status: status.into(),
            reason: "R".into(),
            message: message.into(),
            last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
            ),
            observed_generation: None,
        };
        let found = problems(&[
            condition("Ready", "False", "over budget"),
            condition("Reconciling", "False", "over budget"),
            condition("Stalled", "True", "over budget"),
            condition("QuotaReady", "False", "over budget"),
            condition("CapacityReady", "True", "all there"),
            condition("Suspended", "True", "by wish"),
        ]);
        let types: Vec<&str> = found.iter().map(|p| p.condition.as_str()).collect();
        assert_eq!(types, ["QuotaReady", "Suspended"]);
    }
}
