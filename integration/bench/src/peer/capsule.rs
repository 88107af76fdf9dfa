//! Capsule as its users run it: its own chart, its webhooks, and a tenant's owner that creates namespaces. Program and chart come
//! from its Go module.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    product,
    wait::{PATIENCE, eventually},
};
use futures::{Stream, StreamExt, TryStreamExt, future::try_join};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use lab::{
    Profile, command,
    image::{
        self, Built,
        layout::{Layout, Source},
    },
    place::Folders,
};
use serde_json::{Value, json};

use super::four::{Four, create};
use crate::many::{IN_FLIGHT, each};

/// The version in `integration/tools/capsule/go.mod`.
pub const VERSION: &str = "0.14.0";
/// Workers of its controllers, equal to the requests in flight of the other ways; the chart's default is one.
pub const WORKERS: usize = 8;
const MODULE: &str = "github.com/projectcapsule/capsule";
const TENANTS: &str = "/apis/capsule.clastix.io/v1beta2/tenants";
const NAMESPACE: &str = "capsule-system";
/// The helm release of its CRDs.
const KINDS: &str = "capsule-kinds";
const RELEASE: &str = "capsule";
/// Its node.
const NODE: &str = "cpu-1";
/// Pause before a refused namespace is created again.
const AGAIN: Duration = Duration::from_millis(20);
/// The owner of all tenants, in Capsule's default group of owners.
const OWNER: Actor = Actor::Person(super::OWNER, &["projectcapsule.dev"]);

/// Webhook configurations that it creates.
const HOOKS: &str = "capsule-dynamic-webhook";
const HOOK_KINDS: [&str; 2] = ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"];
/// Webhooks of its chart that creating namespaces and tenants does not need.
const OPTIONAL: [&str; 8] = [
    "generic",
    "managed",
    "metadata",
    "globalresourcequotas",
    "cordoning",
    "customresources",
    "replications",
    "rulestatus",
];

/// The set of active webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Webhooks {
    /// The chart's default.
    Default,
    /// Without those that take no part in creating the four objects.
    Fewest,
}

/// Is its program built? The error has the remedy.
pub fn built() -> Result<()> {
    match Folders::find()?.tool("capsule") {
        Ok(_) => Ok(()),
        Err(_) => {
            Err(Error::Wrong("Capsule has not been built: run `make peer-tools` (about four minutes, once)".into()))
        }
    }
}

/// Installs it and waits until its webhooks answer.
pub async fn install(world: &World, webhooks: Webhooks) -> Result<()> {
    load(world).await?;
    let folder = tempfile::tempdir().map_err(|source| Error::Io { what: "a folder for a chart".into(), source })?;
    let chart = chart(folder.path()).await?;
    let install = ["upgrade", "--install", "--namespace", NAMESPACE, "--create-namespace", "--no-hooks", "--wait"];
    let own_certificates = ["--set", "certManager.generateCertificates=false"];
    // its hooks need an image of kubectl; they apply the CRDs and wait for the certificate
    let kinds = [KINDS, &chart, "--skip-crds", "--set", "crds.exclusive=true,crds.inline=true"];
    world.lab.helm(&[&install[..], &own_certificates, &kinds].concat()).await?;
    let wanted = webhooks == Webhooks::Default;
    let mut values = vec![
        "crds.install=false,tls.create=true,tls.enableController=true".to_owned(),
        format!("manager.image.registry=lab.local,manager.image.repository=capsule,manager.image.tag={VERSION}"),
        // a negative rate means no limit
        format!("manager.options.workers={WORKERS},manager.options.clientConnectionQPS=-1"),
        format!("nodeSelector.kubernetes\\.io/hostname={NODE}"),
    ];
    values.extend(OPTIONAL.map(|hook| format!("webhooks.hooks.{hook}.enabled={wanted}")));
    let values = values.join(",");
    let release = [RELEASE, &chart, "--skip-crds", "--set", &values, "--timeout", "5m"];
    world.lab.helm(&[&install[..], &own_certificates, &release].concat()).await?;
    let probe = tenant("bench-probe", None);
    eventually("Capsule's webhooks to answer", PATIENCE, || async {
        for kind in HOOK_KINDS {
            world.kubectl(&["get", kind, HOOKS]).await?;
        }
        let answer = Actor::Admin.may(&world.client, Verb::Create, TENANTS, &probe).await?;
        Ok(answer.map(drop).map_err(|refusal| refusal.message))
    })
    .await
}

/// Creates tenants, and a namespace of each as its owner, as soon as Capsule lists the owner in the status.
pub async fn onboard(world: &World, four: &Four, prefix: &str, tenants: usize) -> Result<()> {
    let client = &world.client;
    let made =
        each(prefix, tenants, async |name, _| create(&Actor::Admin, client, TENANTS, &tenant(&name, Some(four))).await);
    let namespaces = owned(client, prefix).take(tenants).map(async |name| create_namespace(client, &name?).await);
    try_join(made, namespaces.buffer_unordered(IN_FLIGHT).try_collect::<Vec<_>>()).await.map(drop)
}

/// Names of the tenants whose status lists an owner, each once.
fn owned(client: &Client, prefix: &str) -> impl Stream<Item = Result<String>> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("capsule.clastix.io", "v1beta2", "Tenant"));
    let api = Api::<DynamicObject>::all_with(client.clone(), &kind);
    let tenants = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
    let mut known = BTreeSet::new();
    tenants.map_err(|e| Error::Wrong(e.to_string())).try_filter_map(move |tenant| {
        let owned = tenant.data["status"]["owners"].as_array().is_some_and(|owners| !owners.is_empty());
        let name = tenant.name_any();
        let new = owned && name.starts_with(prefix) && known.insert(name.clone());
        std::future::ready(Ok(new.then_some(name)))
    })
}

