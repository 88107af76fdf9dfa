//! The rights that the operator needs: its roles in the chart grant exactly these, and a test holds both to each other.

use gputenancy_crds::{GROUP, names};

pub use super::locations::{LEASE, Locations};
use super::table::{self, Line, Place, Right, Setting};

/// Group of our kinds.
const OURS: &str = GROUP;
/// The namespace of the API server's own service.
const API_SERVER: Place =
    Place::There { namespace: names::API_SERVER_NAMESPACE, role: "gputenancy-operator-apiserver" };
const KEPT: &[&str] = &["watch", "create", "patch", "delete"];

/// One line for each rule. Watches stream their first list, so `list` and `get` are needed only where something is read besides.
pub const TABLE: &[Line] = &[
    Line::new(&["watch"], OURS, "gpuprofiles", "the catalog"),
    Line::new(&["watch", "patch"], OURS, "gpupools", "the supply; the finalizer of a pool"),
    Line::new(&["watch", "patch"], OURS, "gputenants", "the demand; the finalizer of a tenant"),
    Line::new(&["watch", "patch"], OURS, "gpunodes", "what agents report; the layout of every GPU"),
    Line::new(&["patch"], OURS, "gpuprofiles/status", "telling people about a profile"),
    Line::new(&["patch"], OURS, "gpupools/status", "telling people about a pool"),
    Line::new(&["patch"], OURS, "gputenants/status", "telling people about a tenant"),
    Line::new(KEPT, "", "namespaces", "the namespaces of tenants"),
    Line::new(KEPT, "", "resourcequotas", "the budgets of tenants"),
    Line::new(KEPT, "", "limitranges", "what containers request that say nothing"),
    Line::new(KEPT, "networking.k8s.io", "networkpolicies", "keeping tenants apart"),
    Line::new(&["list"], "networking.k8s.io", "networkpolicies", "policies that an adopted namespace had before")
        .only_for("the condition EarlierAccess"),
    Line::new(
        &["list"],
        "rbac.authorization.k8s.io",
        "rolebindings",
        "role bindings that an adopted namespace had before",
    )
    .only_for("the condition EarlierAccess"),
    Line::new(KEPT, OURS, "gpugrants", "what may be used in a namespace"),
    Line::new(KEPT, "rbac.authorization.k8s.io", "rolebindings", "the rights of tenants' owners and viewers"),
    Line::new(&["bind"], "rbac.authorization.k8s.io", "clusterroles", "the rights of tenants' owners")
        .named("gputenancy:tenant-owner"),
    Line::new(&["bind"], "rbac.authorization.k8s.io", "clusterroles", "the rights of tenants' viewers")
        .named("gputenancy:tenant-viewer"),
    Line::new(&["watch"], "", "services", "where the API server answers isolated tenants")
        .at(API_SERVER)
        .named(names::API_SERVER),
    Line::new(&["watch"], "discovery.k8s.io", "endpointslices", "where the API server answers isolated tenants")
        .at(API_SERVER),
    Line::new(&["watch", "patch"], "", "nodes", "which nodes are in a pool, our labels and taints on them"),
    Line::new(&["watch"], "resource.k8s.io", "resourceslices", "seeing NVIDIA's DRA driver own a node's GPUs"),
    Line::new(
        &["watch"],
        "nvsentinel.dgxc.nvidia.com",
        "maintenancerequests",
        "maintenance of nodes that is announced to NVSentinel",
    ),
    Line::new(&["watch", "patch"], "", "pods", "who uses what; notices of evictions"),
    Line::new(&["list"], "", "pods", "the pods behind a refused eviction; NVIDIA's device plugin")
        .only_for("refused evictions and pools with NVIDIA's device plugin"),
    Line::new(&["create"], "", "pods/eviction", "evicting owners of devices that must go"),
    Line::new(&["list"], "policy", "poddisruptionbudgets", "the budget behind a refused eviction")
        .only_for("refused evictions"),
    Line::new(&["watch"], "events.k8s.io", "events", "pods that a quota refused to their controller"),
    Line::new(&["create"], "events.k8s.io", "events", "telling people what happens").only_for("events"),
    Line::new(&["get", "update"], "coordination.k8s.io", "leases", "the election of one replica")
        .at(Place::Home)
        .named(LEASE),
    Line::new(&["create", "delete"], "", "pods", "canary pods").at(Place::Home).only_for("pools with verify.canary"),
    Line::new(&["watch"], "", "configmaps", "layouts for NVIDIA's MIG manager")
        .at(Place::Layouts)
        .named(names::MIG_CONFIG_MAP),
    Line::new(&["patch"], "", "configmaps", "layouts for NVIDIA's MIG manager")
        .at(Place::Layouts)
        .named(names::MIG_CONFIG_MAP)
        .only_for("pools of NVIDIA's MIG manager"),
    Line::new(&["watch"], "", "configmaps", "configs for NVIDIA's device plugin")
        .at(Place::PluginConfigs)
        .named(names::DEVICE_PLUGIN_CONFIG_MAP),
    Line::new(&["patch"], "", "configmaps", "configs for NVIDIA's device plugin")
        .at(Place::PluginConfigs)
        .named(names::DEVICE_PLUGIN_CONFIG_MAP)
        .only_for("time-slices by NVIDIA's device plugin"),
];

