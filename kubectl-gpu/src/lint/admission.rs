//! What the chart's admission policies refuse to pods of a tenant, in their own words; with the chart's own values where [`Assumed`] says
//! nothing else. A test holds both to each other by the manifests that the API server is tested with.

use std::collections::BTreeMap;

use gputenancy_crds::{quantity::Amount, quota::CLASS_RESOURCES};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value};

use super::{Assumed, grant::Grant, path};
use crate::input::Step;

/// Folders that a hostPath volume may not reach, nor one above them.
const FOLDERS: &[&str] = &[
    "/dev/",
    "/proc/",
    "/sys/",
    "/run/nvidia/",
    "/var/run/nvidia/",
    "/etc/cdi/",
    "/run/cdi/",
    "/var/run/cdi/",
    "/var/lib/kubelet/",
];
const CAPABILITIES: &[&str] = &["compute", "utility"];
/// Labels by which work joins a queue for the whole cluster.
const QUEUES: [&str; 2] = ["kai.scheduler/queue", "runai/queue"];
const POOL: &str = gputenancy_crds::names::POOL_LABEL;

/// Something that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Where, from the pod's template on.
    pub path: Vec<Step>,
    /// With which words.
    pub message: String,
}

pub(super) fn refusal(path: Vec<Step>, message: impl Into<String>) -> Refusal {
    Refusal { path, message: message.into() }
}

/// A container, and where it stands.
struct Container<'a> {
    path: Vec<Step>,
    value: &'a Value,
    /// It ends before the others start.
    before: bool,
}

impl Container<'_> {
    fn amounts(&self, which: &str) -> impl Iterator<Item = (&String, &Value)> {
        self.value
            .get("resources")
            .and_then(|r| r.get(which))
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(Map::iter)
    }

    fn at(&self, below: &str) -> Vec<Step> {
        [self.path.clone(), path(below)].concat()
    }

    fn of(&self, which: &str, resource: &str) -> Vec<Step> {
        [self.at(&format!("resources.{which}")), vec![Step::Field(resource.to_owned())]].concat()
    }
}

pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn containers(pod: &Value) -> Vec<Container<'_>> {
    let of = |field: &'static str| {
        list(pod, &format!("/spec/{field}")).iter().enumerate().map(move |(index, value)| {
            let before = field == "initContainers" && text(value, "restartPolicy") != "Always";
            Container { path: [path(&format!("spec.{field}")), vec![Step::Item(index)]].concat(), value, before }
        })
    };
    of("containers").chain(of("initContainers")).collect()
}

fn is_gpu(resource: &str) -> bool {
    resource.starts_with("nvidia.com/") || resource.starts_with("gputenancy.io/") || is_class(resource)
}

/// The API server makes claims of a device class out of these.
fn is_class(resource: &str) -> bool {
    resource.starts_with(CLASS_RESOURCES) && resource.ends_with("nvidia.com")
}

/// A quantity in thousandths.
fn milli(value: &Value) -> Option<i128> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Amount::parse(&Quantity(text)).map(Amount::milli)
}

/// Amounts of GPUs that Kubernetes itself refuses, in every namespace.
pub(super) fn amounts(pod: &Value) -> Vec<Refusal> {
    let mut found = Vec::new();
    for container in containers(pod) {
        for which in ["limits", "requests"] {
            for (resource, amount) in container.amounts(which).filter(|(r, _)| is_gpu(r)) {
                if milli(amount).is_none_or(|n| n % 1000 != 0) {
                    let message = format!(
                        "{amount} of {resource}: must be an integer; a part of a GPU is a profile of its own, such as a MIG slice (kubectl get gpuprofiles)"
                    );
                    found.push(refusal(container.of(which, resource), message));
                }
            }
        }
        for (resource, amount) in container.amounts("requests").filter(|(r, _)| is_gpu(r)) {
            let limit = container.amounts("limits").find(|(r, _)| *r == resource).and_then(|(_, limit)| milli(limit));
            if limit != milli(amount) {
                let message = format!("requests of {resource} must equal its limits: write it in limits only");
                found.push(refusal(container.of("requests", resource), message));
            }
        }
    }
    found
}

