//! Objects of tenants: what the API server would refuse of them, as far as the files determine it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use gputenancy_crds::names::TENANT_LABEL;
use serde_json::{Value, json};

use super::{
    Options, fractions,
    grant::{self, Grant},
    kubernetes,
    policy::{Policies, Refusal, Request},
    queued_jobs, sharing,
};
use crate::{
    input::{Finding, Located, token},
    world::World,
};

/// Where a kind keeps the template of its pods, as a JSON pointer; `None`: it makes no pods.
fn template(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some(""),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
            Some("/spec/template")
        }
        "CronJob" => Some("/spec/jobTemplate/spec/template"),
        "PodTemplate" => Some("/template"),
        _ => None,
    }
}

/// The pod that an object is or makes, and where its template is.
fn pod_of(kind: &str, object: &Value) -> Option<(&'static str, Value)> {
    let prefix = template(kind)?;
    let template = object.pointer(prefix)?;
    let part = |field: &str| template.get(field).cloned().unwrap_or_else(|| json!({}));
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": part("metadata"), "spec": part("spec")});
    for list in ["containers", "initContainers"] {
        for container in pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut).into_iter().flatten() {
            default_pull_policy(container);
        }
    }
    Some((prefix, pod))
}

/// The API server's default before policies are evaluated: `Always` for an image with the tag latest, or without tag and digest.
fn default_pull_policy(container: &mut Value) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    // a colon before the last slash belongs to the registry's port
    let last = name.rsplit('/').next().unwrap_or(name);
    let latest = last.split_once(':').map_or(digest.is_none(), |(_, tag)| tag == "latest");
    if let Value::Object(fields) = container {
        let default = if latest { "Always" } else { "IfNotPresent" };
        fields.entry("imagePullPolicy").or_insert_with(|| default.into());
    }
}

/// Findings about all objects that are not custom resources of this project.
pub(super) fn check(
    world: &World,
    others: &[Located],
    options: Options<'_>,
    not_checked: &mut Vec<String>,
) -> Vec<Finding> {
    let mut check = Check { options, findings: Vec::new(), unknown: BTreeMap::new() };
    let (mut foreign, mut ungranted) = (BTreeMap::<String, usize>::new(), BTreeSet::new());
    for other in others {
        let object = &other.value;
        let kind = other.text("/kind").unwrap_or_default();
        let pod = pod_of(kind, object);
        if kind == "ResourceQuota" {
            check.add(other, "", kubernetes::quota(object));
        }
        if kind == "Namespace" {
            let labels = object.pointer("/metadata/labels").cloned().unwrap_or_default();
            let namespace_labels = serde_json::from_value(labels).unwrap_or_default();
            check.policies(other, "", &Request { object, within: None, namespace_labels });
            continue;
        }
        let namespace = other.text("/metadata/namespace").or(options.namespace).unwrap_or("(none named)");
        let tenant = world.tenant_of(namespace).and_then(|name| world.tenant(&name));
        if let Some((prefix, pod)) = &pod {
            let instead = |resource: &str, milli| {
                sharing::is_whole(world, resource).then(|| sharing::instead_of_decimal(world, tenant, milli)).flatten()
            };
            check.add(other, prefix, kubernetes::amounts(pod, &instead));
        }
        let Some(tenant) = tenant else {
            if pod.is_some() || kind.starts_with("ResourceClaim") {
                *foreign.entry(namespace.to_owned()).or_default() += 1;
            }
            continue;
        };
        let grant = grant::of(world, tenant);
        if grant.unknown.contains("resources") && pod.is_some() {
            ungranted.insert(grant.spec.tenant.clone());
        }
        if kind == "Service" {
            check.add(other, "", kubernetes::node_ports(object, &tenant.spec));
        }
        let labels = [(TENANT_LABEL, grant.spec.tenant.as_str()), ("kubernetes.io/metadata.name", namespace)];
        let namespace_labels: BTreeMap<_, _> = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let (object, pods) = (suspended(kind, object, &grant), without_queues(&grant));
        let of = |object, grant| {
            let within = Some((namespace, grant));
            Request { object, within, namespace_labels: namespace_labels.clone() }
        };
        if kind != "Pod" {
            check.policies(other, "", &of(&object, &grant));
        }
        let mistakes = queued_jobs::mistakes(kind, &other.value, pod.as_ref().map(|(_, pod)| pod), &grant);
        check.add(other, "", mistakes);
        if let Some((prefix, mut pod)) = pod {
            if options.policies.fill_in_pods() {
                fractions::convert(&mut pod, &grant.spec);
            }
            check.policies(other, prefix, &of(&pod, &pods));
            check.add(other, prefix, only_shares(world, &grant, &pod));
            check.add(other, prefix, outside_queue(kind, &grant, &pod));
        }
    }
    if !foreign.is_empty() {
        let places: Vec<String> = foreign.iter().map(|(place, count)| format!("{place} ({count})")).collect();
        not_checked.push(format!(
            "admission of workloads in namespaces whose GpuTenant is not among the files: {}; of these only the amounts of GPUs were \
             checked (add the tenant's file, or name the namespace with -n)",
            places.join(", ")
        ));
    }
    for tenant in ungranted {
        not_checked.push(format!(
            "which resources tenant {tenant} may use: not all profiles of its budget are among the files"
        ));
    }
    not_checked.extend(check.unknown.into_iter().map(|(policy, (object, why))| {
        format!(
            "admission policy {policy}: it cannot be evaluated without the cluster and its users, such as for {object}: {}",
            in_words(&why)
        )
    }));
    check.findings
}

