//! What SECURITY.md says that a stolen token can do: each entry of the three lists has requests that are admitted, so that the page neither hides a
//! right nor names one that is gone. What a token cannot do is in `stolen_tokens.rs`, `policies.rs` and `virtual_cluster_token.rs`.

use e2e::{
    Result, World,
    actor::{Actor, Verb},
    fixtures::merged,
    objects::ensure,
    product,
};
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";
const OURS: &str = "/apis/gputenancy.io/v1alpha1";

/// One entry of a list of the page.
pub(crate) struct Entry {
    /// How it begins.
    begins: &'static str,
    shown: Shown,
}

/// What shows that an entry is true.
enum Shown {
    /// Requests that are admitted, and reads (verb, resource, namespace or `-A`) that RBAC permits.
    Here(Vec<(Verb, String, Value)>, &'static [(&'static str, &'static str, &'static str)]),
    /// It needs other values of the chart: a test, by file and name.
    Elsewhere(&'static str, &'static str),
}

fn entry(begins: &'static str, requests: Vec<(Verb, String, Value)>, reads: &'static [(&str, &str, &str)]) -> Entry {
    Entry { begins, shown: Shown::Here(requests, reads) }
}

/// An object with these fields; those of `metadata` are added to its name.
fn object(kind: (&str, &str), name: &str, fields: Value) -> Value {
    let metadata = merged(json!({"name": name}), fields["metadata"].clone());
    let fields = merged(fields, json!({"metadata": metadata}));
    merged(json!({"apiVersion": kind.0, "kind": kind.1}), fields)
}

/// An object with the labels of those that the operator manages.
fn managed(kind: (&str, &str), name: &str, fields: Value) -> Value {
    let labels = json!({"app.kubernetes.io/managed-by": "gputenancy", "gputenancy.io/tenant": "t"});
    object(kind, name, merged(json!({"metadata": {"labels": labels}}), fields))
}

fn label(key: &str, value: Value) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

