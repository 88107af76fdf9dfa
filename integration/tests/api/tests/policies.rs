//! Admission policies on writes by agents, the operator and administrators.

use e2e::{
    Result, World,
    actor::{Actor, Case, Verb, check_all},
    fixtures::{self, merged, patched},
    product,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};

use crate::bypass::operators;

const GPU_NODES: &str = "/apis/gputenancy.io/v1alpha1/gpunodes";
const TENANTS: &str = "/apis/gputenancy.io/v1alpha1/gputenants";

fn gpu_node(node: &str, gpus: &Value) -> Value {
    json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": node}, "spec": {"gpus": gpus}})
}

fn gpu_nodes() -> Vec<Case> {
    let other = Some("an agent may write only the GpuNode of its own node");
    let operators = Some("GpuNode.spec is written by the operator alone; change a GpuPool or a GpuTenant instead");
    let unowned = Some("may give a GpuNode no finalizers, and no owner but its Node");
    let owned = |kind: &str, name: &str| json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "x"}]}});
    let finalized = json!({"metadata": {"finalizers": ["example.com/x"]}});
    let one = json!([{"uuid": "GPU-99999999-0000-0000-0000-000000000000"}]);
    let own = format!("{GPU_NODES}/gpu-1");
    let status = format!("{GPU_NODES}/gpu-1/status");
    let layout = json!({"status": {"layout": "0: whole"}});
    let (fresh, fresh_body) = (GPU_NODES.to_owned(), gpu_node("new-node", &json!([])));
    vec![
        ("agent creates its own", Actor::Agent("new-node"), Verb::Create, fresh.clone(), fresh_body.clone(), None),
        ("agent creates another's", Actor::Agent("gpu-1"), Verb::Create, fresh.clone(), fresh_body.clone(), other),
        ("token without a node", Actor::AgentWithoutNode, Verb::Create, fresh.clone(), fresh_body, other),
        (
            "agent creates a layout",
            Actor::Agent("new-node"),
            Verb::Create,
            fresh,
            gpu_node("new-node", &one),
            operators,
        ),
        ("agent reports its own", Actor::Agent("gpu-1"), Verb::Merge, status.clone(), layout.clone(), None),
        ("agent reports another's", Actor::Agent("gpu-2"), Verb::Merge, status.clone(), layout.clone(), other),
        (
            "agent writes its layout",
            Actor::Agent("gpu-1"),
            Verb::Apply,
            own.clone(),
            gpu_node("gpu-1", &one),
            Some("cannot patch resource"),
        ),
        (
            "administrator sets the partitioner",
            Actor::Admin,
            Verb::Merge,
            own.clone(),
            json!({"spec": {"partitioner": "None"}}),
            operators,
        ),
        ("administrator writes a layout", Actor::Admin, Verb::Apply, own.clone(), gpu_node("gpu-1", &one), operators),
        ("operator gives it an owner", Actor::Operator, Verb::Merge, own.clone(), owned("ConfigMap", "x"), unowned),
        ("operator gives it a finalizer", Actor::Operator, Verb::Merge, own.clone(), finalized.clone(), unowned),
        (
            "agent creates its own with its Node as owner",
            Actor::Agent("new-node"),
            Verb::Create,
            GPU_NODES.to_owned(),
            patched(gpu_node("new-node", &json!([])), owned("Node", "new-node")),
            None,
        ),
        (
            "agent creates its own with another owner",
            Actor::Agent("new-node"),
            Verb::Create,
            GPU_NODES.to_owned(),
            patched(gpu_node("new-node", &json!([])), owned("Node", "gpu-1")),
            unowned,
        ),
        (
            "agent creates its own with a finalizer",
            Actor::Agent("new-node"),
            Verb::Create,
            GPU_NODES.to_owned(),
            patched(gpu_node("new-node", &json!([])), finalized),
            unowned,
        ),
        ("operator writes a layout", Actor::Operator, Verb::Apply, own.clone(), gpu_node("gpu-1", &one), None),
        (
            "administrator labels",
            Actor::Admin,
            Verb::Merge,
            own.clone(),
            json!({"metadata": {"labels": {"a": "b"}}}),
            None,
        ),
        ("agent deletes", Actor::Agent("gpu-1"), Verb::Delete, own, json!({}), Some("cannot delete resource")),
        ("operator reports", Actor::Operator, Verb::Merge, status, layout, Some("cannot patch resource")),
    ]
}

