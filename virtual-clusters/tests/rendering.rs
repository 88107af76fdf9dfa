//! The objects that the controller applies against those of a plain `helm template` of the same chart and values: for each version of vCluster,
//! and for each minor version of this cluster's Kubernetes. Without a cluster; with helm, kubectl and the packed charts of the lab's tools.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic as tests do"
)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use gputenancy_crds::GpuTenant;
use gputenancy_virtual_clusters::{
    args::{Chart, Charts},
    hex::hex,
    render::{helm, objects, values},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The version before that of the product's default values, from which the end-to-end tests upgrade.
const OLDER: &str = "0.36.0";
/// Versions as API servers of different distributions report them, and the versions that helm's users write.
const HOSTS: [(&str, &str); 4] =
    [("v1.33.5-gke.1080000", "1.33"), ("v1.34.1+k3s1", "1.34"), ("v1.35.0-eks-3cfe0ce", "1.35"), ("v1.36.3", "1.36")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A file of the lab's tools.
fn tool(file: &str) -> PathBuf {
    let path = root().join("target/toolset").join(file);
    assert!(path.exists(), "{} is missing: run `make tools`", path.display());
    path
}

/// The charts of the product's default values with the digests that are written there, and the older one.
fn charts() -> Vec<Chart> {
    let text = fs::read_to_string(root().join("helm/gputenancy/values.yaml")).unwrap();
    let product: Value = serde_saphyr::from_str(&text).unwrap();
    let Charts(charts) = product["virtualClusters"]["charts"].to_string().parse().unwrap();
    let packed = |version: &str| tool(&format!("charts/vcluster-{version}.tgz"));
    let mut all: Vec<_> = charts.into_values().map(|c| Chart { file: packed(&c.version), ..c }).collect();
    if !all.iter().any(|chart| chart.version == OLDER) {
        let file = packed(OLDER);
        let sha256 = hex(&Sha256::digest(fs::read(&file).unwrap()));
        all.push(Chart { version: OLDER.into(), file, sha256 });
    }
    assert!(all.len() >= 2);
    all
}

/// A tenant with the defaults, and one that sets every field that changes objects; each with values of the platform.
fn tenants(version: &str) -> [(GpuTenant, Value); 2] {
    let tenant = |name: &str, spec: Value| {
        let api_version = "gputenancy.io/v1alpha1";
        let object = json!({"apiVersion": api_version, "kind": "GpuTenant", "metadata": {"name": name}, "spec": spec});
        serde_json::from_value(object).unwrap()
    };
    let namespaces = json!([{"name": "ns-a"}]);
    let least = json!({"namespaces": namespaces, "virtualCluster": {"version": version}});
    let most = json!({"namespaces": namespaces, "podSecurity": "Baseline", "virtualCluster": {
        "version": version,
        "values": {
            "controlPlane": {
                "ingress": {"enabled": true, "host": "inside.example.com"},
                "statefulSet": {"annotations": {"team.example/switch": "on", "team.example/mode": "0644"}},
                "coredns": {"priorityClassName": null},
            },
            "sync": {"toHost": {"ingresses": {"enabled": true}}},
        },
        "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "3Gi"}},
        "storage": {"size": "10Gi", "class": "fast", "reclaim": "Retain"},
        "expose": {"host": "team-b.vc.example.com"},
    }});
    let platform = json!({"controlPlane": {
        "advanced": {"defaultImageRegistry": "registry.example"},
        "statefulSet": {"highAvailability": {"replicas": 2}},
    }});
    [(tenant("team-a", least), json!({})), (tenant("team-b", most), platform)]
}

/// Kind and name of an object, and the object.
type Objects = BTreeMap<(String, String), Value>;

fn by_name(all: Vec<Value>) -> Objects {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let count = all.len();
    let map: Objects = all.into_iter().map(|o| ((text(&o["kind"]), text(&o["metadata"]["name"])), o)).collect();
    assert_eq!(map.len(), count, "two objects of one name");
    map
}

/// As the controller renders them.
async fn controllers(chart: &Chart, tenant: &GpuTenant, values: &Value, host: &str) -> Objects {
    let (name, namespace) = (tenant.metadata.name.as_deref().unwrap(), objects::namespace_of(tenant));
    let release = helm::Release { name, namespace: &namespace, kube_version: host };
    let manifests = helm::template(&tool("bin/helm"), chart, release, values).await.unwrap();
    by_name(objects::parse(tenant, &manifests).unwrap().into_iter().map(|object| object.content).collect())
}

/// As helm renders them, read by kubectl, which also sets the controller's two labels.
fn helms(chart: &Chart, tenant: &GpuTenant, values: &Value, host: &str) -> Objects {
    let name = tenant.metadata.name.as_deref().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (overlay, manifests) = (folder.join("rendering-values.yaml"), folder.join("rendering-manifests.yaml"));
    fs::write(&overlay, values.to_string()).unwrap();
    let mut command = Command::new(tool("bin/helm"));
    command.args(["template", name]).arg(&chart.file).args(["--namespace", "ns-a", "--kube-version", host]);
    fs::write(&manifests, output(command.arg("--values").arg(overlay))).unwrap();
    let labels = ["app.kubernetes.io/managed-by=gputenancy-virtual-clusters", &format!("gputenancy.io/tenant={name}")];
    let mut command = Command::new(tool("bin/kubectl"));
    command.args(["label", "--local", "--overwrite", "-o", "json", "-f"]).arg(&manifests).args(labels);
    let stream = output(&mut command);
    by_name(serde_json::Deserializer::from_slice(&stream).into_iter().map(Result::unwrap).collect())
}

fn output(command: &mut Command) -> Vec<u8> {
    let output = command.env_remove("KUBECONFIG").stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[tokio::test]
async fn objects_equal_helm_template_for_each_version_and_host() {
    for chart in charts() {
        for (tenant, platform) in tenants(&chart.version) {
            let cluster = tenant.spec.virtual_cluster.as_ref().unwrap();
            let values = values::values(&tenant, cluster, &platform).unwrap();
            let mut roles = Vec::new();
            for (host, minor) in HOSTS {
                let ours = controllers(&chart, &tenant, &values, host).await;
                let theirs = helms(&chart, &tenant, &values, minor);
                let place = format!("{:?}, vCluster {}, Kubernetes {host}", tenant.metadata.name, chart.version);
                assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{place}");
                for (key, object) in &ours {
                    assert_eq!(object, &theirs[key], "{place}: {key:?}");
                }
                let workload = &ours[&("StatefulSet".to_owned(), tenant.metadata.name.clone().unwrap())];
                assert_eq!(workload["metadata"]["labels"]["chart"], format!("vcluster-{}", chart.version), "{place}");
                roles.push(ours.into_iter().find(|((kind, _), _)| kind == "Role").unwrap().1);
            }
            // the chart gives the syncer other rights from 1.35 on: the version of the host has arrived
            assert!(roles[0] == roles[1] && roles[1] != roles[2] && roles[2] == roles[3], "{roles:?}");
        }
    }
}