/// Everything that is refused to a pod of a tenant. Without a grant nobody knows what it may ask for.
pub(super) fn pod(pod: &Value, grant: Option<&Grant>, assumed: Assumed<'_>) -> Vec<Refusal> {
    let containers = containers(pod);
    let uses_gpu = containers.iter().any(|c| c.amounts("limits").any(|(resource, _)| is_gpu(resource)));
    let mut found = environment(&containers, uses_gpu);
    if let Some(grant) = grant {
        found.extend(resources(&containers, grant));
        found.extend(pools(pod, grant));
        found.extend(priority(pod, grant));
        found.extend(queues(pod, grant));
    }
    found.extend(volumes(pod));
    found.extend(annotations(pod));
    found.extend(placement(pod, uses_gpu));
    if assumed.image_pull_policy_always {
        found.extend(images(&containers));
    }
    found
}

fn resources(containers: &[Container<'_>], grant: &Grant) -> Vec<Refusal> {
    let Grant { tenant, resources, .. } = grant;
    let mut found = Vec::new();
    let usable = resources.keys().cloned().collect::<Vec<_>>().join(", ");
    let usable = if usable.is_empty() { "no GPU".to_owned() } else { usable };
    let mut together: BTreeMap<&str, i128> = BTreeMap::new();
    let most = resources.iter().map(|(r, n)| format!("{n} of {r}")).collect::<Vec<_>>().join(", ");
    let too_many = format!(
        "a pod of tenant {tenant} may ask for at most {most}: ask for less, or spread the work over several pods"
    );
    for container in containers {
        for (resource, amount) in container.amounts("limits").filter(|(r, _)| is_gpu(r)) {
            let Some(allowed) = resources.get(resource) else {
                let message = format!("tenant {tenant} may not use {resource} here; this namespace may use: {usable}");
                found.push(refusal(container.of("limits", resource), message));
                continue;
            };
            let amount = milli(amount).unwrap_or(0) / 1000;
            let sum = together.entry(resource.as_str()).or_default();
            let total = if container.before { amount } else { sum.saturating_add(amount) };
            if !container.before {
                *sum = total;
            }
            if total > *allowed {
                found.push(refusal(container.of("limits", resource), too_many.clone()));
            }
        }
    }
    found
}

fn environment(containers: &[Container<'_>], uses_gpu: bool) -> Vec<Refusal> {
    let mut found = Vec::new();
    for container in containers {
        for (index, variable) in list(container.value, "/env").iter().enumerate() {
            let name = text(variable, "name");
            let place = [container.at("env"), vec![Step::Item(index)]].concat();
            let told = [
                "NVIDIA_VISIBLE_DEVICES",
                "NVIDIA_MIG_CONFIG_DEVICES",
                "NVIDIA_MIG_MONITOR_DEVICES",
                "NVIDIA_IMEX_CHANNELS",
            ];
            if told.contains(&name) || name.starts_with("NVIDIA_GPU_MEMORY_") || name.starts_with("CUDA_MPS_") {
                let message = format!(
                    "{name}: devices and limits are given by the resource that a container asks for; remove the variable"
                );
                found.push(refusal(place, message));
            } else if uses_gpu && ["LD_PRELOAD", "LD_AUDIT"].contains(&name) {
                let message = format!(
                    "{name}: a pod with a GPU may not load libraries before the driver does; use LD_LIBRARY_PATH"
                );
                found.push(refusal(place, message));
            } else if name == "NVIDIA_DRIVER_CAPABILITIES" {
                let value = variable.get("value").and_then(Value::as_str);
                if !value.is_some_and(|v| v.split(',').all(|part| CAPABILITIES.contains(&part.trim()))) {
                    let may = CAPABILITIES.join(", ");
                    let message = format!("NVIDIA_DRIVER_CAPABILITIES may name {may} only, as a plain value");
                    found.push(refusal(place, message));
                }
            }
        }
    }
    found
}

/// Containers that may be started with an image of their node without asking its registry.
fn images(containers: &[Container<'_>]) -> Vec<Refusal> {
    let lax = |container: &&Container<'_>| match text(container.value, "imagePullPolicy") {
        "" => !is_latest(text(container.value, "image")),
        policy => policy != "Always",
    };
    let told = |container: &Container<'_>| {
        let message = format!(
            "imagePullPolicy of container {}: write Always; an image that a node has from another team would be used without asking its \
             registry",
            text(container.value, "name")
        );
        refusal(container.at("imagePullPolicy"), message)
    };
    containers.iter().filter(lax).map(told).collect()
}

/// With such an image a container that says no imagePullPolicy gets Always from the API server: its tag is latest, or it has neither
/// tag nor digest.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    // a colon before the last slash belongs to the registry's port
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map_or(digest.is_none(), |(_, tag)| tag == "latest")
}

