//! Counts of objects that every tenant has by default (`tenants.defaultResources`): its quota has all of them, and refuses what is beyond.

use std::collections::BTreeMap;

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{merged, tenant},
    objects::ensure,
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::names;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use serde_json::{Value, json};

use crate::bypass::collection;

const OWNER: Actor = Actor::Person("ann", &["team-t"]);

/// Small counts for the same keys. A namespace has one `ConfigMap` and one `ServiceAccount` of the cluster, and the role binding of its owners. Teams may
/// not write controller revisions themselves: none is left for controllers, which would make them at any time.
const SMALL: [(&str, &str); 23] = [
    ("services.nodeports", "1"),
    ("services.loadbalancers", "1"),
    ("services", "3"),
    ("configmaps", "2"),
    ("secrets", "1"),
    ("persistentvolumeclaims", "1"),
    ("count/roles.rbac.authorization.k8s.io", "1"),
    ("count/rolebindings.rbac.authorization.k8s.io", "2"),
    ("count/jobs.batch", "1"),
    ("count/cronjobs.batch", "1"),
    ("count/deployments.apps", "1"),
    ("count/replicasets.apps", "1"),
    ("count/statefulsets.apps", "1"),
    ("count/daemonsets.apps", "1"),
    (REVISIONS, "0"),
    ("count/replicationcontrollers", "1"),
    ("count/horizontalpodautoscalers.autoscaling", "1"),
    ("count/poddisruptionbudgets.policy", "1"),
    ("count/ingresses.networking.k8s.io", "1"),
    ("count/serviceaccounts", "2"),
    ("count/leases.coordination.k8s.io", "1"),
    ("count/resourceclaims.resource.k8s.io", "1"),
    ("count/resourceclaimtemplates.resource.k8s.io", "1"),
];
const REVISIONS: &str = "count/controllerrevisions.apps";

/// The defaults of the chart.
fn defaults() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(product::root().join("helm/gputenancy/values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    serde_json::from_value(values["tenants"]["defaultResources"].clone()).unwrap()
}

/// The number of a quantity; the API server writes 1000 as `1k`.
fn count(quantity: &str) -> Option<u64> {
    let (digits, factor) = quantity.strip_suffix('k').map_or((quantity, 1), |digits| (digits, 1000));
    Some(digits.parse::<u64>().ok()? * factor)
}

/// Waits until the quota of the team has these limits.
async fn quota_has(world: &World, limits: &BTreeMap<String, String>) -> Result<()> {
    let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), "t");
    eventually("the default counts in the quota", PATIENCE, || async {
        let quota = quotas.get(names::QUOTA).await?;
        // those of the status are enforced
        let hard = quota.status.and_then(|status| status.hard).unwrap_or_default();
        let differs =
            |(key, limit): &(&String, &String)| hard.get(*key).is_none_or(|found| count(&found.0) != count(limit));
        let wrong: Vec<_> = limits.iter().filter(differs).collect();
        Ok(if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:?} are not in {hard:?}")) })
    })
    .await
}

/// An object with these fields.
fn one(api: &str, kind: &str, name: &str, fields: Value) -> Value {
    merged(json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}}), fields)
}

fn service(name: &str, fields: Value) -> Value {
    one("v1", "Service", name, json!({"spec": merged(json!({"ports": [{"port": 80}]}), fields)}))
}