fn nodes() -> Vec<Case> {
    let nothing_else =
        Some("an agent may change nothing of its node but the amounts of GPU resources and the condition");
    let amounts = Some("an agent may change only amounts of resources in nvidia.com, gputenancy.io");
    let own = "/api/v1/nodes/gpu-1/status".to_owned();
    let agent = |name, body, refusal| (name, Actor::Agent("gpu-1"), Verb::Merge, own.clone(), body, refusal);
    let no_other = Some("an agent may write no condition of its node but gputenancy.io/DevicesReady");
    let of_type = |type_: &str, message: &str| json!({"type": type_, "status": "False", "reason": "GpuUnhealthy", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let own_condition = of_type("gputenancy.io/DevicesReady", "GPU 0: Xid 48");
    let long = of_type("gputenancy.io/DevicesReady", &"x".repeat(4097));
    let another = of_type("example.com/Burnt", "no");
    let applied = |conditions: &Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}, "status": {"conditions": conditions}});
    let condition = |name, conditions: Value, refusal| {
        (name, Actor::Agent("gpu-1"), Verb::Apply, own.clone(), applied(&conditions), refusal)
    };
    let allocatable = |key: &str, value: Value| json!({"status": {"allocatable": {key: value}}});
    let gpus = allocatable("nvidia.com/gpu", json!("1"));
    // each would be a key of every tenant's quota
    let many: serde_json::Map<String, Value> = (0..257).map(|n| (format!("nvidia.com/mig-{n}"), json!("1"))).collect();
    vec![
        agent("lowers a GPU resource", gpus.clone(), None),
        agent("a slice", allocatable("nvidia.com/mig-1g.10gb", json!("3")), None),
        agent("a resource of gputenancy.io", allocatable("gputenancy.io/small", json!("3")), None),
        agent("capacity", json!({"status": {"capacity": {"nvidia.com/gpu": "2"}}}), None),
        agent("cpu", allocatable("cpu", json!("1")), amounts),
        agent("no memory", allocatable("memory", Value::Null), amounts),
        agent("capacity of pods", json!({"status": {"capacity": {"pods": "1"}}}), amounts),
        agent("resources without end", json!({"status": {"capacity": many}}), Some("to 256 at most")),
        agent("a look-alike", allocatable("nvidia.com.evil.io/gpu", json!("1")), amounts),
        agent("a label", json!({"metadata": {"labels": {"x": "y"}}}), nothing_else),
        agent("an annotation", json!({"metadata": {"annotations": {"x": "y"}}}), nothing_else),
        agent(
            "addresses",
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}}),
            nothing_else,
        ),
        agent("no conditions", json!({"status": {"conditions": null}}), no_other),
        condition("its own condition", json!([own_condition]), None),
        condition("its own condition with a long message", json!([long]), no_other),
        condition("a condition of another product", json!([another]), no_other),
        condition("both", json!([own_condition, another]), no_other),
        (
            "the condition of another node",
            Actor::Agent("gpu-2"),
            Verb::Apply,
            own.clone(),
            applied(&json!([own_condition])),
            Some("an agent may write only its own node"),
        ),
        agent("images", json!({"status": {"images": [{"names": ["x"], "sizeBytes": 1}]}}), nothing_else),
        (
            "another node",
            Actor::Agent("gpu-2"),
            Verb::Merge,
            own.clone(),
            gpus.clone(),
            Some("an agent may write only its own node"),
        ),
        (
            "no node at all",
            Actor::AgentWithoutNode,
            Verb::Merge,
            own.clone(),
            gpus,
            Some("an agent may write only its own node"),
        ),
        (
            "unschedulable",
            Actor::Agent("gpu-1"),
            Verb::Merge,
            "/api/v1/nodes/gpu-1".into(),
            json!({"spec": {"unschedulable": true}}),
            Some("cannot patch resource"),
        ),
        (
            "pods",
            Actor::Agent("gpu-1"),
            Verb::Delete,
            "/api/v1/namespaces/default/pods/x".into(),
            json!({}),
            Some("cannot delete"),
        ),
    ]
}

