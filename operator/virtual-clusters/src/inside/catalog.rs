//! The catalog inside: a `ConfigMap` with the tenant's own profiles, and the `RuntimeClasses` that its pods may name.
//!
//! Both are read and compared first, so that nothing is written at rest. Of what is read only the compared fields are kept. Amounts in use
//! are not in the catalog: it would be written with every pod.

use std::{collections::BTreeMap, fmt::Debug};

use gputenancy_cluster::error::sentence;
use gputenancy_crds::{GpuTenant, Isolation, SharingMode, names as labels};
use k8s_openapi::api::{core::v1::ConfigMap, node::v1::RuntimeClass};
use kube::{Api, Client, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    connect::{CallError, bounded, get},
    objects::{Conflict, MOST_CLASSES, SlimMetadata, apply, delete, read},
    priorities::{self, PolicyUnserved},
};
use crate::{
    host_api::Priorities,
    names::{CATALOG, CATALOG_NAMESPACE, MANAGED_BY},
};

/// Why the catalog or the classes inside are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A request inside has failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The values of the classes are not known.
    #[error("listing the PriorityClasses of this cluster: {}", sentence(&**.0))]
    PriorityClasses(#[source] Box<kube::Error>),
}

/// Key of the catalog in its `ConfigMap`.
const KEY: &str = "profiles.yaml";
/// Longest handler of a `RuntimeClass`, a DNS label.
const LONGEST_HANDLER: usize = 63;

/// What the `ConfigMap` contains, in words that need no other page.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_equivalents: Option<&'a str>,
    profiles: Vec<Entry<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    profile: &'a str,
    resource: &'a str,
    count: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    isolation: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contract: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<String>,
    example: Value,
}

/// The catalog of a tenant: the profiles in its budget. Pure.
pub fn text(tenant: &GpuTenant) -> String {
    let status = tenant.status.as_ref();
    let listed = status.iter().flat_map(|s| &s.gpus).filter(|g| !g.resource_name.is_empty() && g.budget > 0);
    let profiles = listed.map(|gpu| Entry {
        profile: &gpu.profile,
        resource: &gpu.resource_name,
        count: gpu.budget,
        share: gpu.share.as_deref(),
        isolation: gpu.isolation.map(Isolation::as_str),
        contract: gpu.isolation.and_then(contract),
        price: gpu.price.as_ref().map(|price| format!("{} {}/h", price.per_hour, price.currency)),
        example: json!({"resources": {"limits": BTreeMap::from([(&gpu.resource_name, 1)])}}),
    });
    let page = Page {
        tenant: tenant.name_any(),
        gpu_equivalents: status.and_then(|s| s.equivalents.as_ref()).map(|e| e.cap.as_str()),
        profiles: profiles.collect(),
    };
    let yaml = serde_saphyr::to_string(&page).unwrap_or_else(|_| json!(page).to_string());
    format!(
        "# GPU profiles of this tenant. The platform writes this text, and restores it after a change.\n\
         # resource: what a container asks for in its limits, as in example; count: devices of all pods together;\n\
         # share: what one device counts against gpuEquivalents, in whole GPUs; price: of one device.\n{yaml}"
    )
}

/// What a pod shares with its neighbours, as a clause.
fn contract(isolation: Isolation) -> Option<&'static str> {
    match isolation {
        Isolation::Hardware => Some("memory and compute are the device's own, by hardware"),
        Isolation::Server => Some(SharingMode::Mps.accepts()),
        Isolation::None => {
            Some("pods share a device: a program can bypass its limits, and a fault of one pod can end the others")
        }
        // no profile has it
        Isolation::Driver | Isolation::Software => None,
    }
}

/// What is read of the `ConfigMap`.
#[derive(Deserialize, Debug, Default)]
struct SlimCatalog {
    #[serde(default)]
    metadata: SlimMetadata,
    #[serde(default)]
    data: SlimData,
}

#[derive(Deserialize, Debug, Default)]
struct SlimData {
    #[serde(rename = "profiles.yaml")]
    profiles: Option<String>,
}

/// What is read of a `RuntimeClass`.
#[derive(Deserialize, Debug)]
struct SlimClass {
    metadata: SlimMetadata,
    handler: String,
}

#[derive(Deserialize)]
struct SlimClasses {
    items: Vec<SlimClass>,
}

impl SlimCatalog {
    fn is(&self, text: &str) -> bool {
        self.data.profiles.as_deref() == Some(text) && self.metadata.is_ours()
    }
}

/// The handler inside. It is only a name: the pod runs with the `RuntimeClass` of the same name of this cluster, whose handler decides.
fn handler(class: &str) -> String {
    // the name of a class may have dots, and a handler none
    let mut handler = class.replace('.', "-");
    handler.truncate(handler.floor_char_boundary(LONGEST_HANDLER));
    handler.trim_end_matches('-').to_owned()
}

