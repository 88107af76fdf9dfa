//! The operator's memory for ten thousand tenants, by part, in allocated bytes; objects are read through the real watches.
//! `MEMORY_OF_PARTS=1 cargo test --locked --workspace --lib -- --nocapture ten_thousand_tenants` prints those of each type as well.

use std::{env, process::Command};

use gputenancy_cluster::{
    events::Publisher,
    rights::operator::Locations,
    testing::{Answer, MockServer, Request},
};
use gputenancy_decisions::pool::{
    decision::{Remembered, decide as decide_fleet},
    read::inventory::Inventory,
};
use kube::{Client, runtime::reflector::ObjectRef};
use peak_alloc::PeakAlloc;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::{
    apply::Writer,
    cache::{Caches, Trigger, Triggers},
    metrics::Metrics,
    pool::{
        Tolerated,
        fleet::{DecidedStatuses, FleetReader},
    },
    tenant::{Context, Standard, observe::versions::Written},
};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Number of tenants, each with one namespace.
const TENANTS: usize = 10_000;
/// Most bytes for one tenant: the budget of 128 MiB leaves a quarter for all else.
const MAX_BYTES: usize = 10_000;
/// The tenant of which all others are copies.
const NAME: &str = "team-00000";
const UID: &str = "00000000-0000-4000-8000-000000000000";
const VERSION: &str = "1000000";

/// Set in the process that measures.
const ALONE: &str = "MEMORY_MEASURED_ALONE";

/// Types with at least one object for each tenant, by the path of their list.
const KINDS: [(&str, &str); 9] = [
    ("gputenants", "/apis/gputenancy.io/v1alpha1/gputenants"),
    ("namespaces", "/api/v1/namespaces"),
    ("resourcequotas", "/api/v1/resourcequotas"),
    ("rolebindings (2)", "/apis/rbac.authorization.k8s.io/v1/rolebindings"),
    ("clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("clusterrolebindings", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("gpugrants", "/apis/gputenancy.io/v1alpha1/gpugrants"),
    ("networkpolicies", "/apis/networking.k8s.io/v1/networkpolicies"),
    ("limitranges", "/api/v1/limitranges"),
];
const PROFILES: &str = "/apis/gputenancy.io/v1alpha1/gpuprofiles";

/// The objects of [`NAME`] as an API server returns them, by type.
fn objects() -> BTreeMap<&'static str, Vec<Value>> {
    let seen = &mut observed(&json!({
        "owners": [{"kind": "Group", "name": NAME}], "viewers": [{"kind": "Group", "name": format!("{NAME}-auditors")}],
        "namespaces": [{"name": NAME}], "gpus": [{"profile": "mig-1g", "count": 2}],
        "resources": {"requests.cpu": "8", "requests.memory": "32Gi", "pods": "20"},
    }));
    seen.tenant.metadata.name = Some(NAME.into());
    seen.tenant.metadata.uid = Some(UID.into());
    let view = Arc::make_mut(&mut seen.view);
    view.tenants.insert(NAME.into(), TenantView { generation: Some(3), shortages: Box::default() });
    let mut objects: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let writes = to_write(seen);
    for write in &writes {
        let (kind, object) = match write {
            Write::CreateNamespace(o) => ("namespaces", serde_json::to_value(o)),
            Write::ApplyQuota(o) => ("resourcequotas", serde_json::to_value(o)),
            Write::Apply { kind: Managed::NetworkPolicy, object, .. } => ("networkpolicies", Ok(object.clone())),
            Write::Apply { kind: Managed::LimitRange, object, .. } => ("limitranges", Ok(object.clone())),
            Write::Apply { kind: Managed::PodAffinityQuota, object, .. } => ("resourcequotas", Ok(object.clone())),
            Write::Apply { kind: Managed::Grant, object, .. } => ("gpugrants", Ok(object.clone())),
            Write::Apply { object, .. } => ("rolebindings (2)", Ok(object.clone())),
            other => panic!("not expected for a new tenant: {other:?}"),
        };
        let mut object = object.unwrap();
        if kind == "resourcequotas" {
            let hard = object["spec"]["hard"].clone();
            let used = hard.as_object().unwrap().keys().map(|key| (key.clone(), json!("0")));
            object["status"] = json!({"hard": hard, "used": used.collect::<serde_json::Map<_, _>>()});
            object["metadata"]["annotations"] = json!({render::STAMP: "4711.1"});
        }
        if kind == "namespaces" {
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(NAME);
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        objects.entry(kind).or_default().push(object);
    }
    let (role, binding) = (tenant_role::role(&seen.tenant).unwrap(), tenant_role::binding(&seen.tenant).unwrap());
    objects.insert("clusterroles", vec![json!(role)]);
    objects.insert("clusterrolebindings", vec![json!(binding)]);
    apply_writes(seen, writes);
    seen.tenant.status = Some(status_of(seen, None));
    let mut tenant = serde_json::to_value(&seen.tenant).unwrap();
    tenant["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": tenant["spec"].to_string()});
    // this fleet has no GPUs, and no tenant has a shortage
    tenant["spec"]["gpus"][0]["count"] = json!(0);
    objects.insert("gputenants", vec![tenant]);
    for object in objects.values_mut().flatten() {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:gputenancy.io/tenant": {}}}, "f:spec": {}});
        let manager = json!({"manager": "gputenancy", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields});
        object["metadata"]["managedFields"] = json!([manager]);
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["metadata"]["resourceVersion"] = json!(VERSION);
        object["metadata"]["uid"] = json!(UID);
    }
    objects
}

