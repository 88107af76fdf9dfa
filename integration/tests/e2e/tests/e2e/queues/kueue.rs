//! The real Kueue in a lab, in a pod and by its own chart: the API server calls its webhooks, its conversion of versions and its visibility API
//! through Services. Program and chart come from its Go module.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    product,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use lab::{
    Profile,
    image::{
        self, Built,
        layout::{Layout, Source},
    },
    place::Folders,
};
use serde_json::{Value, json};

/// The version of its objects.
pub const API: &str = "kueue.x-k8s.io/v1beta2";
/// The visibility API.
pub const VISIBILITY: &str = "/apis/visibility.kueue.x-k8s.io/v1beta2";
/// The version in `integration/tools/kueue/go.mod`.
const VERSION: &str = "0.19.2";
const IMAGE: &str = "lab.local/kueue:0.19.2";
const CHART: &str = "kueue-0.19.2.tgz";
const RELEASE: &str = "kueue";
const NAMESPACE: &str = "kueue-system";
const DEPLOYMENT: &str = "kueue-controller-manager";
/// Its node.
const NODE: &str = "cpu-1";
const FLAVORS: &str = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors";
/// Objects that a failed test keeps.
const EVIDENCE: &str = "workloads.kueue.x-k8s.io,localqueues.kueue.x-k8s.io,clusterqueues.kueue.x-k8s.io,\
                        cohorts.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io,topologies.kueue.x-k8s.io,\
                        admissionchecks.kueue.x-k8s.io,jobs.batch";
/// Kinds with a finalizer of Kueue, which nothing removes once it has stopped: group, version, kind and labels.
const FINALIZED: [(&str, &str, &str, &str); 6] = [
    ("", "v1", "Pod", "kueue.x-k8s.io/managed=true"),
    ("kueue.x-k8s.io", "v1beta2", "Workload", ""),
    ("kueue.x-k8s.io", "v1beta2", "ClusterQueue", ""),
    ("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", ""),
    ("kueue.x-k8s.io", "v1beta2", "Topology", ""),
    ("kueue.x-k8s.io", "v1beta2", "AdmissionCheck", ""),
];

/// Kueue in the lab of a test.
pub struct Kueue<'a> {
    world: &'a World,
    /// The folder of the test among the lab's artifacts.
    test: &'static str,
    /// Logs of its pods, by name: of a stopped pod nothing is left.
    logs: RefCell<BTreeMap<String, String>>,
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    |source| Error::Io { what, source }
}

impl<'a> Kueue<'a> {
    /// For the test of this name; nothing is installed yet.
    pub fn new(world: &'a World, test: &'static str) -> Self {
        Self { world, test, logs: RefCell::default() }
    }

    /// Installs it, and waits until it answers. What an earlier test has left is removed.
    pub async fn start(&self) -> Result<()> {
        let chart = built()?.display().to_string();
        self.remove().await?;
        self.load().await?;
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(io("a file of values"))?;
        fs::write(file.path(), values().to_string()).map_err(io("writing values"))?;
        let values = file.path().display().to_string();
        let install = ["upgrade", "--install", RELEASE, &chart, "--namespace", NAMESPACE, "--create-namespace"];
        let options = ["--values", &values, "--timeout", "5m"];
        self.world.lab.helm(&[&install[..], &options].concat()).await?;
        self.ready().await
    }

    /// Stops it until [`Kueue::resume`]. The API server still calls its webhooks, and refuses what they would judge.
    pub async fn stop(&self) -> Result<()> {
        self.read_logs().await?;
        self.scale("0").await?;
        eventually("Kueue stopped", PATIENCE, || async {
            let left = self.pods().list(&ListParams::default()).await?.items.len();
            Ok(if left == 0 { Ok(()) } else { Err(format!("{left} pods")) })
        })
        .await
    }

    /// Starts it again, and waits until it answers.
    pub async fn resume(&self) -> Result<()> {
        self.scale("1").await?;
        self.ready().await
    }

    /// Writes its logs and its objects to the artifacts of a test that has failed, before [`Kueue::remove`].
    pub async fn evidence(&self) -> Result<()> {
        self.read_logs().await?;
        let objects = self.world.kubectl(&["get", EVIDENCE, "-A", "-o", "yaml", "--ignore-not-found"]).await;
        let folder = self.world.lab.folder().join("artifacts").join(self.test);
        fs::create_dir_all(&folder).map_err(io("a folder for Kueue's logs"))?;
        for (pod, log) in &*self.logs.borrow() {
            keep(&folder, &format!("{pod}.log"), log)?;
        }
        keep(&folder, "kueue.yaml", &objects.unwrap_or_else(|error| error.to_string()))
    }

    /// Removes it and its objects; finds nothing to do where it is not installed.
    pub async fn remove(&self) -> Result<()> {
        let world = self.world;
        // without it the API server would refuse what follows
        world.disconnect_kueue().await?;
        // it would set its finalizers again
        world.kubectl(&["delete", "deployments", "--namespace", NAMESPACE, "--all", "--cascade=foreground"]).await?;
        for (group, version, kind, labels) in FINALIZED {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            deleted(world, &resource, labels).await?;
        }
        let uninstall = ["uninstall", RELEASE, "--namespace", NAMESPACE, "--no-hooks", "--ignore-not-found", "--wait"];
        world.lab.helm(&[&uninstall[..], &["--timeout", "5m"]].concat()).await?;
        world.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=4m"]).await.map(drop)
    }