/// What is needed with `--wake-controllers`.
const WAKE_CONTROLLERS: &[Line] = &[
    Line::new(&["patch"], "apps", "replicasets/status", WAKING).only_for(REFUSED),
    Line::new(&["patch"], "apps", "statefulsets/status", WAKING).only_for(REFUSED),
    Line::new(&["patch"], "batch", "jobs/status", WAKING).only_for(REFUSED),
];
/// What is needed with `--owners-read-tenant`. A right that the operator lacks it cannot grant.
const OWNERS_READ_TENANT: &[Line] = &[
    Line::new(&["get", "list"], OURS, "gputenants", READING),
    Line::new(KEPT, "rbac.authorization.k8s.io", "clusterroles", READING),
    Line::new(KEPT, "rbac.authorization.k8s.io", "clusterrolebindings", READING),
];
/// What is needed with `--usage-endpoint`: the user of a token, and this user's right to read the `GpuTenant`.
const USAGE_ENDPOINT: &[Line] = &[
    Line::new(&["create"], "authentication.k8s.io", "tokenreviews", READING_USAGE).only_for("the usage endpoint"),
    Line::new(&["create"], "authorization.k8s.io", "subjectaccessreviews", READING_USAGE)
        .only_for("the usage endpoint"),
];
/// What is needed with `--kueue`.
const KUEUE: &[Line] = &[
    Line::new(KEPT, KUEUE_GROUP, "topologies", QUEUEING).only_for(QUEUED_POOLS),
    Line::new(KEPT, KUEUE_GROUP, "resourceflavors", QUEUEING).only_for(QUEUED_POOLS),
    Line::new(KEPT, KUEUE_GROUP, "admissionchecks", CHECKING).only_for(QUEUED_POOLS),
    Line::new(&["patch"], KUEUE_GROUP, "admissionchecks/status", CHECKING).only_for(QUEUED_POOLS),
    Line::new(KEPT, KUEUE_GROUP, "cohorts", QUEUEING).only_for(QUEUED_POOLS),
    Line::new(KEPT, KUEUE_GROUP, "clusterqueues", QUEUEING).only_for(QUEUED_POOLS),
    Line::new(KEPT, KUEUE_GROUP, "localqueues", QUEUEING).only_for(QUEUED_POOLS),
    Line::new(&["watch"], KUEUE_GROUP, "workloads", "which jobs Kueue has admitted").only_for(QUEUED_POOLS),
    Line::new(&["patch"], KUEUE_GROUP, "workloads/status", CHECKING).only_for(QUEUED_POOLS),
];
const KUEUE_GROUP: &str = "kueue.x-k8s.io";
const QUEUEING: &str = "the queues of tenants";
const CHECKING: &str = "the check of each job, by which jobs leave devices that are removed";
const QUEUED_POOLS: &str = "pools with spec.queueing.system: Kueue";
/// What is needed with `--virtual-clusters`: the rights of their controller are in the namespaces of tenants that have one, and nowhere else.
const VIRTUAL_CLUSTERS: &[Line] = &[Line::new(
    &["bind"],
    "rbac.authorization.k8s.io",
    "clusterroles",
    "the rights of the controller of virtual clusters, in their namespaces",
)
.named(names::VIRTUAL_CLUSTER_ROLE)];
const READING: &str = "owners and viewers who read their GpuTenant";
const READING_USAGE: &str = "teams that read their own usage";
const WAKING: &str = "waking a controller when there is headroom for its pods";
const REFUSED: &str = "controllers that a quota has refused";

/// What is needed besides for each Secret that the chart names for tenants.
const PULL_SECRET: &[Line] = &[
    Line::new(&["watch"], "", "secrets", "image pull secrets of tenants"),
    Line::new(&["create", "patch", "delete"], "", "secrets", "image pull secrets of tenants").only_for(PULLING),
];
/// What is needed besides where it names any.
const PULLING_ACCOUNT: &[Line] = &[
    Line::new(&["watch"], "", "serviceaccounts", "pods of tenants that pull images").named(names::DEFAULT_ACCOUNT),
    Line::new(&["patch"], "", "serviceaccounts", "pods of tenants that pull images")
        .named(names::DEFAULT_ACCOUNT)
        .only_for(PULLING),
];
const PULLING: &str = "GpuTenants with spec.imagePullSecrets";