fn event(controller: &str, fields: Value) -> Value {
    let event = json!({"eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "action": "Reconcile", "note": "x", "reason": "X",
        "metadata": {"namespace": "default"}, "reportingController": controller, "reportingInstance": "x",
        "regarding": {"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "name": "t"}});
    object(("events.k8s.io/v1", "Event"), "x.1", merged(event, fields))
}

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// Fields of a network policy that admits every pod.
fn open_network() -> Value {
    json!({"spec": {"podSelector": {}, "ingress": [{}]}})
}

/// Objects of the operator in a namespace of a tenant.
fn operator_objects() -> Vec<(Verb, String, Value)> {
    let (core, networks) = ("/api/v1/namespaces/t", "/apis/networking.k8s.io/v1/namespaces/t/networkpolicies");
    let eve = json!({"roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "gputenancy:tenant-owner"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "eve"}]});
    [
        (
            format!("{core}/resourcequotas"),
            ("v1", "ResourceQuota"),
            "gputenancy",
            json!({"spec": {"hard": {"pods": "99"}}}),
        ),
        (format!("{core}/limitranges"), ("v1", "LimitRange"), "gputenancy", json!({"spec": {"limits": []}})),
        (networks.to_owned(), ("networking.k8s.io/v1", "NetworkPolicy"), "gputenancy", open_network()),
        (
            format!("{OURS}/namespaces/t/gpugrants"),
            ("gputenancy.io/v1alpha1", "GpuGrant"),
            "grant",
            json!({"spec": {"tenant": "t", "resources": {"nvidia.com/gpu": 8}}}),
        ),
        (
            format!("/apis/{RBAC}/v1/namespaces/t/rolebindings"),
            ("rbac.authorization.k8s.io/v1", "RoleBinding"),
            "gputenancy-owners",
            eve,
        ),
    ]
    .into_iter()
    .map(|(path, kind, name, fields)| (Verb::Apply, format!("{path}/{name}"), managed(kind, name, fields)))
    .collect()
}

/// The network of a tenant.
fn opens_network() -> Entry {
    let path = "/apis/networking.k8s.io/v1/namespaces/t/networkpolicies/gputenancy".to_owned();
    let open = managed(("networking.k8s.io/v1", "NetworkPolicy"), "gputenancy", open_network());
    let requests = vec![(Verb::Apply, path.clone(), open), (Verb::Delete, path, json!({}))];
    entry("open the network of tenants", requests, &[])
}

/// The operator's list. It needs tenant `t` with a `ReplicaSet` `held`, namespaces of no tenant, `e2e-theirs` with pod
/// `victim` and `e2e-offered` to be adopted, and the canary.
fn operator(canary: Value) -> Vec<Entry> {
    let own = "/api/v1/namespaces/t".to_owned();
    let fresh = json!({"labels": {"gputenancy.io/tenant": "t", "pod-security.kubernetes.io/enforce": "restricted"},
        "annotations": {"gputenancy.io/created-for": "x"}});
    let adopted = json!({"labels": {"gputenancy.io/tenant": "t", "pod-security.kubernetes.io/enforce": "baseline"},
        "annotations": {"gputenancy.io/adopted": "2026-01-01T00:00:00Z"}});
    let layout = json!({"spec": {"gpus": [{"uuid": "GPU-99999999-0000-0000-0000-000000000000"}]}});
    let cordon = json!({"metadata": {"annotations": {"gputenancy.io/cordoned": "x"}}, "spec": {"unschedulable": true}});
    let taint = json!({"metadata": {"annotations": {"gputenancy.io/tainted": "example.com/x=:NoSchedule"}},
        "spec": {"taints": [{"key": "example.com/x", "effect": "NoSchedule"}]}});
    let eviction = object(("policy/v1", "Eviction"), "victim", json!({"metadata": {"namespace": "e2e-theirs"}}));
    let waits = json!({"status": {"conditions": [{"type": "gputenancy.io/QuotaAvailable", "status": "True"}]}});
    let reader = json!({"rules": [{"apiGroups": ["gputenancy.io"], "resources": ["gputenants"], "resourceNames": ["t"], "verbs": ["get"]}]});
    let reader = managed(("rbac.authorization.k8s.io/v1", "ClusterRole"), "gputenancy-tenant-t", reader);
    let node = "/api/v1/nodes/cpu-1".to_owned();
    let (create, merge) = (Verb::Create, Verb::Merge);
    vec![
        entry("in namespaces of tenants: write the platform's own quotas", operator_objects(), &[]),
        entry(
            "create namespaces for tenants, delete those that it created, and adopt those with the label",
            vec![
                (create, "/api/v1/namespaces".into(), object(("v1", "Namespace"), "fresh", json!({"metadata": fresh}))),
                (Verb::Delete, own.clone(), json!({})),
                (merge, "/api/v1/namespaces/e2e-offered".into(), json!({"metadata": adopted})),
            ],
            &[],
        ),
        opens_network(),
        entry(
            "set labels and annotations of tenants' namespaces",
            vec![(merge, own.clone(), label("example.com/left-out", json!("true")))],
            &[],
        ),
        entry(
            "take a namespace out of its tenant",
            vec![(merge, own, label("gputenancy.io/tenant", Value::Null))],
            &[],
        ),
        entry(
            "write layouts of GPUs",
            vec![
                (
                    Verb::Apply,
                    format!("{OURS}/gpunodes/gpu-1"),
                    object(("gputenancy.io/v1alpha1", "GpuNode"), "gpu-1", layout),
                ),
                (merge, node.clone(), cordon),
                (merge, node, taint),
            ],
            &[],
        ),
        entry(
            "run canary pods",
            vec![(create, format!("/api/v1/namespaces/{}/pods", product::NAMESPACE), canary)],
            &[],
        ),
        entry(
            "evict pods outside of",
            vec![(create, "/api/v1/namespaces/e2e-theirs/pods/victim/eviction".into(), eviction)],
            &[],
        ),
        entry(
            "write status and its finalizers",
            vec![
                (merge, format!("{OURS}/gputenants/t/status"), json!({"status": {"summary": "x"}})),
                (merge, format!("{OURS}/gpupools/p"), json!({"metadata": {"finalizers": ["gputenancy.io/x"]}})),
                (merge, "/apis/apps/v1/namespaces/t/replicasets/held/status".into(), waits),
                (Verb::Apply, format!("/apis/{RBAC}/v1/clusterroles/gputenancy-tenant-t"), reader),
            ],
            &[],
        ),
        entry(
            "read pods, namespaces, nodes",
            vec![(create, EVENTS.into(), event("gputenancy.io/operator", json!({})))],
            &[
                ("list", "pods", "-A"),
                ("watch", "namespaces", "-A"),
                ("watch", "nodes", "-A"),
                ("watch", "resourcequotas", "-A"),
                ("watch", "limitranges", "-A"),
                ("list", "networkpolicies.networking.k8s.io", "-A"),
                ("list", "rolebindings.rbac.authorization.k8s.io", "-A"),
                ("list", "poddisruptionbudgets.policy", "-A"),
                ("watch", "events.events.k8s.io", "-A"),
            ],
        ),
        Entry {
            begins: "with `tenants.imagePullSecrets`: read and write Secrets",
            shown: Shown::Elsewhere("tenants/pull_secrets.rs", "pull_secret_copies_follow_source_and_tenant"),
        },
        Entry {
            begins: "with `usageEndpoint.enabled`: review tokens",
            shown: Shown::Elsewhere("offline/usage_endpoint.rs", "usage_endpoint_is_rendered_only_when_enabled"),
        },
        Entry {
            begins: "with `queueing.kueue.enabled`: write",
            shown: Shown::Elsewhere("tenants/queues.rs", "operator_writes_only_its_own_objects_of_kueue"),
        },
    ]
}

/// Applies the condition of gpu-1.
fn node_condition() -> Value {
    let condition = json!({
        "type": "gputenancy.io/DevicesReady", "status": "False", "reason": "GpuUnhealthy", "message": "GPU 0: Xid 48",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}, "status": {"conditions": [condition]}})
}

/// The list of an agent on gpu-1.
fn agent() -> Vec<Entry> {
    let regarding = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "x"});
    let fault = json!({"reason": "GpuProgramFault", "regarding": regarding, "reportingInstance": "gpu-1"});
    let amounts = json!({"status": {"capacity": {"nvidia.com/gpu": "2"}}});
    vec![
        entry(
            "write the status of the GpuNode of its own node",
            vec![(Verb::Merge, format!("{OURS}/gpunodes/gpu-1/status"), json!({"status": {"layout": "0: whole"}}))],
            &[],
        ),
        entry(
            "write the amounts of GPU resources",
            vec![(Verb::Merge, "/api/v1/nodes/gpu-1/status".into(), amounts)],
            &[],
        ),
        entry(
            "write the condition `gputenancy.io/DevicesReady` of that node",
            vec![(Verb::Apply, "/api/v1/nodes/gpu-1/status".into(), node_condition())],
            &[],
        ),
        entry(
            "report events in its own name",
            vec![(Verb::Create, EVENTS.into(), event("gputenancy.io/agent", fault))],
            &[],
        ),
        entry(
            "read all pods, grants, nodes",
            vec![],
            &[
                ("watch", "pods", "-A"),
                ("get", "gpugrants.gputenancy.io", "-A"),
                ("watch", "nodes", "-A"),
                ("list", "gpunodes.gputenancy.io", "-A"),
                ("list", "runtimeclasses.node.k8s.io", "-A"),
            ],
        ),
    ]
}

/// Objects of a virtual cluster in the namespace `t`.
fn workloads() -> Vec<(Verb, String, Value)> {
    let container = json!([{"name": "c", "image": "i"}]);
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": container}});
    let (selector, claim) = (json!({"matchLabels": {"a": "b"}}), json!({"requests": {"storage": "1Gi"}}));
    let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
    [
        ("apps/v1", "Deployment", json!({"spec": {"selector": selector, "template": template}})),
        ("apps/v1", "StatefulSet", json!({"spec": {"serviceName": "x", "selector": selector, "template": template}})),
        ("v1", "Service", json!({"spec": {"ports": [{"port": 80}]}})),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}]}),
        ),
        (
            "networking.k8s.io/v1",
            "Ingress",
            json!({"spec": {"rules": [{"host": "x.example.com", "http": {"paths": [path]}}]}}),
        ),
        ("v1", "PersistentVolumeClaim", json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": claim}})),
        ("coordination.k8s.io/v1", "Lease", json!({"spec": {"holderIdentity": "x"}})),
        ("policy/v1", "PodDisruptionBudget", json!({"spec": {"minAvailable": 1, "selector": selector}})),
    ]
    .into_iter()
    .map(|(api, kind, fields)| {
        let root = if api == "v1" { "/api/v1".to_owned() } else { format!("/apis/{api}") };
        let plural = if kind == "Ingress" { "ingresses".to_owned() } else { format!("{}s", kind.to_lowercase()) };
        (Verb::Create, format!("{root}/namespaces/t/{plural}"), object((api, kind), "list-x", fields))
    })
    .collect()
}