fn events() -> Vec<Case> {
    let own = Some("an agent may report events only as the agent of its own node");
    let one = Some("an agent may report, as gputenancy.io/agent");
    let event = |fields: Value| {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "x.1", "namespace": "default"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reason": "ForbiddenVariable", "type": "Warning", "action": "Stop", "note": "x",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "x"},
            "reportingController": "gputenancy.io/agent", "reportingInstance": "gpu-1",
        });
        merged(event, fields)
    };
    let of_gpu_node = |name: &str, reason: &str| {
        let node = json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode", "name": name});
        json!({"reason": reason, "regarding": node})
    };
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let agent =
        |name, node, fields, refusal| (name, Actor::Agent(node), Verb::Create, path.to_owned(), event(fields), refusal);
    vec![
        agent("event about a variable", "gpu-1", json!({}), None),
        agent("event about a fault", "gpu-1", json!({"reason": "GpuProgramFault"}), None),
        agent("event about a lost device", "gpu-1", json!({"reason": "DeviceLost"}), None),
        agent("event about a licence", "gpu-1", of_gpu_node("gpu-1", "VgpuUnlicensed"), None),
        agent("event about the memory of a share", "gpu-1", json!({"reason": "ShareMemoryHigh"}), None),
        agent("event about kernels that do not end", "gpu-1", json!({"reason": "KernelUncontrollable"}), None),
        agent("event about another size of a share", "gpu-1", json!({"reason": "ShareResized"}), None),
        agent("event about a refused size of a share", "gpu-1", json!({"reason": "ShareResizeRefused"}), None),
        agent("event about suspended compute", "gpu-1", json!({"reason": "ComputeSuspended"}), None),
        agent("event about resumed compute", "gpu-1", json!({"reason": "ComputeResumed"}), None),
        agent("event of its GpuNode about suspended compute", "gpu-1", of_gpu_node("gpu-1", "ComputeSuspended"), one),
        agent("event about a bypass", "gpu-1", json!({"reason": "MemoryLimitBypassed"}), None),
        agent("event of its GpuNode about a bypass", "gpu-1", of_gpu_node("gpu-1", "MemoryLimitBypassed"), None),
        agent("event of its GpuNode about a share", "gpu-1", of_gpu_node("gpu-1", "ShareMemoryHigh"), one),
        agent("event about an MPS daemon", "gpu-1", json!({"reason": "MpsDaemonEnded"}), None),
        agent("event of its GpuNode", "gpu-1", of_gpu_node("gpu-1", "GpuNodeFault"), None),
        agent("event of another GpuNode", "gpu-1", of_gpu_node("gpu-2", "GpuNodeFault"), one),
        agent("event of its GpuNode about a variable", "gpu-1", of_gpu_node("gpu-1", "ForbiddenVariable"), one),
        agent("event with the token of another node", "gpu-2", json!({}), own),
        agent("event with another reporting instance", "gpu-1", json!({"reportingInstance": "gpu-9"}), own),
        agent("event as the scheduler", "gpu-1", json!({"reportingController": "default-scheduler"}), one),
        agent("event with another reason", "gpu-1", json!({"reason": "FailedCreate"}), one),
        agent(
            "event about a node",
            "gpu-1",
            json!({"regarding": {"kind": "Node", "name": "gpu-1", "namespace": "default"}}),
            one,
        ),
        (
            "event with a token without a node",
            Actor::AgentWithoutNode,
            Verb::Create,
            path.to_owned(),
            event(json!({})),
            own,
        ),
        (
            "the operator's event",
            Actor::Operator,
            Verb::Create,
            path.to_owned(),
            event(json!({"reportingController": "gputenancy.io/operator", "reason": "Ready"})),
            None,
        ),
    ]
}

