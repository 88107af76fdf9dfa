//! Kinds of batch schedulers, Flux and the Gateway API, which act for a team with rights of their own: the policies judge them. The kinds are
//! registered without their schemas, as the policies read few fields.

use e2e::{
    Result, World,
    actor::{Actor, Case, Verb, check_all},
    fixtures::{mig_profile, pool, tenant},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

const OWNER: Actor = Actor::Person("ann", &["team-t"]);

/// Group, version, plural and kind.
const KINDS: [(&str, &str, &str, &str); 5] = [
    ("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup"),
    ("kustomize.toolkit.fluxcd.io", "v1", "kustomizations", "Kustomization"),
    ("helm.toolkit.fluxcd.io", "v2", "helmreleases", "HelmRelease"),
    ("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute"),
    ("fluxcd.controlplane.io", "v1", "resourcesets", "ResourceSet"),
];

/// Registers a kind whose fields are all kept.
fn definition((group, version, plural, kind): (&str, &str, &str, &str)) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        // as that of the Gateway API has it, for a group of Kubernetes
        "metadata": {"name": format!("{plural}.{group}"), "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": version, "served": true, "storage": true, "schema": schema}]},
    })
}

fn case(name: &'static str, kind: usize, spec: Value, refusal: Option<&'static str>) -> Case {
    let (group, version, plural, kind) = KINDS[kind];
    let path = format!("/apis/{group}/{version}/namespaces/t/{plural}");
    let object =
        json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": {"name": "x"}, "spec": spec});
    (name, OWNER, Verb::Create, path, object, refusal)
}

fn cases() -> Vec<Case> {
    let queue = Some("spec.queue: team-x names no queue of tenant t, which may use: team-t");
    let class = Some("spec.priorityClassName: train is no class of tenant t, whose groups of pods may name: batch");
    let preemptible = Some("spec.preemptibility: a group of pods of a tenant gives way to others");
    let account = Some("spec.serviceAccountName: name a ServiceAccount of this namespace");
    let hosts = Some("is not granted; tenant t may serve these hosts: t.example.com");
    let source = |namespace: &str| json!({"kind": "GitRepository", "name": "x", "namespace": namespace});
    vec![
        case("group in its own queue", 0, json!({"queue": "team-t", "priorityClassName": "batch"}), None),
        case("group in the queue of others", 0, json!({"queue": "team-x"}), queue),
        case("group with a class of others", 0, json!({"priorityClassName": "train"}), class),
        case("group that gives way", 0, json!({"queue": "team-t", "preemptibility": "preemptible"}), None),
        case("group that gives no way", 0, json!({"preemptibility": "non-preemptible"}), preemptible),
        case("Flux by its own rights", 1, json!({"path": "./", "sourceRef": source("t")}), account),
        case("Flux by an account of the team", 1, json!({"serviceAccountName": "ci", "sourceRef": source("t")}), None),
        case("source of others", 1, json!({"serviceAccountName": "ci", "sourceRef": source("flux-system")}), account),
        case("release elsewhere", 2, json!({"serviceAccountName": "ci", "targetNamespace": "kube-system"}), account),
        case("release in its namespace", 2, json!({"serviceAccountName": "ci", "targetNamespace": "t"}), None),
        case("set by the rights of flux-operator", 4, json!({"resources": []}), account),
        case("set by an account of the team", 4, json!({"serviceAccountName": "ci", "resources": []}), None),
        case("route of its own host", 3, json!({"hostnames": ["t.example.com"]}), None),
        case("route of the host of others", 3, json!({"hostnames": ["t.example.com", "x.example.com"]}), hosts),
        case("route of every host", 3, json!({"parentRefs": [{"kind": "Gateway", "name": "shared"}]}), hosts),
        case("route within a mesh", 3, json!({"parentRefs": [{"group": "", "kind": "Service", "name": "s"}]}), None),
    ]
}

async fn judged(world: &World) -> Result<()> {
    let mut t = tenant("t", &[("mig-1g", 1)]);
    t["spec"]["owners"] = json!([{"kind": "Group", "name": "team-t"}]);
    t["spec"]["queues"] = json!(["team-t"]);
    t["spec"]["priorityClasses"] = json!(["batch"]);
    t["spec"]["ingressHosts"] = json!(["t.example.com"]);
    world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
    world.set(&[pool("p", "gpu-1", &["mig-1g"]), t]).await?;
    tenant_ready(world, "t").await?;
    world.set(&KINDS.map(definition)).await?;
    // as these products aggregate such rights to `edit`
    let rules: Vec<Value> = KINDS
        .iter()
        .map(|(group, _, plural, _)| json!({"apiGroups": [group], "resources": [plural], "verbs": ["create", "patch"]}))
        .collect();
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-edit": "true"});
    world.set(&[json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "e2e-products", "labels": labels}, "rules": rules})]).await?;
    eventually("the kinds to be served and the rights to be aggregated", PATIENCE, || async {
        for (name, actor, verb, path, body, _) in cases() {
            if let Err(status) = actor.may(&world.client, verb, &path, &body).await?
                && (status.code == 404 || status.message.contains("cannot create resource"))
            {
                return Ok(Err(format!("{name}: {}", status.message)));
            }
        }
        Ok(Ok(()))
    })
    .await?;
    check_all(&world.client, cases()).await?;
    // a controller with rights on all namespaces makes groups for pods that have been judged
    let (_, _, verb, path, body, _) = case(
        "",
        0,
        json!({"queue": "default", "priorityClassName": "train", "preemptibility": "non-preemptible"}),
        None,
    );
    Actor::Admin.check(&world.client, verb, &path, &body, None).await
}

#[tokio::test]
async fn objects_by_which_other_products_act_for_a_team_are_judged() {
    let world = World::enter_api().await.unwrap();
    let outcome = judged(&world).await;
    world.kubectl(&["delete", "clusterrole", "e2e-products", "--ignore-not-found"]).await.unwrap();
    for (group, _, plural, _) in KINDS {
        world.kubectl(&["delete", "crd", &format!("{plural}.{group}"), "--ignore-not-found"]).await.unwrap();
    }
    world.keeping_evidence("other-products", async { outcome }).await;
}