/// All rights of an operator that runs there.
pub fn rights(locations: &Locations) -> Vec<Right> {
    let setting = Setting {
        role: "gputenancy-operator",
        home: locations.namespace.clone(),
        layouts_role: "gputenancy-mig-config",
        layouts: locations.layouts().to_owned(),
        plugin_configs_role: "gputenancy-device-plugin",
        plugin_configs: locations.plugin_configs().to_owned(),
    };
    let mut rights = table::rights(TABLE, &setting);
    for right in rights.iter_mut().filter(|r| r.name.as_deref() == Some(LEASE)) {
        right.name = Some(locations.lease_name.clone());
    }
    if locations.wake_controllers {
        rights.extend(table::rights(WAKE_CONTROLLERS, &setting));
    }
    if locations.owners_read_tenant {
        rights.extend(table::rights(OWNERS_READ_TENANT, &setting));
    }
    if locations.usage_endpoint {
        rights.extend(table::rights(USAGE_ENDPOINT, &setting));
    }
    if locations.virtual_clusters {
        rights.extend(table::rights(VIRTUAL_CLUSTERS, &setting));
    }
    if locations.kueue {
        rights.extend(table::rights(KUEUE, &setting));
    }
    if !locations.pull_secrets.is_empty() {
        rights.extend(table::rights(PULLING_ACCOUNT, &setting));
    }
    for name in &locations.pull_secrets {
        let named = |right| Right { name: Some(name.clone()), ..right };
        rights.extend(table::rights(PULL_SECRET, &setting).into_iter().map(named));
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locations() -> Locations {
        Locations {
            namespace: "home".into(),
            mig_config_namespace: None,
            device_plugin_config_namespace: None,
            lease_name: LEASE.into(),
            pull_secrets: Vec::new(),
            wake_controllers: true,
            owners_read_tenant: true,
            usage_endpoint: false,
            virtual_clusters: false,
            kueue: false,
            agent_selector: String::new(),
        }
    }

    #[test]
    fn the_lease_and_the_namespaces_are_those_of_the_flags() {
        let locations =
            Locations { mig_config_namespace: Some("nvidia".into()), lease_name: "mine".into(), ..locations() };
        let all = rights(&locations);
        let said: Vec<String> = all.iter().filter(|r| r.namespace.is_some()).map(ToString::to_string).collect();
        assert!(said.contains(&"update leases.coordination.k8s.io \"mine\" in namespace home".to_owned()), "{said:?}");
        assert!(
            said.contains(&"patch configmaps \"gputenancy-mig-config\" in namespace nvidia".to_owned()),
            "{said:?}"
        );
    }

    #[test]
    fn no_right_is_named_twice_and_none_is_a_wildcard() {
        let pull_secrets = vec!["registry".into(), "mirror".into()];
        let all = rights(&Locations {
            pull_secrets,
            usage_endpoint: true,
            virtual_clusters: true,
            kueue: true,
            ..locations()
        });
        let mut said: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert!(said.iter().all(|right| !right.contains('*')), "{said:?}");
        said.sort();
        let before = said.len();
        said.dedup();
        assert_eq!(said.len(), before);
    }

    #[test]
    fn status_of_controllers_is_written_only_with_wake_controllers() {
        for wake_controllers in [true, false] {
            let all = rights(&Locations { wake_controllers, ..locations() });
            let on_controllers = all.iter().filter(|r| ["apps", "batch"].contains(&r.group)).count();
            assert_eq!(on_controllers, if wake_controllers { 3 } else { 0 });
        }
    }

    #[test]
    fn cluster_roles_are_written_only_with_owners_read_tenant() {
        for owners_read_tenant in [true, false] {
            let all = rights(&Locations { owners_read_tenant, ..locations() });
            let on_roles = all.iter().filter(|r| r.resource.starts_with("clusterrole") && r.verb != "bind").count();
            assert_eq!(on_roles, if owners_read_tenant { 8 } else { 0 });
        }
    }

    #[test]
    fn queues_are_written_only_with_kueue() {
        for kueue in [true, false] {
            let all = rights(&Locations { kueue, ..locations() });
            let of_kueue = all.iter().filter(|right| right.group == "kueue.x-k8s.io").count();
            assert_eq!(of_kueue, if kueue { 27 } else { 0 });
        }
    }

    #[test]
    fn tokens_and_access_are_reviewed_only_with_usage_endpoint() {
        for usage_endpoint in [true, false] {
            let all = rights(&Locations { usage_endpoint, ..locations() });
            let reviews = all.iter().filter(|r| r.resource.ends_with("reviews"));
            let shown: Vec<String> = reviews.map(ToString::to_string).collect();
            let expected =
                ["create tokenreviews.authentication.k8s.io", "create subjectaccessreviews.authorization.k8s.io"];
            assert_eq!(shown, if usage_endpoint { &expected[..] } else { &[] });
        }
    }

    #[test]
    fn secrets_are_asked_for_by_name_and_only_where_the_chart_names_any() {
        let on_secrets = |names: &[&str]| -> Vec<String> {
            let pull_secrets = names.iter().map(|n| (*n).to_owned()).collect();
            let all = rights(&Locations { pull_secrets, ..locations() });
            let of = all.iter().filter(|r| ["secrets", "serviceaccounts"].contains(&r.resource));
            of.map(ToString::to_string).collect()
        };
        assert!(on_secrets(&[]).is_empty());
        assert_eq!(
            on_secrets(&["registry"]),
            [
                "watch serviceaccounts \"default\"",
                "patch serviceaccounts \"default\"",
                "watch secrets \"registry\"",
                "create secrets \"registry\"",
                "patch secrets \"registry\"",
                "delete secrets \"registry\"",
            ]
        );
    }
}