fn line(type_: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": type_, "object": object}))
}

/// An API server with objects of these types only.
fn api_server(kinds: &[&'static str]) -> Client {
    let mut lists: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let objects = objects();
    for (kind, path) in KINDS.iter().filter(|(kind, _)| kinds.contains(kind)) {
        lists.insert(path, objects[kind].iter().map(|o| line("ADDED", o)).collect());
    }
    let profile = json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "mig-1g", "uid": "p", "resourceVersion": "1"}, "spec": {"device": {"mig": {"profile": "1g.10gb"}}, "support": {"expected": "e", "incident": "i"}}});
    let profile = line("ADDED", &profile);
    let bookmark = json!({"kind": "Any", "apiVersion": "v1", "metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}});
    let bookmark = line("BOOKMARK", &bookmark);
    let answer = move |request: &Request| {
        // a product that is not installed, as API servers answer
        if request.path.starts_with("/apis/nvsentinel.dgxc.nvidia.com/") {
            return Answer::Text(404, "404 page not found\n".into());
        }
        let templates = lists.get(&*request.path).cloned().unwrap_or_default();
        let count = if templates.is_empty() { 0 } else { TENANTS };
        let single = (request.path == PROFILES).then(|| profile.clone());
        let many = (0..count).flat_map(move |n| {
            let own = move |(at, text): (usize, String)| {
                text.replace(NAME, &format!("team-{n:05}"))
                    .replace(UID, &format!("{n:08x}-{at:04x}-4000-8000-{:012x}", n * 7919))
                    .replace(VERSION, &(1_000_000 + n * 8 + at).to_string())
            };
            templates.clone().into_iter().enumerate().map(own)
        });
        Answer::Watch(Box::new(single.into_iter().chain(many).chain([bookmark.clone()])))
    };
    MockServer::new(answer).client()
}

/// Memory at the begin of a measurement.
struct Measurement {
    bytes: usize,
    resident: usize,
}

impl Measurement {
    fn begin() -> Self {
        MEMORY.reset_peak_usage();
        Self { bytes: MEMORY.current_usage(), resident: resident() }
    }

    /// Prints and returns the bytes for each tenant that were allocated since.
    fn bytes(&self, what: &str) -> usize {
        let per = |bytes: usize| bytes / TENANTS;
        let now = per(MEMORY.current_usage().saturating_sub(self.bytes));
        let peak = per(MEMORY.peak_usage().saturating_sub(self.bytes));
        let resident = per(resident().saturating_sub(self.resident));
        println!("{what:<36} {now:>7} bytes a tenant, {peak:>7} at the peak, {resident:>7} more resident");
        now
    }
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|l| l.starts_with("Anonymous:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

async fn filled(kinds: &[&'static str]) -> (Caches, Client, mpsc::UnboundedReceiver<Trigger>) {
    let client = api_server(kinds);
    let (tenants, mut names) = mpsc::unbounded_channel();
    let triggers = Triggers { fleet: Arc::default(), tenants, queues: Arc::default() };
    let locations = Locations {
        namespace: "gputenancy-system".into(),
        mig_config_namespace: None,
        device_plugin_config_namespace: None,
        lease_name: "gputenancy".into(),
        pull_secrets: Vec::new(),
        wake_controllers: true,
        owners_read_tenant: true,
        virtual_clusters: false,
        usage_endpoint: false,
        kueue: false,
        agent_selector: String::new(),
    };
    let caches = Caches::start(&client, &locations, &triggers, false);
    caches.ready(|_| {}).await;
    // the stores send their triggers a moment later
    let quiet = std::time::Duration::from_millis(300);
    while let Ok(Some(_)) = tokio::time::timeout(quiet, names.recv()).await {}
    (caches, client, names)
}

fn on_one_thread(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

#[test]
fn ten_thousand_tenants_need_at_most_10000_bytes_each() {
    if env::var_os(ALONE).is_none() {
        // in a process of its own: other tests of this one allocate too
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::ten_thousand_tenants_need_at_most_10000_bytes_each");
        let mut alone = Command::new(env::current_exe().unwrap());
        let output = alone.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{text}");
        assert!(output.status.success() && text.contains("1 passed"), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    // first, for freed memory stays resident and is used again
    on_one_thread(all_parts());
    for (kind, _) in KINDS.iter().filter(|_| env::var_os("MEMORY_OF_PARTS").is_some()) {
        on_one_thread(async {
            let part = Measurement::begin();
            let kept = filled(&[*kind]).await;
            part.bytes(kind);
            drop(kept);
        });
    }
}

async fn all_parts() {
    let kinds = KINDS.map(|(kind, _)| kind);
    let all = Measurement::begin();
    let (caches, client, _names) = filled(&kinds).await;
    all.bytes("all stores");

    let (refusals, lagging, tolerated) = (BTreeMap::new(), BTreeSet::new(), Tolerated::default());
    let mut remembered = Remembered::default();
    let part = Measurement::begin();
    let view = {
        let (fleet, _) = FleetReader::default().read(&caches, &DecidedStatuses::default(), Timestamp::now());
        part.bytes("objects read for a decision");
        let inventory = Inventory {
            fleet: &fleet,
            now: Timestamp::now(),
            refusals: &refusals,
            namespace: "gputenancy-system",
            tolerated: &tolerated,
            marks: &BTreeMap::new(),
            lagging: &lagging,
            failing: &BTreeSet::new(),
            writing: &BTreeSet::new(),
        };
        decide_fleet(&inventory, &mut remembered).view
    };
    part.bytes("planner with its index, and view");
    assert_eq!(view.tenants.len(), TENANTS);
    let part = Measurement::begin();
    let copy = view.clone();
    part.bytes("of these, view");
    let part = Measurement::begin();
    let planner = &mut remembered.planner;
    let snapshot = planner.planned().snapshot.clone();
    part.bytes("of these, snapshot of the planner");
    // problems would be measured too
    assert!(planner.planned().plan.problems.is_empty(), "{}", planner.planned().plan.problems[0]);
    drop((copy, snapshot));

    let part = Measurement::begin();
    let metrics = Arc::new(Metrics::default());
    let (_sender, receiver) = watch::channel(Arc::new(view));
    let context = Context::new(
        7,
        (
            crate::tenant::Settings {
                home: "gputenancy-system".into(),
                wake_controllers: true,
                virtual_clusters: false,
            },
            STANDARD.parse::<Standard>().unwrap(),
        ),
        caches.clone(),
        Writer::new(client.clone(), metrics.clone()),
        Publisher::new(client, "gputenancy.io/operator", "test"),
        crate::tenant::Views { fleet: receiver, queues: watch::channel(Arc::default()).1 },
        metrics,
    );
    for n in 0..TENANTS {
        let name = format!("team-{n:05}");
        let tenant = caches.tenants.get(&ObjectRef::new(&name)).unwrap();
        let seen = context.observe(&tenant);
        assert_eq!((seen.quotas.len(), seen.managed.len()), (1, 8));
        let stamp = context.fence().begin(&name, &name, 7);
        assert_eq!(stamp.term, 7);
        context.fence().done(&name, &name, 8);
        let written = seen.quotas[&name].clone();
        context.wrote(&name, name.clone(), Written::Managed(Managed::Quota), &*written);
        context.caught_up(&context.observe(&tenant)).unwrap();
    }
    part.bytes("state of the tenant controller");
    let bytes = all.bytes("total");
    assert!(bytes <= MAX_BYTES, "{bytes} bytes for each tenant, more than {MAX_BYTES}");
}
