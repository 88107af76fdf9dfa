//! Records the installation of a lab. A test with the same chart and values as the previous test then skips `helm upgrade`.

use std::{collections::BTreeMap, fs, path::Path};

use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result, World, product,
    wait::{PATIENCE, eventually},
};

/// The chart's objects carry it.
const OF_THE_RELEASE: &str = "app.kubernetes.io/managed-by=Helm";
/// Kinds of the chart's objects.
const KINDS: [(&str, &str, &str); 18] = [
    ("scheduling.k8s.io", "v1", "PriorityClass"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("", "v1", "ServiceAccount"),
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "Deployment"),
    ("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding"),
    ("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema"),
    ("networking.k8s.io", "v1", "NetworkPolicy"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
];

/// By these objects the API server calls Kueue. Where it does not run, they refuse pods of tenants, and no namespace is deleted.
const CALLS_OF_KUEUE: [&str; 4] = [
    "validatingwebhookconfiguration/kueue-validating-webhook-configuration",
    "mutatingwebhookconfiguration/kueue-mutating-webhook-configuration",
    "apiservice/v1beta1.visibility.kueue.x-k8s.io",
    "apiservice/v1beta2.visibility.kueue.x-k8s.io",
];

/// An installation, as it was when helm had ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installation {
    /// The values and flags beyond the lab's own.
    options: Vec<String>,
    /// The files of the chart, by path.
    chart: BTreeMap<String, String>,
    /// Version of each object by kind, namespace and name; a test may have changed one by hand.
    objects: BTreeMap<String, String>,
}

impl World {
    /// Does the lab hold this installation, untouched and with all of its programs running?
    pub(crate) async fn has_installed(&self, values: &[&str], flags: &[&str]) -> Result<bool> {
        let Ok(text) = fs::read_to_string(self.lab.folder().join(FILE)) else { return Ok(false) };
        let Ok(before) = serde_json::from_str::<Installation>(&text) else { return Ok(false) };
        Ok(before == installation(&self.client, values, flags).await? && programs(&self.client).await?.is_none())
    }

    /// Notes what helm has installed.
    pub(crate) async fn note_installed(&self, values: &[&str], flags: &[&str]) -> Result<()> {
        eventually("all programs of the release running", PATIENCE, || async {
            Ok(programs(&self.client).await?.map_or(Ok(()), Err))
        })
        .await?;
        let now = installation(&self.client, values, flags).await?;
        let text = serde_json::to_string(&now).map_err(|e| Error::Text { what: FILE.into(), why: e.to_string() })?;
        let io = |source| Error::Io { what: format!("writing {FILE}"), source };
        fs::write(self.lab.folder().join(FILE), text).map_err(io)
    }

    /// Deletes the release's programs, which a test may have changed by hand, so that helm creates them again.
    pub(crate) async fn uninstall_programs(&self) -> Result<()> {
        self.forget_installed();
        let (now, ours) = (DeleteParams::default(), ListParams::default().labels(OF_THE_RELEASE));
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), product::NAMESPACE);
        deployments.delete_collection(&now, &ours).await?;
        let sets = Api::<DaemonSet>::namespaced(self.client.clone(), product::NAMESPACE);
        sets.delete_collection(&now, &ours).await?;
        Ok(())
    }

    /// Deletes the objects by which the API server calls Kueue, if there are any.
    pub async fn disconnect_kueue(&self) -> Result<()> {
        self.kubectl(&[&["delete", "--ignore-not-found"], &CALLS_OF_KUEUE[..]].concat()).await.map(drop)
    }

    /// Before helm runs: what is installed is not known until it has ended. Also where the chart reads something of the cluster that a test has changed: the
    /// next installation renders it again.
    pub fn forget_installed(&self) {
        // absent in a fresh lab
        let _ = fs::remove_file(self.lab.folder().join(FILE));
    }
}

/// In the folder of a lab.
const FILE: &str = "installed.json";

async fn installation(client: &Client, values: &[&str], flags: &[&str]) -> Result<Installation> {
    let options =
        product::values().into_iter().chain(values.iter().chain(flags).map(|option| content(option))).collect();
    let mut chart = BTreeMap::new();
    files(&product::root().join("helm/gputenancy"), &mut chart)
        .map_err(|source| Error::Io { what: "reading the chart".into(), source })?;
    let objects = try_join_all(KINDS.map(|kind| versions(client, kind))).await?.into_iter().flatten().collect();
    Ok(Installation { options, chart, objects })
}

/// An option of helm; of a file of values its content, because each test writes its own.
fn content(option: &str) -> String {
    fs::read_to_string(option).unwrap_or_else(|_| option.to_owned())
}

/// The content of all files below a folder, by path.
fn files(folder: &Path, found: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else {
            found.insert(path.display().to_string(), fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// Labels, annotations and generation of each of the release's objects of a kind, or where the API server counts none, the resource version.
async fn versions(client: &Client, (group, version, kind): (&str, &str, &str)) -> Result<Vec<(String, String)>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let found = api.list_metadata(&ListParams::default().labels(OF_THE_RELEASE)).await?;
    let version = |object: &kube::core::PartialObjectMeta<DynamicObject>| {
        let generation = object.metadata.generation.map(|generation| generation.to_string());
        let name = format!("{kind} {}/{}", object.namespace().unwrap_or_default(), object.name_any());
        let count = generation.or_else(|| object.resource_version()).unwrap_or_default();
        (name, format!("{} {count} {:?} {:?}", object.uid().unwrap_or_default(), object.labels(), object.annotations()))
    };
    Ok(found.items.iter().map(version).collect())
}

/// The first program of the release that does not run on all of its nodes.
async fn programs(client: &Client) -> Result<Option<String>> {
    let ours = ListParams::default().labels(OF_THE_RELEASE);
    let deployments = Api::<Deployment>::namespaced(client.clone(), product::NAMESPACE).list(&ours).await?;
    let waits = |wanted: Option<i32>, ready: Option<i32>| wanted.unwrap_or(1) != ready.unwrap_or(0);
    let missing = deployments.iter().find(|d| {
        let status = d.status.clone().unwrap_or_default();
        waits(d.spec.as_ref().and_then(|s| s.replicas), status.ready_replicas) || status.unavailable_replicas.is_some()
    });
    if let Some(deployment) = missing {
        return Ok(Some(format!("{} is not available", deployment.name_any())));
    }
    let sets = Api::<DaemonSet>::namespaced(client.clone(), product::NAMESPACE).list(&ours).await?;
    let missing = sets.iter().find(|d| {
        let status = d.status.clone().unwrap_or_default();
        let current = status.updated_number_scheduled.unwrap_or(0);
        status.number_ready != status.desired_number_scheduled || current != status.desired_number_scheduled
    });
    Ok(missing.map(|set| format!("{} is not on all of its nodes", set.name_any())))
}