fn volumes(pod: &Value) -> Vec<Refusal> {
    let reaches = |path: &str| {
        let folder = format!("{path}/");
        let plain = path.starts_with('/') && !folder.contains("/./") && !path.contains("//");
        let whole = if path.ends_with('/') { path } else { &folder };
        !plain || FOLDERS.iter().any(|f| whole.starts_with(f) || f.starts_with(whole))
    };
    let refused = |(index, volume): (usize, &Value)| {
        let wrong = volume.pointer("/hostPath/path").is_some_and(|p| p.as_str().is_none_or(reaches));
        let place = || [path("spec.volumes"), vec![Step::Item(index)], path("hostPath.path")].concat();
        wrong.then(|| {
            refusal(
                place(),
                "a hostPath volume may not reach devices, kubelet's folders, the driver's or CDI's: ask for a GPU resource instead, and the device is given to the container",
            )
        })
    };
    list(pod, "/spec/volumes").iter().enumerate().filter_map(refused).collect()
}

fn annotations(pod: &Value) -> Vec<Refusal> {
    let keys = pod.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let wrong = keys.filter(|k| k.starts_with("cdi.k8s.io/") || k.starts_with("nvidia.cdi.k8s.io/"));
    let place = |key: &String| [path("metadata.annotations"), vec![Step::Field(key.clone())]].concat();
    wrong
        .map(|key| {
            refusal(
                place(key),
                "annotations of cdi.k8s.io would give the pod devices past its quota: ask for a GPU resource instead",
            )
        })
        .collect()
}

fn pools(pod: &Value, grant: &Grant) -> Vec<Refusal> {
    let Some(pools) = &grant.pools else { return Vec::new() };
    let message = || {
        let names =
            if pools.is_empty() { "none".to_owned() } else { pools.iter().cloned().collect::<Vec<_>>().join(", ") };
        format!("pods of tenant {} may select nodes of these pools: {names}", grant.tenant)
    };
    let mut found = Vec::new();
    let selected = pod.pointer("/spec/nodeSelector").and_then(|s| s.get(POOL)).and_then(Value::as_str);
    if selected.is_some_and(|pool| !pools.contains(pool)) {
        found.push(refusal([path("spec.nodeSelector"), vec![Step::Field(POOL.to_owned())]].concat(), message()));
    }
    let required = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    for (index, term) in list(pod, &format!("/{}", required.replace('.', "/"))).iter().enumerate() {
        for (at, wanted) in list(term, "/matchExpressions").iter().enumerate().filter(|(_, m)| text(m, "key") == POOL) {
            let own = |value: &Value| value.as_str().is_some_and(|pool| pools.contains(pool));
            if text(wanted, "operator") != "In" || !list(wanted, "/values").iter().all(own) {
                let place = [path(required), vec![Step::Item(index)], path("matchExpressions"), vec![Step::Item(at)]];
                found.push(refusal(place.concat(), message()));
            }
        }
    }
    found
}

