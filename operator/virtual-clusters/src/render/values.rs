//! The values of vCluster's chart: the hardened baseline, the platform's, the tenant's, and those that follow from the tenant. Pure.

use gputenancy_crds::{GpuTenant, PodSecurity, Reclaim, Storage, VirtualCluster};
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};

use super::RenderError;

/// User and group of the control plane: the Pod Security Standard of the namespace admits no root.
const USER: i64 = 65532;

/// Keys that a tenant's values may not set, each with what sets it instead.
const OWNED: &[(&str, &str)] = &[
    ("policies", "quota, default requests and network policy are the tenant's objects (spec.resources, spec.network)"),
    ("exportKubeConfig", "the kubeconfig follows spec.virtualCluster.kubeconfig and expose"),
    ("rbac", "the syncer has rights in the tenant's namespace only"),
    ("sync.fromHost.nodes", "nodes inside show the tenant's budget and nothing else of this cluster"),
    (
        "sync.fromHost.runtimeClasses",
        "RuntimeClasses inside are those of policies.runtimeClassNames, and the platform writes them",
    ),
    ("sync.toHost.namespaces", "a tenant with a virtual cluster has one namespace"),
    ("sync.toHost.persistentVolumes", "volumes of this cluster belong to no tenant"),
    ("sync.toHost.storageClasses", "classes of this cluster belong to no tenant"),
    ("sync.toHost.priorityClasses", "classes of this cluster belong to no tenant; see spec.priorityClasses"),
    ("sync.toHost.networkPolicies", "network policies are additive: one made inside could permit any ingress"),
    ("controlPlane.statefulSet.security", "the platform runs the control plane without root"),
    ("controlPlane.distro.k8s.securityContext", "the platform runs the control plane without root"),
    ("controlPlane.proxy.extraSANs", "set spec.virtualCluster.expose.host"),
    (
        "sync.toHost.pods.useSecretsForSATokens",
        "tokens of ServiceAccounts inside are kept in Secrets, not in annotations of pods",
    ),
    ("controlPlane.advanced.serviceAccount", "the syncer has rights in the tenant's namespace only"),
    ("controlPlane.standalone", "the control plane runs in the tenant's namespace"),
    ("privateNodes", "pods run on the nodes of this cluster, where budgets are enforced"),
    ("experimental", "experimental settings can switch off what isolates tenants"),
];

/// The values for a tenant.
pub fn values(tenant: &GpuTenant, cluster: &VirtualCluster, platform: &Value) -> Result<Value, RenderError> {
    let own = Value::Object(cluster.values.clone().into_iter().collect::<Map<String, Value>>());
    if let Some((key, why)) = OWNED.iter().find(|(key, _)| has(&own, key)) {
        return Err(RenderError::ValueRefused { key: (*key).into(), why });
    }
    let mut values = hardened(tenant.spec.pod_security);
    merge(&mut values, platform);
    merge(&mut values, &own);
    merge(&mut values, &following(tenant, cluster));
    Ok(values)
}

/// Names of the API server in its certificate, in addition to those that vCluster adds itself.
pub fn server_names(tenant: &GpuTenant, cluster: &VirtualCluster) -> Vec<String> {
    let (name, namespace) = (tenant.name_any(), super::objects::namespace_of(tenant));
    let inside = format!("{name}.{namespace}.svc");
    [inside].into_iter().chain(cluster.expose.iter().map(|e| e.host.clone())).collect()
}

fn following(tenant: &GpuTenant, cluster: &VirtualCluster) -> Value {
    let mut workload = Map::new();
    if let Some(resources) = &cluster.resources {
        // maps of texts always serialize
        workload.insert("resources".into(), serde_json::to_value(resources).unwrap_or_default());
    }
    if let Some(storage) = &cluster.storage {
        workload.insert("persistence".into(), persistence(storage));
    }
    json!({"controlPlane": {"proxy": {"extraSANs": server_names(tenant, cluster)}, "statefulSet": workload}})
}

/// Size and class make a volume also where the platform has none; without both it stays as the other values have it.
fn persistence(storage: &Storage) -> Value {
    let Storage { size, class, reclaim } = storage;
    let mut claim = Map::new();
    if size.is_some() || class.is_some() {
        claim.insert("enabled".into(), true.into());
    }
    claim.extend(size.iter().map(|size| ("size".into(), size.to_string().into())));
    claim.extend(class.iter().map(|class| ("storageClass".into(), class.clone().into())));
    if *reclaim == Reclaim::Retain {
        claim.insert("retentionPolicy".into(), "Retain".into());
    }
    if claim.contains_key("enabled") {
        // the chart takes templates in place of the claim
        return json!({"volumeClaim": claim, "volumeClaimTemplates": []});
    }
    json!({"volumeClaim": claim})
}