/// `RuntimeClasses` to apply, and those of this program to delete.
fn changes<'a>(wanted: &'a [String], live: &'a [SlimClass]) -> (Vec<&'a str>, Vec<&'a str>) {
    let is_right = |class: &&String| live.iter().any(|l| l.metadata.name == **class && l.handler == handler(class));
    let applied = wanted.iter().filter(|class| !is_right(class)).map(String::as_str).collect();
    let stale = live.iter().map(|l| l.metadata.name.as_str()).filter(|name| !wanted.iter().any(|w| w == name));
    (applied, stale.collect())
}

/// The classes inside.
#[derive(Clone, Copy, Debug)]
pub struct Classes<'a> {
    /// Names of `RuntimeClasses`.
    pub runtime: &'a [String],
    /// `PriorityClasses`.
    pub priority: &'a Priorities,
}

/// Makes catalog and classes inside as they should be. `unserved`: see [`priorities::show`].
pub async fn show(
    client: &Client,
    text: &str,
    classes: Classes<'_>,
    conflict: Conflict,
    unserved: &mut Option<PolicyUnserved>,
) -> Result<(), CallError> {
    // each is written although another one fails
    let profiles = show_profiles(client, text).await;
    let runtime = show_classes(client, classes.runtime, conflict).await;
    let priority = priorities::show(client, classes.priority, conflict, unserved).await;
    profiles.and(runtime).and(priority)
}

/// Deletes the catalog and the classes, as far as they are this program's.
pub async fn remove(client: &Client) -> Result<(), CallError> {
    show_classes(client, &[], Conflict::Keep).await?;
    priorities::remove(client).await?;
    let what = described();
    if read(client, &what, &profiles_path()).await?.is_some_and(|catalog: SlimCatalog| catalog.metadata.is_ours()) {
        let api = Api::<ConfigMap>::namespaced(client.clone(), CATALOG_NAMESPACE);
        bounded(&what, delete(&api, CATALOG)).await?;
    }
    Ok(())
}

fn described() -> String {
    format!("ConfigMap {CATALOG_NAMESPACE}/{CATALOG} of the virtual cluster")
}

fn profiles_path() -> String {
    format!("/api/v1/namespaces/{CATALOG_NAMESPACE}/configmaps/{CATALOG}")
}

async fn show_profiles(client: &Client, text: &str) -> Result<(), CallError> {
    let what = described();
    if read(client, &what, &profiles_path()).await?.is_some_and(|catalog: SlimCatalog| catalog.is(text)) {
        return Ok(());
    }
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": CATALOG, "labels": {labels::MANAGED_BY_LABEL: MANAGED_BY}},
        "data": {KEY: text},
    });
    apply(&Api::<ConfigMap>::namespaced(client.clone(), CATALOG_NAMESPACE), &what, CATALOG, &object).await
}