/// A canary pod with these fields of its spec and of its container changed.
fn canary(spec: Value, container: Value) -> Value {
    fixtures::canary(json!({}), spec, container)
}

/// Objects by which owners and viewers read their tenant.
fn tenant_roles() -> Vec<Case> {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let no_role = Some("the operator may write no ClusterRoles but gputenancy-tenant-NAME");
    let no_binding = Some("the operator may write no ClusterRoleBindings but gputenancy-tenant-NAME");
    let case = |name, verb, path: String, body, refusal| (name, Actor::Operator, verb, path, body, refusal);
    let grants = |resources: Value, names: Value, verbs: Value| json!({"apiGroups": ["gputenancy.io"], "resources": resources, "resourceNames": names, "verbs": verbs});
    let reads = |names: Value| grants(json!(["gputenants"]), names, json!(["get", "list", "watch"]));
    let role = |name, object: &str, rules: Value, refusal| {
        let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": object}, "rules": rules});
        case(name, Verb::Apply, format!("{RBAC}/clusterroles/{object}"), body, refusal)
    };
    let binding = |name, object: &str, role: &str, refusal| {
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
        let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]);
        let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": object}, "roleRef": role, "subjects": subjects});
        case(name, Verb::Apply, format!("{RBAC}/clusterrolebindings/{object}"), body, refusal)
    };
    let delete = |name, path: &str, refusal| case(name, Verb::Delete, format!("{RBAC}/{path}"), json!({}), refusal);
    let (own, mine) = ("gputenancy-tenant-t", || reads(json!(["t"])));
    let secrets = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]});
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]});
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    vec![
        role("a role that reads a tenant", own, json!([mine()]), None),
        role("a role of another name", "readers", json!([mine()]), no_role),
        role("a role that reads another tenant", own, json!([reads(json!(["u"]))]), no_role),
        role("a role that reads two tenants", own, json!([reads(json!(["t", "u"]))]), no_role),
        role("a role that reads all tenants", own, json!([reads(json!([]))]), no_role),
        role("a role of a tenant without a name", "gputenancy-tenant-", json!([reads(json!([""]))]), no_role),
        role(
            "a role that writes",
            own,
            json!([grants(json!(["gputenants"]), json!(["t"]), json!(["patch"]))]),
            no_role,
        ),
        role(
            "a role that reads pools",
            own,
            json!([grants(json!(["gpupools"]), json!(["t"]), json!(["watch"]))]),
            no_role,
        ),
        role("a role that reads pods, too", own, json!([mine(), pods]), no_role),
        role("a role without a rule", own, json!([]), no_role),
        role("a role beyond the operator's rights", own, json!([secrets]), Some("not currently held")),
        case("label of a role", Verb::Merge, format!("{RBAC}/clusterroles/gputenancy-operator"), label, no_role),
        binding("a binding to the operator's role", own, "gputenancy-operator", no_binding),
        binding("a binding of another name", "readers", "gputenancy-operator", no_binding),
        binding("a binding beyond the operator's rights", own, "cluster-admin", Some("not currently held")),
        delete("a role of Kubernetes", "clusterroles/view", no_role),
        delete("a binding of Kubernetes", "clusterrolebindings/cluster-admin", no_binding),
    ]
}