/// The baseline that vCluster's documentation recommends for shared nodes (security/shared-nodes-hardening), a control plane without root,
/// and nothing for which the syncer needs rights outside of its namespace.
fn hardened(level: PodSecurity) -> Value {
    let standard = match level {
        PodSecurity::Restricted => "restricted",
        PodSecurity::Baseline => "baseline",
    };
    let container = json!({
        "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let pod = json!({"fsGroup": USER, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let off = json!({"enabled": false});
    json!({
        "telemetry": off,
        "policies": {"resourceQuota": off, "limitRange": off, "networkPolicy": off, "podSecurityStandard": standard},
        "rbac": {"clusterRole": off},
        "sync": {
            "toHost": {
                // its init container would pull an image from a public registry
                "pods": {"useSecretsForSATokens": true, "rewriteHosts": off},
                "namespaces": off, "persistentVolumes": off, "priorityClasses": off, "networkPolicies": off, "storageClasses": off,
            },
            "fromHost": {"nodes": {"enabled": false, "clearImageStatus": true}},
        },
        "networking": {"advanced": {"proxyKubelets": {"byHostname": false, "byIP": false}}},
        "controlPlane": {
            "distro": {"k8s": {"securityContext": container}},
            "statefulSet": {
                // the default is the Pro edition
                "image": {"repository": "loft-sh/vcluster-oss"},
                "security": {"podSecurityContext": pod, "containerSecurityContext": container},
            },
            "coredns": {"security": {
                "podSecurityContext": {"runAsNonRoot": true, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
                "containerSecurityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
                    "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                },
            }},
        },
    })
}

/// Merges as helm does: objects by key, all else is replaced; `null` stays, and makes helm drop the chart's default.
pub fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn has(values: &Value, path: &str) -> bool {
    let mut at = values;
    for key in path.split('.') {
        match at {
            Value::Object(map) => match map.get(key) {
                Some(inner) => at = inner,
                None => return false,
            },
            // a parent that is set to null or to a list drops what is below it
            _ => return true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{GpuTenantSpec, Kubeconfig, TenantNamespace, VirtualClusterBackend};

    use super::*;

    fn tenant() -> GpuTenant {
        let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
        GpuTenant::new("team-a", GpuTenantSpec { namespaces, ..GpuTenantSpec::default() })
    }

    fn cluster(values: Value) -> VirtualCluster {
        let Value::Object(map) = values else { panic!("values are an object") };
        VirtualCluster {
            backend: VirtualClusterBackend::Helm,
            version: "0.36.1".into(),
            values: map.into_iter().collect(),
            resources: None,
            storage: None,
            expose: None,
            kubeconfig: Kubeconfig::default(),
            suspend: false,
        }
    }

    #[test]
    fn tenant_values_override_the_platforms_and_neither_the_owned_keys() {
        let platform =
            json!({"controlPlane": {"statefulSet": {"imagePullPolicy": "Never"}}, "logging": {"encoding": "json"}});
        let own = cluster(json!({"logging": {"encoding": "console"}}));
        let values = values(&tenant(), &own, &platform).unwrap();
        assert_eq!(values["logging"]["encoding"], "console");
        assert_eq!(values["controlPlane"]["statefulSet"]["imagePullPolicy"], "Never");
        assert_eq!(values["policies"]["podSecurityStandard"], "restricted");
        assert_eq!(values["controlPlane"]["proxy"]["extraSANs"], json!(["team-a.ns-a.svc"]));
    }

    fn with_fields(values: Value, fields: &Value) -> Value {
        let mut cluster = serde_json::to_value(cluster(values)).unwrap();
        merge(&mut cluster, fields);
        let cluster: VirtualCluster = serde_json::from_value(cluster).unwrap();
        let platform = json!({"controlPlane": {"statefulSet": {"persistence": {"volumeClaim": {"enabled": false}}}}});
        super::values(&tenant(), &cluster, &platform).unwrap()["controlPlane"]["statefulSet"].take()
    }

    #[test]
    fn resources_are_merged_over_the_values() {
        let own = json!({"controlPlane": {"statefulSet": {"resources": {
            "requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "2Gi"},
        }}}});
        let resources = json!({"resources": {"requests": {"cpu": 2}, "limits": {"ephemeral-storage": "20Gi"}}});
        let found = with_fields(own, &resources);
        assert_eq!(
            found["resources"],
            json!({
                "requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "2Gi", "ephemeral-storage": "20Gi"},
            })
        );
    }

    #[test]
    fn storage_replaces_claims_of_the_values_and_reclaim_alone_makes_none() {
        let own = json!({"controlPlane": {"statefulSet": {"persistence": {
            "volumeClaim": {"size": "1Gi", "retentionPolicy": "Delete"}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
        }}}});
        let full = json!({"storage": {"size": "10Gi", "class": "fast", "reclaim": "Retain"}});
        assert_eq!(
            with_fields(own.clone(), &full)["persistence"],
            json!({
                "volumeClaim": {"enabled": true, "size": "10Gi", "storageClass": "fast", "retentionPolicy": "Retain"},
                "volumeClaimTemplates": [],
            })
        );
        let alone = with_fields(json!({}), &json!({"storage": {"reclaim": "Retain"}}));
        assert_eq!(alone["persistence"], json!({"volumeClaim": {"enabled": false, "retentionPolicy": "Retain"}}));
        let default = with_fields(own, &json!({"storage": {"class": "fast"}}));
        let claim = json!({"enabled": true, "size": "1Gi", "storageClass": "fast", "retentionPolicy": "Delete"});
        assert_eq!(default["persistence"]["volumeClaim"], claim);
    }

    #[test]
    fn every_owned_key_is_refused_by_its_path() {
        for (key, why) in OWNED {
            let mut value = json!({"enabled": true});
            for part in key.rsplit('.') {
                value = json!({part: value});
            }
            let refusal = values(&tenant(), &cluster(value), &json!({})).unwrap_err();
            assert_eq!(refusal, RenderError::ValueRefused { key: (*key).into(), why });
        }
        let parent = values(&tenant(), &cluster(json!({"sync": null})), &json!({})).unwrap_err();
        assert!(parent.to_string().contains("sync.fromHost.nodes"), "{parent}");
    }

    #[test]
    fn merge_is_helms() {
        let mut value = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
        merge(&mut value, &json!({"a": {"c": [3], "e": {"f": null}}, "d": {"g": 1}}));
        assert_eq!(value, json!({"a": {"b": 1, "c": [3], "e": {"f": null}}, "d": {"g": 1}}));
    }
}