/// The API server inside refuses pods whose `RuntimeClass` it does not have.
async fn show_classes(client: &Client, wanted: &[String], conflict: Conflict) -> Result<(), CallError> {
    let what = "RuntimeClasses of the virtual cluster";
    let selector = format!("{}%3D{MANAGED_BY}", labels::MANAGED_BY_LABEL);
    let path = format!("/apis/node.k8s.io/v1/runtimeclasses?labelSelector={selector}&limit={MOST_CLASSES}");
    let mut live = get::<SlimClasses>(client, what, &path, None).await?.items;
    live.truncate(MOST_CLASSES);
    let (applied, stale) = changes(wanted, &live);
    let api = Api::<RuntimeClass>::all(client.clone());
    for class in applied {
        let what = format!("RuntimeClass {class} of the virtual cluster");
        let path = format!("/apis/node.k8s.io/v1/runtimeclasses/{class}");
        if conflict == Conflict::Keep
            && read(client, &what, &path).await?.is_some_and(|live: SlimClass| !live.metadata.is_ours())
        {
            continue;
        }
        let object = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": handler(class),
            "metadata": {"name": class, "labels": {labels::MANAGED_BY_LABEL: MANAGED_BY}},
        });
        apply(&api, &what, class, &object).await?;
    }
    for class in stale {
        bounded(what, delete(&api, class)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::testing::{Answer, MockServer, Request};

    use super::*;

    fn tenant(gpus: &Value) -> GpuTenant {
        serde_json::from_value(json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "team-v"},
            "spec": {"namespaces": [{"name": "team-v"}]},
            "status": {"gpus": gpus, "equivalents": {"used": "0.125", "cap": "1.5"}},
        }))
        .unwrap()
    }

    fn gpu(profile: &str, resource: &str, budget: i32, isolation: Option<&str>) -> Value {
        json!({
            "profile": profile, "resourceName": resource, "budget": budget, "used": 1, "available": budget, "waiting": 0,
            "isolation": isolation, "share": "1/8",
        })
    }

    #[test]
    fn catalog_lists_profiles_with_a_budget() {
        let mut priced = gpu("mig-1g", "nvidia.com/mig-1g.10gb", 2, Some("Hardware"));
        priced["price"] = json!({"perHour": "0.51", "currency": "USD"});
        let tenant = tenant(&json!([
            priced,
            gpu("shared-4", "nvidia.com/gpu.shared", 3, Some("None")),
            gpu("mps-20g", "gputenancy.io/mps-20g", 1, Some("Server")),
            gpu("older", "gputenancy.io/older", 1, None),
            gpu("refused", "nvidia.com/gpu", 0, Some("Hardware")),
            gpu("gone", "", 1, None),
        ]));
        insta::assert_snapshot!(text(&tenant));
    }

    #[test]
    fn catalog_does_not_change_with_the_use() {
        let mut used = gpu("mig-1g", "nvidia.com/mig-1g.10gb", 2, Some("Hardware"));
        let before = text(&tenant(&json!([used])));
        (used["used"], used["available"], used["waiting"]) = (2.into(), 1.into(), 7.into());
        assert_eq!(text(&tenant(&json!([used]))), before);
        let none: Value = serde_saphyr::from_str(&text(&tenant(&json!([])))).unwrap();
        assert_eq!(none, json!({"tenant": "team-v", "gpuEquivalents": "1.5", "profiles": []}));
    }

    #[test]
    fn changed_or_unlabelled_catalog_is_written_again() {
        let live = |data: &str, by: &str| -> SlimCatalog {
            serde_json::from_value(json!({
                "metadata": {"name": CATALOG, "labels": {labels::MANAGED_BY_LABEL: by}, "managedFields": [{}]},
                "data": {KEY: data, "other": "x"}, "immutable": true,
            }))
            .unwrap()
        };
        assert!(live("a", MANAGED_BY).is("a"), "keys of others do not count");
        assert!(!live("b", MANAGED_BY).is("a"));
        assert!(!live("a", "team").is("a"));
        assert!(!SlimCatalog::default().is("a"), "it does not exist");
    }

    #[test]
    fn only_wrong_and_stale_classes_are_written() {
        let live: Vec<SlimClass> = [("kata", "kata"), ("nvidia", "other"), ("gone", "gone")]
            .map(|(name, handler)| {
                serde_json::from_value(json!({"metadata": {"name": name}, "handler": handler})).unwrap()
            })
            .into();
        let wanted = ["kata", "nvidia", "new"].map(str::to_owned);
        assert_eq!(changes(&wanted, &live), (vec!["nvidia", "new"], vec!["gone"]));
        assert_eq!(changes(&wanted[..1], &live[..1]), (vec![], vec![]), "nothing at rest");
    }

    #[test]
    fn handler_is_a_dns_label() {
        assert_eq!(handler("nvidia"), "nvidia");
        assert_eq!(handler("nvidia.example"), "nvidia-example");
        assert_eq!(handler(&format!("{}.b", "a".repeat(62))), "a".repeat(62));
        for class in (1..=253).map(|length| "a.b-".repeat(length).chars().take(length).collect::<String>()) {
            let handler = handler(class.trim_end_matches(['.', '-']));
            let plain = handler.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
            assert!(plain && handler.len() <= 63 && !handler.ends_with('-') && !handler.is_empty(), "{handler}");
        }
    }

    /// The writes of this work to an API server inside, whose catalog and `RuntimeClass` `nvidia` are of this author.
    async fn writes(author: &'static str, work: impl AsyncFnOnce(&Client) -> Result<(), CallError>) -> Vec<String> {
        let server = MockServer::new(move |request: &Request| match request.name() {
            _ if request.is_write() => Answer::success(),
            // the request selects this program's
            "runtimeclasses" => {
                let class = json!({"metadata": {"name": "nvidia"}, "handler": "nvidia"});
                Answer::list((author == MANAGED_BY).then_some(class))
            }
            "priorityclasses" => Answer::list([]),
            name => {
                let metadata = json!({"name": name, "labels": {labels::MANAGED_BY_LABEL: author}});
                json!({"metadata": metadata, "handler": "other"}).into()
            }
        });
        work(&server.client()).await.unwrap();
        let written = server.take().into_iter().filter(Request::is_write);
        written.map(|request| format!("{} {}", request.method, request.name())).collect()
    }

    #[tokio::test]
    async fn class_of_another_author_is_kept_in_an_adopted_vcluster() {
        let (runtime, none) = (["nvidia".to_owned()], Priorities::new());
        let classes = Classes { runtime: &runtime, priority: &none };
        let kept = writes("team", async |client| show(client, "text", classes, Conflict::Keep, &mut None).await).await;
        assert_eq!(kept, [format!("PATCH {CATALOG}")]);
        let replaced =
            writes("team", async |client| show(client, "text", classes, Conflict::Replace, &mut None).await).await;
        assert_eq!(replaced, [format!("PATCH {CATALOG}"), "PATCH nvidia".to_owned()]);
        let at_rest = writes(MANAGED_BY, async |client| show_classes(client, &runtime, Conflict::Keep).await).await;
        assert_eq!(at_rest, Vec::<String>::new());
    }

    #[tokio::test]
    async fn only_objects_of_this_program_are_removed() {
        assert_eq!(writes("team", remove).await, Vec::<String>::new());
        let policy = "DELETE gputenancy-priority-classes".to_owned();
        let all = ["DELETE nvidia".to_owned(), policy.clone(), policy, format!("DELETE {CATALOG}")];
        assert_eq!(writes(MANAGED_BY, remove).await, all);
    }
}