fn operator() -> Vec<Case> {
    let nothing_else = Some("the operator may change nothing of a node but labels of gputenancy.io");
    let unmarked = Some("the operator may uncordon only a node that it has cordoned");
    let marked = json!({"metadata": {"annotations": {"gputenancy.io/cordoned": "2026-01-01T00:00:00Z"}}, "spec": {"unschedulable": true}});
    let no_mark = Some("the operator may take away only the taint that it has put there");
    let tainted = |key: &str, effect: &str, mark: &str| json!({"metadata": {"annotations": {"gputenancy.io/tainted": mark}}, "spec": {"taints": [{"key": key, "effect": effect}]}});
    let not_ours = Some("the operator may change and delete only namespaces that it made for a tenant");
    let case = |name, verb, path: &str, body, refusal| (name, Actor::Operator, verb, path.to_owned(), body, refusal);
    let node = |name, body, refusal| case(name, Verb::Merge, "/api/v1/nodes/gpu-1", body, refusal);
    let label = |key: &str, value: Value| json!({"metadata": {"labels": {key: value}}});
    let space = "/api/v1/namespaces/kube-node-lease";
    let pods = "/api/v1/namespaces/gputenancy-system/pods";
    let no_canary = Some("the operator may create no pod but canaries");
    vec![
        node("label of gputenancy.io", label("gputenancy.io/pool", json!("p")), None),
        node("label about MIG devices", label("nvidia.com/mig-1g.10gb.count", json!("3")), None),
        node("label that requests a layout", label("nvidia.com/mig.config", json!("all-disabled")), nothing_else),
        node("label of another domain", label("example.com/rack", json!("r")), nothing_else),
        node("a layout of the operator", label("nvidia.com/mig.config", json!("gputenancy-0123456789abcdef-b")), None),
        node("a layout of others", label("nvidia.com/mig.config", json!("all-1g.10gb")), nothing_else),
        node("state of the MIG manager", label("nvidia.com/mig.config.state", json!("failed")), nothing_else),
        node("not paused before", label("nvidia.com/gpu.deploy.sandbox", json!("true")), nothing_else),
        node("pausing", label("nvidia.com/gpu.deploy.nvsm", json!("paused-for-mig-change")), nothing_else),
        node("no host name", label("kubernetes.io/hostname", Value::Null), nothing_else),
        node("annotation", json!({"metadata": {"annotations": {"a": "b"}}}), nothing_else),
        node("unschedulable", json!({"spec": {"unschedulable": true}}), unmarked),
        node("a taint without its mark", json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}), no_mark),
        node("a taint with another's mark", tainted("a", "NoSchedule", "b=:NoSchedule"), no_mark),
        node("a NoExecute taint", tainted("a", "NoExecute", "a=:NoExecute"), no_mark),
        node(
            "a taint of Kubernetes",
            tainted("node.kubernetes.io/x", "NoSchedule", "node.kubernetes.io/x=:NoSchedule"),
            no_mark,
        ),
        node("a taint with its mark", tainted("a", "NoSchedule", "a=:NoSchedule"), None),
        node("cordon with its mark", marked, None),
        case("label of another namespace", Verb::Merge, space, label("gputenancy.io/tenant", json!("t")), not_ours),
        case(
            "label of the operator's own namespace",
            Verb::Merge,
            "/api/v1/namespaces/gputenancy-system",
            label("gputenancy.io/tenant", json!("t")),
            not_ours,
        ),
        case("delete another namespace", Verb::Delete, space, json!({}), not_ours),
        case("a canary", Verb::Create, pods, canary(json!({}), json!({})), None),
        case(
            "a pod with rights",
            Verb::Create,
            pods,
            canary(json!({"serviceAccountName": "default"}), json!({})),
            no_canary,
        ),
        case(
            "a pod with the node's network",
            Verb::Create,
            pods,
            canary(json!({"hostNetwork": true}), json!({})),
            no_canary,
        ),
        case(
            "a root user",
            Verb::Create,
            pods,
            canary(json!({"securityContext": {"runAsNonRoot": false, "runAsUser": 0}}), json!({})),
            no_canary,
        ),
        case(
            "a file of the node",
            Verb::Create,
            pods,
            canary(json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), json!({})),
            no_canary,
        ),
        case(
            "a privileged pod",
            Verb::Create,
            pods,
            canary(json!({}), json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": true}})),
            no_canary,
        ),
        case(
            "a pod elsewhere",
            Verb::Create,
            "/api/v1/namespaces/default/pods",
            canary(json!({}), json!({})),
            Some("cannot create resource"),
        ),
        (
            "a new device before its canary",
            Actor::Admin,
            Verb::Create,
            pods.into(),
            canary(json!({"serviceAccountName": "default"}), json!({})),
            Some("resources gputenancy.io/canary_* are new devices that the operator's canary pods have yet to prove"),
        ),
        case("secrets", Verb::Delete, "/api/v1/namespaces/default/secrets/x", json!({}), Some("cannot delete")),
    ]
}

