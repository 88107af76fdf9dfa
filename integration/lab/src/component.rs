//! The programs of the lab and their command lines: pure.

use crate::address::{API, API_PORT, SERVICE_NETWORK};
use crate::place::{LAB, SHARE};
use crate::spec::{GPU_LABEL, NodePlan, Plan};
use std::path::Path;

/// A supervised program.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Component {
    /// Its name in commands and logs.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
}

/// `GOGC` of Kubernetes' programs: with the default of 100, garbage collection is a sixth of their work in a lab, which has more
/// memory than processor time.
const GARBAGE: (&str, &str) = ("GOGC", "300");

impl Component {
    /// Its environment. kubelet has none, because the agent's memory and processor time are compared with its.
    pub fn environment(&self) -> Option<(&'static str, &'static str)> {
        (self.name != "kubelet").then_some(GARBAGE)
    }

    fn new(plan: &Plan, name: &str, flags: &[String]) -> Self {
        let argv = std::iter::once(plan.tool(name).display().to_string()).chain(flags.iter().cloned()).collect();
        Self { name: name.to_owned(), argv }
    }
}

fn flags(list: &[(&str, &str)]) -> Vec<String> {
    list.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

fn key(name: &str) -> String {
    format!("{LAB}/pki/{name}")
}

/// The store.
pub fn etcd(plan: &Plan) -> Component {
    let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    let list = [
        ("name", "default"),
        ("data-dir", &format!("{LAB}/etcd")),
        ("listen-client-urls", client),
        ("advertise-client-urls", client),
        ("listen-peer-urls", peer),
        ("initial-advertise-peer-urls", peer),
        ("initial-cluster", &format!("default={peer}")),
        ("log-level", "warn"),
    ];
    let mut flags = flags(&list);
    // the data is on a tmpfs: there is nothing to sync to
    flags.push("--unsafe-no-fsync".to_owned());
    Component::new(plan, "etcd", &flags)
}

/// The API server, with the admission plugins that are on by default and `NodeRestriction`, as clusters in production have.
pub fn apiserver(plan: &Plan) -> Component {
    let mut list = flags(&[
        ("bind-address", "0.0.0.0"),
        ("advertise-address", &API.to_string()),
        ("secure-port", &API_PORT.to_string()),
        ("etcd-servers", "http://127.0.0.1:2379"),
        ("client-ca-file", &key("ca.crt")),
        ("tls-cert-file", &key("apiserver.crt")),
        ("tls-private-key-file", &key("apiserver.key")),
        ("authorization-mode", "Node,RBAC"),
        ("enable-admission-plugins", "NodeRestriction"),
        ("anonymous-auth", "false"),
        ("allow-privileged", "true"),
        ("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
        ("service-account-key-file", &key("sa.pub")),
        ("service-account-signing-key-file", &key("sa.key")),
        ("service-cluster-ip-range", SERVICE_NETWORK),
        ("requestheader-client-ca-file", &key("front-ca.crt")),
        ("requestheader-allowed-names", "front-proxy-client"),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        ("requestheader-group-headers", "X-Remote-Group"),
        ("requestheader-username-headers", "X-Remote-User"),
        ("proxy-client-cert-file", &key("front.crt")),
        ("proxy-client-key-file", &key("front.key")),
        // names would need a DNS with the nodes, for exec and logs
        ("kubelet-preferred-address-types", "InternalIP"),
        ("kubelet-certificate-authority", &key("ca.crt")),
        ("kubelet-client-certificate", &key("kubelet-client.crt")),
        ("kubelet-client-key", &key("kubelet-client.key")),
        ("profiling", "false"),
        // tests send claims in an older version too: policies judge what the API server converts
        ("runtime-config", "resource.k8s.io/v1beta1=true"),
    ]);
    list.extend(plan.apiserver_flags.iter().cloned());
    Component::new(plan, "kube-apiserver", &list)
}

/// The controllers.
pub fn controller_manager(plan: &Plan) -> Component {
    let kubeconfig = key("controller-manager.kubeconfig");
    let list = [
        ("bind-address", "127.0.0.1"),
        ("kubeconfig", kubeconfig.as_str()),
        ("authentication-kubeconfig", &kubeconfig),
        ("authorization-kubeconfig", &kubeconfig),
        ("client-ca-file", &key("ca.crt")),
        ("tls-cert-file", &key("controller-manager.crt")),
        ("tls-private-key-file", &key("controller-manager.key")),
        ("root-ca-file", &key("ca.crt")),
        ("service-account-private-key-file", &key("sa.key")),
        ("use-service-account-credentials", "true"),
        ("cluster-signing-cert-file", &key("ca.crt")),
        ("cluster-signing-key-file", &key("ca.key")),
        // pods have fixed networks and static routes
        ("allocate-node-cidrs", "false"),
        // the default of 20 writes a second limits the quota controller; bulk imports of tenants and benchmarks need more
        ("kube-api-qps", "200"),
        ("kube-api-burst", "400"),
        ("leader-elect", "false"),
        ("profiling", "false"),
    ];
    Component::new(plan, "kube-controller-manager", &flags(&list))
}

/// The scheduler.
pub fn scheduler(plan: &Plan) -> Component {
    let kubeconfig = key("scheduler.kubeconfig");
    let list = [
        ("bind-address", "127.0.0.1"),
        ("kubeconfig", kubeconfig.as_str()),
        ("authentication-kubeconfig", &kubeconfig),
        ("authorization-kubeconfig", &kubeconfig),
        ("tls-cert-file", &key("scheduler.crt")),
        ("tls-private-key-file", &key("scheduler.key")),
        ("leader-elect", "false"),
        ("profiling", "false"),
    ];
    Component::new(plan, "kube-scheduler", &flags(&list))
}

/// The service proxy, on a node or (with the name of any node) next to the API server, which calls webhooks by `ClusterIP`.
pub fn kube_proxy(plan: &Plan, node: &str, config: &Path) -> Component {
    let config = config.display().to_string();
    Component::new(plan, "kube-proxy", &flags(&[("config", &config), ("hostname-override", node)]))
}

/// The container runtime of a node.
pub fn containerd(plan: &Plan) -> Component {
    Component::new(plan, "containerd", &flags(&[("config", "/etc/containerd/config.toml")]))
}

/// The node agent of Kubernetes.
pub fn kubelet(plan: &Plan, node: &NodePlan) -> Component {
    let mut list = flags(&[
        ("config", "/etc/kubelet.yaml"),
        ("kubeconfig", &format!("{SHARE}/pki/kubelet.kubeconfig")),
        ("hostname-override", &node.name),
        ("node-ip", &node.place.node().to_string()),
        ("v", "2"),
    ]);
    if node.gpu {
        list.push(format!("--node-labels={GPU_LABEL}=true"));
    }
    list.extend(plan.kubelet_flags.iter().cloned());
    Component::new(plan, "kubelet", &list)
}

/// Acts as kubelet for annotated nodes.
pub fn kwok(plan: &Plan) -> Component {
    let list = [
        ("kubeconfig", key("admin.kubeconfig")),
        ("config", format!("{LAB}/kwok.yaml")),
        ("node-lease-duration-seconds", "40".to_owned()),
        ("manage-all-nodes", "false".to_owned()),
        ("manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake".to_owned()),
        ("node-ip", API.to_string()),
        ("cidr", "10.245.0.1/16".to_owned()),
    ];
    let list: Vec<_> = list.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Component::new(plan, "kwok", &flags(&list))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::LabSpec;

    fn plan() -> Plan {
        Plan {
            name: "lab".to_owned(),
            nodes: LabSpec::default().nodes().unwrap(),
            port: 6443,
            toolset: "/toolset".into(),
            shown: Vec::new(),
            images: Vec::new(),
            node_memory_mib: 1024,
            apiserver_flags: vec!["--v=3".to_owned()],
            kubelet_flags: Vec::new(),
        }
    }

    #[test]
    fn command_lines_match_snapshot() {
        let plan = plan();
        let node = plan.node("gpu-1").unwrap();
        let all = [
            etcd(&plan),
            apiserver(&plan),
            controller_manager(&plan),
            scheduler(&plan),
            kube_proxy(&plan, "gpu-1", Path::new("/etc/kube-proxy.yaml")),
            containerd(&plan),
            kubelet(&plan, node),
            kwok(&plan),
        ];
        insta::assert_yaml_snapshot!(all);
    }

    #[test]
    fn kubelet_has_no_memory_variables() {
        let plan = plan();
        assert_eq!(kubelet(&plan, plan.node("gpu-1").unwrap()).environment(), None);
        assert_eq!(apiserver(&plan).environment(), Some(GARBAGE));
    }

    #[test]
    fn gpu_label_is_on_gpu_nodes_only() {
        let plan = plan();
        let labelled = |name| kubelet(&plan, plan.node(name).unwrap()).argv.iter().any(|flag| flag.contains(GPU_LABEL));
        assert!(labelled("gpu-2"));
        assert!(!labelled("cpu-1"));
    }
}
