//! Workloads: where their pods' specs stand, and what is asked of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Assumed, Finding, admission, at, beside, grant, path};
use crate::{
    input::{Other, Step},
    world::World,
};

/// Where a kind keeps the template of its pods; none: it is no workload.
fn template(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some(""),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
            Some("spec.template")
        }
        "CronJob" => Some("spec.jobTemplate.spec.template"),
        "PodTemplate" => Some("template"),
        _ => None,
    }
}

/// What the API server would refuse of these objects, as far as the files tell.
pub(super) fn check(
    world: &World,
    others: &[Other],
    assumed: Assumed<'_>,
    not_checked: &mut Vec<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    // by namespace, how many could only be looked at in part
    let (mut strangers, mut ungranted) = (BTreeMap::<String, usize>::new(), BTreeSet::new());
    for other in others {
        let object = other.tree.value();
        let kind = other.tree.text("kind").unwrap_or_default();
        findings.extend(quota(other, kind, &object));
        let claim = matches!(kind, "ResourceClaim" | "ResourceClaimTemplate");
        let named = other.tree.field("metadata").and_then(|m| m.text("namespace"));
        let place = named.or(assumed.namespace).unwrap_or("(none named)");
        let tenant = world.tenant_of(place).and_then(|name| world.tenant(&name));
        if !claim && template(kind).is_none() {
            // of these nothing is known to be wrong in other namespaces
            let found = tenant.map(|tenant| beside::refused(kind, &object, &tenant.spec)).unwrap_or_default();
            findings.extend(found.into_iter().map(|r| at(other, &r.path, r.message)));
            continue;
        }
        let prefix = template(kind).filter(|p| !p.is_empty()).map(path).unwrap_or_default();
        let pod = prefix.iter().try_fold(&object, |value, step| match step {
            Step::Field(name) => value.get(name),
            Step::Item(_) => None,
        });
        let told = |found: Vec<admission::Refusal>| -> Vec<Finding> {
            let place = |r: admission::Refusal| at(other, &[prefix.clone(), r.path].concat(), r.message);
            found.into_iter().map(place).collect()
        };
        if let Some(pod) = pod.filter(|_| !claim) {
            findings.extend(told(admission::amounts(pod)));
        }
        let Some(tenant) = tenant else {
            *strangers.entry(place.to_owned()).or_default() += 1;
            continue;
        };
        if claim {
            findings.extend(told(admission::claim(kind, &object)));
            continue;
        }
        let grant = grant::of(world, tenant);
        if grant.is_none() {
            ungranted.insert(tenant.metadata.name.clone().unwrap_or_default());
        }
        if let Some(grant) = grant.as_ref().filter(|_| !prefix.is_empty()) {
            let place = |r: admission::Refusal| at(other, &r.path, r.message);
            findings.extend(admission::queues(&object, grant).into_iter().map(place));
        }
        findings.extend(pod.map(|pod| told(admission::pod(pod, grant.as_ref(), assumed))).unwrap_or_default());
    }
    if !strangers.is_empty() {
        let places: Vec<String> = strangers.iter().map(|(place, count)| format!("{place} ({count})")).collect();
        not_checked.push(format!(
            "what admission says about workloads of namespaces whose GpuTenant is not among the files: {}; of these only the amounts of \
             GPUs were looked at (add the tenant's file, or name the namespace with -n)",
            places.join(", ")
        ));
    }
    for tenant in ungranted {
        not_checked.push(format!(
            "which resources tenant {tenant} may use: not all profiles of its budget are among the files"
        ));
    }
    findings
}

/// A quota on what nobody counts: extended resources are limited by what is requested.
fn quota(other: &Other, kind: &str, object: &Value) -> Vec<Finding> {
    let hard = object.pointer("/spec/hard").and_then(Value::as_object).filter(|_| kind == "ResourceQuota");
    let wrong =
        |key: &&String| key.strip_prefix("limits.").is_some_and(|r| r.contains('/')) || key.starts_with("nvidia.com/");
    let keys = hard.into_iter().flat_map(|h| h.keys()).filter(wrong);
    let told = |key: &String| {
        let resource = key.strip_prefix("limits.").unwrap_or(key);
        let message = format!("a quota does not count {key}, and limits nothing: write requests.{resource}");
        at(other, &[path("spec.hard"), vec![Step::Field(key.clone())]].concat(), message)
    };
    keys.map(told).collect()
}