/// Creates a tenant's namespace. Capsule's webhook may accept the owner a moment after the status lists it.
async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let labels = json!({"capsule.clastix.io/tenant": name});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    let start = Instant::now();
    loop {
        match create(&OWNER, client, "/api/v1/namespaces", &namespace).await {
            Err(Error::Wrong(_)) if start.elapsed() < PATIENCE => tokio::time::sleep(AGAIN).await,
            done => return done,
        }
    }
}

/// A tenant whose namespaces get these objects and one role binding; without a role an owner would get two.
fn tenant(name: &str, four: Option<&Four>) -> Value {
    let mut spec =
        json!({"owners": [{"kind": "User", "name": super::OWNER, "clusterRoles": ["capsule-namespace-deleter"]}]});
    if let Some(Four { quota, limits, policy }) = four {
        // a budget over several namespaces would cost more writes
        spec["resourceQuotas"] = json!({"scope": "Namespace", "items": [quota]});
        spec["limitRanges"] = json!({"items": [limits]});
        spec["networkPolicies"] = json!({"items": [policy]});
    }
    json!({"apiVersion": "capsule.clastix.io/v1beta2", "kind": "Tenant", "metadata": {"name": name}, "spec": spec})
}

/// Removes Capsule, its tenants and their namespaces, also those of an earlier run.
pub async fn remove(world: &World, prefix: &str) -> Result<()> {
    let kinds = world.kubectl(&["get", "customresourcedefinitions", "-o", "name"]).await?;
    if kinds.contains("/tenants.capsule.clastix.io") {
        world.kubectl(&["delete", "tenants.capsule.clastix.io", "--all", "--wait=false"]).await?;
        namespaces_gone(world, prefix).await?;
        eventually("Capsule's tenants to be deleted", PATIENCE, || async {
            let left = world.kubectl(&["get", "tenants.capsule.clastix.io", "-o", "name"]).await?;
            Ok(if left.is_empty() { Ok(()) } else { Err(left) })
        })
        .await?;
    }
    // stop the program first: it recreates its webhooks, which without it refuse every request
    world.kubectl(&["delete", "deployments", "--namespace", NAMESPACE, "--all", "--cascade=foreground"]).await?;
    let uninstall = ["uninstall", "--namespace", NAMESPACE, "--no-hooks", "--ignore-not-found", "--wait"];
    for kind in HOOK_KINDS {
        world.kubectl(&["delete", kind, HOOKS, "--ignore-not-found"]).await?;
    }
    world.lab.helm(&[&uninstall[..], &[RELEASE]].concat()).await?;
    world.lab.helm(&[&uninstall[..], &[KINDS]].concat()).await?;
    let roles = ["capsule-namespace-deleter", "capsule-namespace-provisioner"];
    world
        .kubectl(&[&["delete", "clusterroles,clusterrolebindings", "--ignore-not-found"][..], &roles].concat())
        .await?;
    world.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found"]).await.map(drop)
}

/// Waits until no namespace has this prefix.
pub async fn namespaces_gone(world: &World, prefix: &str) -> Result<()> {
    let api = Api::<Namespace>::all(world.client.clone());
    eventually(&format!("no namespace {prefix}… left"), PATIENCE * 2, || async {
        let left = api.list_metadata(&ListParams::default()).await?;
        let left = left.iter().filter(|n| n.name_any().starts_with(prefix)).count();
        Ok(if left == 0 { Ok(()) } else { Err(format!("{left} left")) })
    })
    .await
}

/// Packs its image and loads it into its node.
async fn load(world: &World) -> Result<()> {
    let program = "/usr/bin/capsule";
    let layout = Layout {
        name: "lab.local/capsule:0.14.0",
        files: vec![(program, Source::Tool("capsule")), ("/tmp", Source::Folder(0o1777))],
        entrypoint: &["/usr/bin/capsule"],
        driver_libraries: false,
        applets: false,
        dockerfile: None,
    };
    match image::build(&Folders::find()?, Profile::Release, &layout).await? {
        Built::Tar(tar, _) => Ok(world.lab.node(NODE)?.load_image(&tar).await.map(drop)?),
        Built::Lacks(file) => Err(Error::Wrong(format!("{} is missing", file.display()))),
    }
}

/// A copy of the module's chart with a version, and without a dependency that the module does not contain.
async fn chart(folder: &Path) -> Result<String> {
    let tool = product::root().join("integration/tools/capsule").display().to_string();
    let module = command::run("go", &["-C", &tool, "mod", "download", "-json", MODULE]).await?;
    let text = |e: serde_json::Error| Error::Text { what: "output of `go mod download`".into(), why: e.to_string() };
    let module: Value = serde_json::from_str(&module).map_err(text)?;
    let from = format!("{}/charts/capsule", module["Dir"].as_str().unwrap_or_default());
    let to = folder.join("capsule").display().to_string();
    command::run("cp", &["-r", "--no-preserve=mode", &from, &to]).await?;
    let about = format!("apiVersion: v2\nname: capsule\nversion: {VERSION}\nappVersion: {VERSION}\n");
    std::fs::write(format!("{to}/Chart.yaml"), about)
        .and_then(|()| std::fs::remove_file(format!("{to}/Chart.lock")))
        .map_err(|source| Error::Io { what: format!("writing {to}"), source })?;
    Ok(to)
}