fn priority(pod: &Value, grant: &Grant) -> Vec<Refusal> {
    let named = pod.pointer("/spec/priorityClassName").and_then(Value::as_str).unwrap_or_default();
    let Some(classes) =
        grant.priority_classes.as_ref().filter(|all| !named.is_empty() && !all.iter().any(|c| c == named))
    else {
        return Vec::new();
    };
    let may = if classes.is_empty() { "none".to_owned() } else { classes.join(", ") };
    let message = format!("spec.priorityClassName: pods of tenant {} may name these classes: {may}", grant.tenant);
    vec![refusal(path("spec.priorityClassName"), message)]
}

/// Queues that an object of a tenant, a pod or what makes pods, may not join.
pub(super) fn queues(object: &Value, grant: &Grant) -> Vec<Refusal> {
    let mut found = Vec::new();
    for label in QUEUES {
        let named = object.pointer("/metadata/labels").and_then(|l| l.get(label)).and_then(Value::as_str);
        let Some(queue) = named.filter(|queue| !grant.queues.iter().any(|own| own == queue)) else { continue };
        let may = if grant.queues.is_empty() { "none".to_owned() } else { grant.queues.join(", ") };
        let message = format!("label {label}: {queue} is no queue of tenant {}, which may use: {may}", grant.tenant);
        found.push(refusal([path("metadata.labels"), vec![Step::Field(label.to_owned())]].concat(), message));
    }
    found
}

fn placement(pod: &Value, uses_gpu: bool) -> Vec<Refusal> {
    let Some(spec) = pod.get("spec") else { return Vec::new() };
    let mut found = Vec::new();
    for (index, toleration) in list(spec, "/tolerations").iter().enumerate() {
        let key = text(toleration, "key");
        let of_gpus = key.starts_with("nvidia.com/") || key.starts_with("gputenancy.io/");
        if key.is_empty() || (of_gpus && !uses_gpu) {
            found.push(refusal(
                [path("spec.tolerations"), vec![Step::Item(index)]].concat(),
                "spec.tolerations: name the key of each taint that is tolerated; taints of GPU nodes are tolerated only by pods that ask for a GPU",
            ));
        }
    }
    let mut wrong = |field: &str, is_wrong: bool, message: &str| {
        if is_wrong {
            found.push(refusal(path(&format!("spec.{field}")), message));
        }
    };
    let (scheduler, class) = (text(spec, "schedulerName"), text(spec, "runtimeClassName"));
    let node = !text(spec, "nodeName").is_empty();
    wrong(
        "nodeName",
        node,
        "spec.nodeName would pass by the scheduler, quotas of nodes and taints: use a nodeSelector",
    );
    let others = !["", "default-scheduler"].contains(&scheduler);
    wrong("schedulerName", others, "spec.schedulerName: tenants' pods are scheduled by default-scheduler");
    let runtime = !["", "nvidia"].contains(&class);
    wrong("runtimeClassName", runtime, "spec.runtimeClassName: leave it out, or write nvidia");
    let system = text(spec, "priorityClassName").starts_with("system-");
    let words = "spec.priorityClassName: system- classes are the cluster's own; leave it out or choose another one";
    wrong("priorityClassName", system, words);
    found
}

/// What is refused to a claim, or a template of one, of a tenant.
pub(super) fn claim(kind: &str, object: &Value) -> Vec<Refusal> {
    let root = if kind == "ResourceClaim" { "spec" } else { "spec.spec" };
    let requests = format!("{root}.devices.requests");
    let mut found = Vec::new();
    for (index, request) in list(object, &format!("/{}", requests.replace('.', "/"))).iter().enumerate() {
        let place = [path(&requests), vec![Step::Item(index)]].concat();
        if request.pointer("/exactly/adminAccess").and_then(Value::as_bool) == Some(true) {
            found.push(refusal(place.clone(), "adminAccess reaches devices that others use; leave it out"));
        }
        let one = request.get("exactly").into_iter().chain(list(request, "/firstAvailable"));
        if one.map(|r| text(r, "deviceClassName")).any(|class| class.ends_with("nvidia.com")) {
            let words = "GPUs are asked for as resources, such as nvidia.com/mig-1g.10gb in limits, and not as claims of NVIDIA's device classes";
            found.push(refusal(place, words));
        }
    }
    found
}