#[tokio::test]
async fn policies_limit_writes_of_agent_operator_and_administrator() {
    // without the pools of other tests: a patch that changes nothing of a cordoned or tainted node is admitted
    let world = World::enter_api().await.unwrap();
    untouched(&world).await.unwrap();
    check_all(&world.client, [gpu_nodes(), nodes(), events(), operator(), tenant_roles()].concat()).await.unwrap();
}

/// Waits until gpu-1 is neither cordoned nor tainted.
async fn untouched(world: &World) -> Result<()> {
    let nodes = Api::<Node>::all(world.client.clone());
    eventually("gpu-1 without a cordon and a taint", PATIENCE, || async {
        let spec = nodes.get("gpu-1").await?.spec.unwrap_or_default();
        let free = spec.unschedulable != Some(true) && spec.taints.iter().flatten().next().is_none();
        Ok(if free { Ok(()) } else { Err(format!("{:?} {:?}", spec.unschedulable, spec.taints)) })
    })
    .await
}

#[tokio::test]
async fn profile_in_use_is_not_deleted_and_an_unused_one_is() {
    let world = World::attach().await.unwrap();
    product::install(&world.lab, &[]).await.unwrap();
    // the statuses are the test's: an operator would write its own counts between two requests
    operators(&world, 0).await.unwrap();
    let result = deletions(&world).await;
    operators(&world, 2).await.unwrap();
    result.unwrap();
}

async fn deletions(world: &World) -> Result<()> {
    let one = "/apis/gputenancy.io/v1alpha1/gpuprofiles/in-use".to_owned();
    let status = format!("{one}/status");
    let profile = json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "in-use"},
        "spec": {"device": {"whole": {}}, "support": {"expected": "e", "incident": "i"}}});
    let admin = Actor::Admin;
    admin.does(&world.client, Verb::Apply, &one, &profile).await?;
    for (tenants, pools) in [(2, 0), (0, 1), (3, 2)] {
        let used = json!({"status": {"tenants": tenants, "pools": pools}});
        admin.does(&world.client, Verb::Merge, &status, &used).await?;
        let refusal = format!(
            "GpuProfile in-use is in use (GpuTenants that are guaranteed it: {tenants}, GpuPools that list it: {pools}): remove it from their spec.gpus and spec.profiles first; kubectl gpu plan --delete gpuprofile/in-use names them"
        );
        admin.check(&world.client, Verb::Delete, &one, &json!({}), Some(&refusal)).await?;
    }
    admin.does(&world.client, Verb::Merge, &status, &json!({"status": {"tenants": 0, "pools": 0}})).await?;
    admin.does(&world.client, Verb::Delete, &one, &json!({})).await?;
    // without a status, as before the operator has seen it
    admin.does(&world.client, Verb::Apply, &one, &profile).await?;
    admin.does(&world.client, Verb::Delete, &one, &json!({})).await.map(drop)
}

#[tokio::test]
async fn deletion_protection_refuses_delete_with_remedy() {
    let world = World::attach().await.unwrap();
    product::install(&world.lab, &[]).await.unwrap();
    let one = format!("{TENANTS}/protected");
    let tenant = |protection: Option<bool>| {
        let mut spec = json!({"namespaces": [{"name": "protected"}]});
        if let Some(protection) = protection {
            spec["deletionProtection"] = protection.into();
        }
        json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "protected"}, "spec": spec})
    };
    let admin = Actor::Admin;
    // protected by default
    admin.does(&world.client, Verb::Apply, &one, &tenant(None)).await.unwrap();
    for path in [&one, &TENANTS.to_owned()] {
        let refusal =
            "GpuTenant protected is protected, and its namespaces with it: set spec.deletionProtection to false first";
        admin.check(&world.client, Verb::Delete, path, &json!({}), Some(refusal)).await.unwrap();
    }
    admin.does(&world.client, Verb::Apply, &one, &tenant(Some(false))).await.unwrap();
    admin.does(&world.client, Verb::Delete, &one, &json!({})).await.unwrap();
}