/// Why a rule cannot be evaluated, without the words of the interpreter where a variable is missing.
fn in_words(why: &str) -> String {
    let variable = why.split_once("Undeclared reference to '").and_then(|(_, rest)| rest.split('\'').next());
    match variable {
        Some("authorizer") => "it depends on the rights of the user".to_owned(),
        Some("params") => "it depends on its parameters".to_owned(),
        Some(other) => format!("it depends on {other}"),
        None => why.to_owned(),
    }
}

/// The first request of a whole GPU that the pools no longer offer. What is not granted at all is refused by a policy.
fn only_shares(world: &World, grant: &Grant, pod: &Value) -> Option<Refusal> {
    ["containers", "initContainers"].into_iter().find_map(|list| {
        let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
        containers.into_iter().flatten().enumerate().find_map(|(index, container)| {
            let limits = container.pointer("/resources/limits").and_then(Value::as_object);
            let granted = limits.into_iter().flatten().filter(|(r, _)| grant.spec.resources.contains_key(*r));
            granted.into_iter().find_map(|(resource, _)| {
                let pointer = format!("/spec/{list}/{index}/resources/limits/{}", token(resource));
                Some(Refusal { pointer, message: sharing::only_shares(world, resource)? })
            })
        })
    })
}

/// The object as policies see it: Kueue's webhook suspends a new Job before.
fn suspended<'a>(kind: &str, object: &'a Value, grant: &Grant) -> Cow<'a, Value> {
    let mut object = Cow::Borrowed(object);
    if kind == "Job"
        && !grant.spec.queued.is_empty()
        && let Some(spec) = object.to_mut().pointer_mut("/spec").and_then(Value::as_object_mut)
    {
        spec.insert("suspend".to_owned(), true.into());
    }
    object
}

/// The grant for policies on pods. That about queues depends on the controller that creates a pod: [`outside_queue`] judges its kind instead.
fn without_queues(grant: &Grant) -> Grant {
    let mut grant = grant.clone();
    grant.spec.queued.clear();
    grant
}

/// Requests of resources for which jobs wait in a queue, by pods that belong to no Job.
fn outside_queue(kind: &str, grant: &Grant, pod: &Value) -> Vec<Refusal> {
    if matches!(kind, "Job" | "CronJob" | "PodTemplate") {
        return Vec::new();
    }
    let requests = ["containers", "initContainers"].into_iter().flat_map(move |list| {
        let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
        containers.enumerate().flat_map(move |(index, container)| {
            let limits = container.pointer("/resources/limits").and_then(Value::as_object).into_iter().flatten();
            limits.map(move |(resource, _)| (format!("/spec/{list}/{index}/resources/limits"), resource))
        })
    });
    let refusal = |(limits, resource): (String, &String)| Refusal {
        pointer: format!("{limits}/{}", token(resource)),
        message: format!(
            "limits: jobs of tenant {} wait for {resource} in a queue of Kueue, and a pod that asks for it comes from a Job only: write a Job \
             (batch/v1) with this pod as its template",
            grant.spec.tenant
        ),
    };
    requests.filter(|(_, resource)| grant.spec.queued.contains(resource)).map(refusal).collect()
}

struct Check<'a> {
    options: Options<'a>,
    findings: Vec<Finding>,
    /// By policy that cannot be evaluated, the first object and the reason.
    unknown: BTreeMap<String, (String, String)>,
}

impl Check<'_> {
    fn add(&mut self, other: &Located, prefix: &str, refusals: impl IntoIterator<Item = Refusal>) {
        self.findings.extend(refusals.into_iter().map(|r| other.finding(&format!("{prefix}{}", r.pointer), r.message)));
    }

    fn policies(&mut self, other: &Located, prefix: &str, request: &Request<'_>) {
        let policies: &Policies = self.options.policies;
        let verdict = policies.check(request);
        self.add(other, prefix, verdict.refusals);
        for (policy, why) in verdict.unknown {
            self.unknown.entry(policy).or_insert_with(|| (other.object(), why));
        }
    }
}
