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
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use gputenancy_crds::GpuTenant;
use gputenancy_virtual_clusters::{
    args::{Chart, Charts},
    hex::hex,
    host_api::Served,
    render::{helm, objects, pull, values},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The version before that of the product's default values, from which the end-to-end tests upgrade.
const OLDER: &str = "0.36.0";
/// Versions as API servers of different distributions report them, and the versions that helm's users write.
const HOSTS: [(&str, &str); 4] =
    [("v1.33.5-gke.1080000", "1.33"), ("v1.34.1+k3s1", "1.34"), ("v1.35.0-eks-3cfe0ce", "1.35"), ("v1.36.3", "1.36")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
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
        all.push(Chart { version: OLDER.into(), file, sha256, url: None });
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
    let served = Served { version: host.into(), ..Served::default() };
    let release = helm::Release { name, namespace: &namespace, served: &served };
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

/// A packed chart of this test with this manifest, in a folder of its own.
fn packed(name: &str, manifest: &str) -> Chart {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(folder.join(name).join("templates")).unwrap();
    fs::write(folder.join(name).join("Chart.yaml"), format!("{{apiVersion: v2, name: {name}, version: 1.0.0}}"))
        .unwrap();
    fs::write(folder.join(name).join("templates/all.yaml"), manifest).unwrap();
    let mut command = Command::new(tool("bin/helm"));
    output(command.arg("package").arg(folder.join(name)).arg("--destination").arg(&folder).env("HOME", &folder));
    let file = folder.join(format!("{name}-1.0.0.tgz"));
    let sha256 = hex(&Sha256::digest(fs::read(&file).unwrap()));
    Chart { version: "1.0.0".into(), file, sha256, url: None }
}

#[tokio::test]
async fn charts_see_the_apis_of_the_host_and_no_others() {
    let monitor = "monitoring.coreos.com/v1/ServiceMonitor";
    let asked = |api: &str| format!("{{{{ .Capabilities.APIVersions.Has {api:?} }}}}");
    let chart = packed("capabilities", &format!("data: [{}, {}]", asked(monitor), asked("policy.example/v1")));
    let rendered = async |api_versions: &[&str]| {
        let served =
            Served { version: "v1.36.3".into(), api_versions: api_versions.iter().map(|&v| v.into()).collect() };
        let release = helm::Release { name: "a", namespace: "b", served: &served };
        helm::template(&tool("bin/helm"), &chart, release, &json!({})).await.unwrap()
    };
    assert!(rendered(&["apps/v1", monitor]).await.contains("data: [true, false]"));
    assert!(rendered(&["apps/v1"]).await.contains("data: [false, false]"));
}

/// Serves this file to any request, at a port of this machine.
fn serve(file: &Path) -> (u16, Arc<AtomicUsize>) {
    let (bytes, requests) = (fs::read(file).unwrap(), Arc::<AtomicUsize>::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, counted) = (listener.local_addr().unwrap().port(), requests.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            counted.fetch_add(1, Ordering::Relaxed);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
            stream.write_all(&[head.as_bytes(), &bytes].concat()).unwrap();
        }
    });
    (port, requests)
}

#[tokio::test]
async fn chart_of_a_url_is_pulled_by_helm_once_and_rendered() {
    let source = packed("pulled", "kind: Pulled");
    let (port, requests) = serve(&source.file);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pulled-charts");
    let _ = fs::remove_dir_all(&folder);
    // the chart's values admit https and oci only
    let url = Some(format!("http://127.0.0.1:{port}/pulled-1.0.0.tgz"));
    let chart = Chart { file: folder.join("chart.tgz"), url, ..source };
    let served = Served { version: "v1.36.3".into(), ..Served::default() };
    let release = helm::Release { name: "a", namespace: "b", served: &served };
    for _ in 0..2 {
        pull::pull(&tool("bin/helm"), &chart).await.unwrap();
        let rendered = helm::template(&tool("bin/helm"), &chart, release, &json!({})).await.unwrap();
        assert!(rendered.contains("kind: Pulled"), "{rendered}");
    }
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    let wrong = Chart { sha256: "0".repeat(64), file: folder.join("wrong.tgz"), ..chart };
    let error = pull::pull(&tool("bin/helm"), &wrong).await.unwrap_err().to_string();
    assert!(error.contains("names 0000") && !wrong.file.exists(), "{error}");
}

/// Groups, resources and verbs of rules.
type Rights = BTreeSet<(String, String, String)>;

/// What the table of SECURITY.md says that the syncer's Role permits.
fn listed_rights() -> Rights {
    let page = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let (_, section) = page.split_once("## A stolen token of a syncer").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let words = |cell: &str| cell.split(',').map(|word| word.trim().trim_matches('`').to_owned()).collect::<Vec<_>>();
    let mut rights = Rights::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(words).collect();
        for resource in &cells[0] {
            let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
            rights.extend(cells[1].iter().map(|verb| (group.to_owned(), resource.to_owned(), verb.clone())));
        }
    }
    rights
}

#[tokio::test]
async fn security_page_lists_exactly_the_rights_of_the_syncer() {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let texts = |value: &Value| value.as_array().unwrap().iter().map(text).collect::<Vec<_>>();
    let newest = charts().into_iter().find(|chart| chart.version != OLDER).unwrap();
    let [(tenant, platform), _] = tenants(&newest.version);
    let values = values::values(&tenant, tenant.spec.virtual_cluster.as_ref().unwrap(), &platform).unwrap();
    let objects = controllers(&newest, &tenant, &values, "v1.36.3").await;
    assert!(objects.keys().all(|(kind, _)| !kind.starts_with("ClusterRole")), "{:?}", objects.keys());
    let roles: Vec<_> = objects.iter().filter(|((kind, _), _)| kind == "Role").map(|(_, role)| role).collect();
    let mut granted = Rights::new();
    for rule in roles.iter().flat_map(|role| role["rules"].as_array().unwrap()) {
        assert!(rule.get("resourceNames").is_none(), "{rule}");
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                granted.extend(texts(&rule["verbs"]).into_iter().map(|verb| (group.clone(), resource.clone(), verb)));
            }
        }
    }
    let listed = listed_rights();
    let (missing, wrong) =
        (granted.difference(&listed).collect::<Vec<_>>(), listed.difference(&granted).collect::<Vec<_>>());
    assert!(missing.is_empty() && wrong.is_empty(), "missing in SECURITY.md: {missing:?}; not granted: {wrong:?}");
    let accounts =
        objects.iter().filter(|((kind, _), _)| kind == "RoleBinding").flat_map(|(_, b)| names_of(&b["subjects"]));
    assert_eq!(accounts.collect::<Vec<_>>(), ["vc-team-a"]);
}

/// Names of the subjects of a binding.
fn names_of(subjects: &Value) -> Vec<String> {
    subjects.as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_owned()).collect()
}