/// A template of pods that no node runs, with a label of its own, so that no other controller takes them.
fn template(label: &str) -> Value {
    let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let container = json!({"name": "c", "image": "i", "securityContext": restricted});
    let security = json!({"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}});
    let spec =
        json!({"nodeSelector": {"example.com/none": "true"}, "containers": [container], "securityContext": security});
    json!({"metadata": {"labels": {"a": label}}, "spec": spec})
}

/// The spec of a controller with these fields.
fn controller(kind: &str, name: &str, fields: Value) -> Value {
    let spec = json!({"selector": {"matchLabels": {"a": kind}}, "template": template(kind)});
    one("apps/v1", kind, name, json!({"spec": merged(spec, fields)}))
}

/// One object for each of the small counts, which it fills. None of them creates further objects, except revisions.
fn objects(name: &str) -> [(&'static str, Value); 23] {
    let rbac = "rbac.authorization.k8s.io";
    let rbac_v1 = &format!("{rbac}/v1");
    let balancer = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}, "storageClassName": "none"});
    let mut once = template("job");
    once["spec"]["restartPolicy"] = json!("Never");
    let job = json!({"suspend": true, "template": once});
    let cron = json!({"schedule": "0 2 * * *", "suspend": true, "jobTemplate": {"spec": job}});
    let replication = json!({"replicas": 0, "selector": {"a": "rc"}, "template": template("rc")});
    let view = json!({"apiGroup": rbac, "kind": "ClusterRole", "name": "gputenancy:tenant-viewer"});
    let autoscaler =
        json!({"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}});
    let budget = json!({"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}});
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let resource = "resource.k8s.io/v1";
    let named = |kind: &str| format!("{kind}-{name}");
    [
        ("services.nodeports", service(&named("port"), json!({"type": "NodePort"}))),
        ("services.loadbalancers", service(&named("balancer"), balancer)),
        ("services", service(&named("service"), json!({}))),
        ("configmaps", one("v1", "ConfigMap", name, json!({}))),
        ("secrets", one("v1", "Secret", name, json!({}))),
        ("persistentvolumeclaims", one("v1", "PersistentVolumeClaim", name, json!({"spec": claim}))),
        ("count/roles.rbac.authorization.k8s.io", one(rbac_v1, "Role", name, json!({"rules": []}))),
        ("count/rolebindings.rbac.authorization.k8s.io", one(rbac_v1, "RoleBinding", name, json!({"roleRef": view}))),
        ("count/jobs.batch", one("batch/v1", "Job", name, json!({"spec": job}))),
        ("count/cronjobs.batch", one("batch/v1", "CronJob", name, json!({"spec": cron}))),
        // a paused Deployment has no ReplicaSet
        ("count/deployments.apps", controller("Deployment", name, json!({"paused": true}))),
        ("count/replicasets.apps", controller("ReplicaSet", name, json!({"replicas": 0}))),
        ("count/statefulsets.apps", controller("StatefulSet", name, json!({"replicas": 0, "serviceName": "s"}))),
        ("count/daemonsets.apps", controller("DaemonSet", name, json!({}))),
        (REVISIONS, one("apps/v1", "ControllerRevision", name, json!({"revision": 1, "data": {"a": "b"}}))),
        ("count/replicationcontrollers", one("v1", "ReplicationController", name, json!({"spec": replication}))),
        (
            "count/horizontalpodautoscalers.autoscaling",
            one("autoscaling/v2", "HorizontalPodAutoscaler", name, json!({"spec": autoscaler})),
        ),
        ("count/poddisruptionbudgets.policy", one("policy/v1", "PodDisruptionBudget", name, json!({"spec": budget}))),
        (
            "count/ingresses.networking.k8s.io",
            one("networking.k8s.io/v1", "Ingress", name, json!({"spec": {"defaultBackend": backend}})),
        ),
        ("count/serviceaccounts", one("v1", "ServiceAccount", name, json!({}))),
        ("count/leases.coordination.k8s.io", one("coordination.k8s.io/v1", "Lease", name, json!({"spec": {}}))),
        ("count/resourceclaims.resource.k8s.io", one(resource, "ResourceClaim", name, json!({"spec": {}}))),
        (
            "count/resourceclaimtemplates.resource.k8s.io",
            one(resource, "ResourceClaimTemplate", name, json!({"spec": {"spec": {}}})),
        ),
    ]
}

#[tokio::test]
async fn quota_of_a_tenant_has_all_default_counts_and_refuses_one_object_more() {
    let world = World::enter_api().await.unwrap();
    let outcome = counted(&world).await;
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("default-counts", async { outcome }).await;
}

async fn counted(world: &World) -> Result<()> {
    let mut t = tenant("t", &[]);
    t["spec"]["owners"] = json!([{"kind": "Group", "name": "team-t"}]);
    world.set(&[t]).await?;
    tenant_ready(world, "t").await?;
    quota_has(world, &defaults()).await?;

    let small: BTreeMap<String, String> = SMALL.map(|(key, limit)| (key.to_owned(), limit.to_owned())).into();
    let io = |source| Error::Io { what: "values".into(), source };
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(io)?;
    std::fs::write(file.path(), json!({"tenants": {"defaultResources": small}}).to_string()).map_err(io)?;
    product::install_with(&world.lab, &[], &["--values", &file.path().display().to_string()]).await?;
    quota_has(world, &small).await?;
    tenant_ready(world, "t").await?;
    for (key, object) in objects("first") {
        if key != REVISIONS {
            OWNER.does(&world.client, Verb::Create, &collection(&object), &object).await?;
        }
    }
    for (key, object) in objects("more") {
        let actor = if key == REVISIONS { Actor::Admin } else { OWNER };
        let refused = actor.may(&world.client, Verb::Create, &collection(&object), &object).await?;
        let message = refused.err().map(|status| status.message).unwrap_or_default();
        let named = message.contains("exceeded quota: gputenancy, requested:") && message.contains(&format!("{key}="));
        ensure(named, format!("{key}: {message:?}"))?;
    }
    Ok(())
}

/// A namespace of no tenant, where no policy refuses the pod before the quota does.
const ELSEWHERE: &str = "affinity-elsewhere";
const AFFINITY_QUOTA: &str = "gputenancy-pod-affinity";

#[tokio::test]
async fn affinity_quota_refuses_pods_that_name_namespaces_and_counts_no_others() {
    let world = World::enter_api().await.unwrap();
    let outcome = affinity(&world).await;
    world.kubectl(&["delete", "namespace", ELSEWHERE, "--ignore-not-found"]).await.unwrap();
    world.keeping_evidence("affinity-quota", async { outcome }).await;
}

async fn affinity(world: &World) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}});
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": ELSEWHERE}});
    world.set(&[namespace, account, tenant("t", &[])]).await?;
    tenant_ready(world, "t").await?;
    let own = Api::<ResourceQuota>::namespaced(world.client.clone(), "t").get(AFFINITY_QUOTA).await?;
    world.set(&[json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": AFFINITY_QUOTA, "namespace": ELSEWHERE}, "spec": own.spec})]).await?;
    let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), ELSEWHERE);
    eventually("the quota to be enforced", PATIENCE, || async {
        let enforced = quotas.get(AFFINITY_QUOTA).await?.status.and_then(|s| s.hard).is_some();
        Ok(if enforced { Ok(()) } else { Err("not yet".into()) })
    })
    .await?;
    let refused = Some("exceeded quota: gputenancy-pod-affinity");
    for (kind, more, refused) in [
        ("podAntiAffinity", json!({"namespaces": ["default"]}), refused),
        ("podAffinity", json!({"namespaceSelector": {}}), refused),
        ("podAffinity", json!({"namespaces": [ELSEWHERE]}), refused),
        ("podAntiAffinity", json!({}), None),
        ("podAffinity", json!({}), None),
    ] {
        let mut term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}});
        for (key, value) in more.as_object().into_iter().flatten() {
            term[key] = value.clone();
        }
        for list in
            ["requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"]
        {
            let preferred = json!({"weight": 1, "podAffinityTerm": term});
            let terms = if list.starts_with("preferred") { json!([preferred]) } else { json!([term]) };
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {
                "affinity": {kind: {list: terms}}, "containers": [{"name": "c", "image": "i"}]}});
            let path = format!("/api/v1/namespaces/{ELSEWHERE}/pods");
            Actor::Admin.check(&world.client, Verb::Create, &path, &pod, refused).await?;
        }
    }
    Ok(())
}

/// Tests that need no cluster.
mod offline {
    use super::*;

    #[test]
    fn default_counts_have_a_small_one_in_this_test() {
        let small: Vec<&str> = SMALL.iter().map(|(key, _)| *key).collect();
        let mut all: Vec<String> = defaults().into_keys().collect();
        all.sort_by_key(|key| small.iter().position(|known| known == key));
        assert_eq!(all, small, "add a count and an object of its kind");
        assert_eq!(objects("x").map(|(key, _)| key), *small);
    }
}