/// The list of the controller of virtual clusters. It needs pod `waiting`, and Role and `RoleBinding` `e2e-team`, in namespace `t`. `finalizers`: those of
/// the tenant.
pub(crate) fn controller(pod: Value, finalizers: &[&str]) -> Vec<Entry> {
    let (core, rbac) = ("/api/v1/namespaces/t", format!("/apis/{RBAC}/v1/namespaces/t"));
    let token = json!({"type": "kubernetes.io/service-account-token", "metadata": {"annotations": {"kubernetes.io/service-account.name": "default"}}});
    let role = json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    let bound = json!({"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "vc-t"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "t", "name": "vc-t"}]});
    let mut run = workloads();
    run.push((Verb::Create, format!("{core}/pods"), pod));
    run.push((Verb::Merge, format!("{core}/pods/waiting"), label("a", json!("b"))));
    run.push((Verb::Delete, format!("{core}/pods/waiting"), json!({})));
    vec![
        entry(
            "in namespaces with a virtual cluster: read and write Secrets",
            vec![
                (Verb::Create, format!("{core}/secrets"), object(("v1", "Secret"), "list-x", json!({}))),
                (Verb::Create, format!("{core}/secrets"), object(("v1", "Secret"), "list-token", token)),
            ],
            &[("get", "secrets", "t"), ("list", "secrets", "t")],
        ),
        entry("run, change, delete and exec into pods", run, &[("create", "pods/exec", "t"), ("get", "pods/log", "t")]),
        entry(
            "write Roles there within its own rights",
            vec![
                (
                    Verb::Create,
                    format!("{rbac}/roles"),
                    object(("rbac.authorization.k8s.io/v1", "Role"), "list-x", role),
                ),
                (
                    Verb::Create,
                    format!("{rbac}/rolebindings"),
                    object(("rbac.authorization.k8s.io/v1", "RoleBinding"), "list-x", bound),
                ),
                (Verb::Delete, format!("{rbac}/roles/e2e-team"), json!({})),
                (Verb::Delete, format!("{rbac}/rolebindings/e2e-team"), json!({})),
            ],
            &[],
        ),
        entry(
            "write `status.virtualCluster` and its own finalizer",
            vec![
                (
                    Verb::Merge,
                    format!("{OURS}/gputenants/t/status"),
                    json!({"status": {"virtualCluster": {"version": "0.36.1"}}}),
                ),
                (Verb::Merge, format!("{OURS}/gputenants/t"), json!({"metadata": {"finalizers": finalizers}})),
            ],
            &[("watch", "gputenants.gputenancy.io", "-A")],
        ),
        entry(
            "report events about any object",
            vec![(Verb::Create, EVENTS.into(), event("gputenancy.io/virtual-clusters", json!({})))],
            &[],
        ),
    ]
}

/// Sends all requests of a list; every one is admitted, and RBAC permits every read.
pub(crate) async fn all_admitted(world: &World, actor: &Actor, user: &str, list: Vec<Entry>) -> Result<()> {
    let mut wrong = Vec::new();
    for Entry { begins, shown } in list {
        let Shown::Here(requests, reads) = shown else { continue };
        for (verb, path, body) in requests {
            if let Err(error) = actor.check(&world.client, verb, &path, &body, None).await {
                wrong.push(format!("{begins}: {error}"));
            }
        }
        for (verb, resource, place) in reads {
            let place = if *place == "-A" { vec!["-A"] } else { vec!["-n", place] };
            let identity = format!("--as=system:serviceaccount:{}:{user}", product::NAMESPACE);
            let asked = [&["auth", "can-i", verb, resource, &identity][..], &place].concat();
            if let Err(error) = world.kubectl(&asked).await {
                wrong.push(format!("{begins}: {verb} {resource}: {error}"));
            }
        }
    }
    ensure(wrong.is_empty(), wrong.join("\n"))
}

/// As the test of both tokens has prepared the cluster.
pub(crate) async fn tokens_of_operator_and_agent(world: &World, canary: Value) -> Result<()> {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let held = json!({"spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let held = object(("apps/v1", "ReplicaSet"), "held", held);
    Actor::Admin.does(&world.client, Verb::Create, "/apis/apps/v1/namespaces/t/replicasets", &held).await?;
    let gates = json!({"schedulingGates": [{"name": "example.com/never"}], "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]});
    let victim = object(("v1", "Pod"), "victim", json!({"spec": gates}));
    Actor::Admin.does(&world.client, Verb::Create, "/api/v1/namespaces/e2e-theirs/pods", &victim).await?;
    all_admitted(world, &Actor::Operator, "gputenancy-operator", operator(canary)).await?;
    all_admitted(world, &Actor::Agent("gpu-1"), "gputenancy-agent", agent()).await
}

/// Entries of the list `It can:` below a heading of SECURITY.md, each on one line.
fn entries_of(page: &str, heading: &str) -> Vec<String> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap_or_default();
    let (section, _) = section.split_once("\n## ").unwrap_or((section, ""));
    let (_, list) = section.split_once("It can:\n").unwrap_or_default();
    let (list, _) = list.split_once("\n\n").unwrap_or((list, ""));
    list.split("\n- ").map(|entry| entry.trim_start_matches("- ").replace("\n  ", " ")).collect()
}

/// Tests that need no cluster.
mod offline {
    use super::*;

    #[test]
    fn security_page_and_the_tested_lists_have_the_same_entries() {
        let page = std::fs::read_to_string(product::root().join("SECURITY.md")).unwrap();
        let tests = product::root().join("integration/tests/api/tests");
        for (heading, list) in [
            ("A stolen token of the operator", operator(json!({}))),
            ("A stolen token of an agent", agent()),
            ("A stolen token of the controller of virtual clusters", controller(json!({}), &[])),
        ] {
            let entries = entries_of(&page, heading);
            assert_eq!(entries.len(), list.len(), "{heading}: {entries:#?}");
            for (text, Entry { begins, shown }) in entries.iter().zip(list) {
                assert!(
                    text.starts_with(begins),
                    "{heading}: {text:?} has no request in this file; the next one tests {begins:?}"
                );
                match shown {
                    Shown::Here(requests, reads) => assert!(!requests.is_empty() || !reads.is_empty(), "{begins}"),
                    Shown::Elsewhere(file, name) => {
                        let text = std::fs::read_to_string(tests.join(file)).unwrap();
                        assert!(text.contains(&format!("fn {name}(")), "{file} has no test {name}");
                    }
                }
            }
        }
    }
}