    /// Packs its image and loads it into its node.
    async fn load(&self) -> Result<()> {
        let layout = Layout {
            name: IMAGE,
            files: vec![("/manager", Source::Tool("kueue")), ("/tmp", Source::Folder(0o1777))],
            entrypoint: &["/manager"],
            driver_libraries: false,
            applets: false,
            dockerfile: None,
        };
        match image::build(&Folders::find()?, Profile::Debug, &layout).await? {
            Built::Tar(tar, _) => Ok(self.world.lab.node(NODE)?.load_image(&tar).await.map(drop)?),
            Built::Lacks(file) => Err(Error::Wrong(format!("{} is missing", file.display()))),
        }
    }

    /// Waits until its webhooks and its visibility API answer.
    async fn ready(&self) -> Result<()> {
        let flavor = json!({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "probe"}});
        eventually("Kueue to answer", PATIENCE * 2, || async {
            self.nudge().await?;
            let judged = Actor::Admin.may(&self.world.client, Verb::Create, FLAVORS, &flavor).await?;
            if let Err(refusal) = judged {
                return Ok(Err(refusal.message));
            }
            self.world.kubectl(&["get", "--raw", VISIBILITY]).await.map(|_| Ok(()))
        })
        .await
    }

    /// Annotates its pod: kubelet then mounts at once, instead of within a minute, the certificate that Kueue has written to a Secret.
    async fn nudge(&self) -> Result<()> {
        let pods = self.pods();
        for pod in pods.list(&ListParams::default()).await? {
            let beat = Timestamp::now().as_second() / 5;
            let patch = json!({"metadata": {"annotations": {"kueue.test/nudge": beat.to_string()}}});
            pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }

    async fn scale(&self, replicas: &str) -> Result<()> {
        let replicas = format!("--replicas={replicas}");
        self.world.kubectl(&["scale", "deployment", DEPLOYMENT, "--namespace", NAMESPACE, &replicas]).await.map(drop)
    }

    async fn read_logs(&self) -> Result<()> {
        for pod in self.pods().list(&ListParams::default()).await? {
            let name = pod.name_any();
            let log = self.world.kubectl(&["logs", "--namespace", NAMESPACE, &name]).await;
            // of a container that has not started there is none
            self.logs.borrow_mut().insert(name, log.unwrap_or_else(|error| error.to_string()));
        }
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.world.client.clone(), NAMESPACE)
    }
}

fn keep(folder: &Path, file: &str, text: &str) -> Result<()> {
    fs::write(folder.join(file), text).map_err(io(format!("writing {file}")))
}

/// Its chart; an error with the remedy where program or chart is not built.
fn built() -> Result<PathBuf> {
    let folders = Folders::find()?;
    match (folders.tool("kueue"), folders.chart(CHART)) {
        (Ok(_), Ok(chart)) => Ok(chart),
        _ => Err(Error::Wrong("Kueue has not been built: run `integration/tools/build kueue kueue-chart`".into())),
    }
}

/// Deletes all objects of a kind without their finalizers. No error where the kind does not exist.
async fn deleted(world: &World, resource: &ApiResource, labels: &str) -> Result<()> {
    let all = Api::<DynamicObject>::all_with(world.client.clone(), resource);
    let selected = ListParams::default().labels(labels);
    eventually(&format!("no {} left", resource.plural), PATIENCE, || async {
        let found = match all.list(&selected).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Ok(())),
            found => found?.items,
        };
        for object in &found {
            let api = match object.namespace() {
                Some(namespace) => Api::<DynamicObject>::namespaced_with(world.client.clone(), &namespace, resource),
                None => all.clone(),
            };
            let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            api.patch(&object.name_any(), &PatchParams::default(), &released).await?;
            api.delete(&object.name_any(), &DeleteParams::default()).await?;
        }
        Ok(if found.is_empty() { Ok(()) } else { Err(format!("{} deleted now", found.len())) })
    })
    .await
}

/// Values of its chart for the lab: its image, and requests that its node can give.
fn values() -> Value {
    let security = json!({"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}});
    let resources = json!({"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    json!({
        "managerConfig": {"controllerManagerConfigYaml": configuration().to_string()},
        "controllerManager": {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "manager": {
                "image": {"repository": "lab.local/kueue", "tag": VERSION, "pullPolicy": "Never"},
                "resources": resources,
                "podSecurityContext": security,
            },
            "readinessProbe": {"initialDelaySeconds": 0, "periodSeconds": 1},
            // the lab's nodes share two processors
            "livenessProbe": {"timeoutSeconds": 10, "failureThreshold": 10},
        },
    })
}

/// Its configuration: Jobs, and GPUs as the only resources with quota. Plain pods are left out: with them a queue of the name `default` holds back
/// every pod of its namespace. It manages no namespace of the platform, so that Jobs of the platform are created while it does not run.
fn configuration() -> Value {
    let platform = ["kube-system", NAMESPACE, product::NAMESPACE];
    let managed = json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": platform});
    json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443", "enableClusterQueueResources": true},
        "webhook": {"port": 9443},
        // there is one, and a lease of the one before would delay it
        "leaderElection": {"leaderElect": false},
        "managedJobsNamespaceSelector": {"matchExpressions": [managed]},
        "integrations": {"frameworks": ["batch/job"]},
        "resources": {"quotaCheckStrategy": "IgnoreUndeclared"},
    })
}
