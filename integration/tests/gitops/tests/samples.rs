//! The sample repository for `GitOps` tools is consistent, and health follows conditions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test panics with its finding"
)]
#![allow(clippy::needless_pass_by_value, reason = "a table of json! reads better without ampersands")]

use std::collections::BTreeSet;

use gitops::{documents, health, kustomize, samples, text};
use gputenancy_crds::{GpuPool, GpuProfile, GpuTenant};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Objects of a kind, parsed strictly.
fn all<K: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<K> {
    let of_kind = objects.iter().filter(|o| o["kind"] == kind);
    of_kind.map(|o| serde_json::from_value(o.clone()).unwrap_or_else(|e| panic!("{e}: {o}"))).collect()
}

#[test]
fn gitops_platform_and_teams_build_and_match() {
    for overlay in ["production", "lab"] {
        let platform = kustomize(&format!("platform/overlays/{overlay}")).unwrap();
        let teams = kustomize("teams").unwrap();
        let profiles: Vec<GpuProfile> = all(&platform, "GpuProfile");
        let pools: Vec<GpuPool> = all(&platform, "GpuPool");
        let tenants: Vec<GpuTenant> = all(&teams, "GpuTenant");
        assert_eq!((pools.len(), tenants.len()), (3, 5));
        assert_eq!(profiles.len() + pools.len(), platform.len(), "other objects in it");
        assert_eq!(tenants.len(), teams.len(), "other objects in it");
        let catalog: BTreeSet<&str> = profiles.iter().map(|p| p.metadata.name.as_deref().unwrap()).collect();
        let offered: BTreeSet<&str> = pools.iter().flat_map(|p| p.spec.profiles.iter().map(String::as_str)).collect();
        assert_eq!(offered, catalog, "profiles of the pools and of the catalog differ");
        for tenant in &tenants {
            let asked = tenant.spec.gpus.iter().map(|g| g.profile.as_str());
            assert!(asked.clone().all(|p| catalog.contains(p)), "{:?}", asked.collect::<Vec<_>>());
            assert!(tenant.spec.deletion_protection);
        }
    }
}

#[test]
fn production_overlay_sets_maintenance_windows() {
    let pools: Vec<GpuPool> = all(&kustomize("platform/overlays/production").unwrap(), "GpuPool");
    assert!(pools.iter().all(|p| p.spec.disruption.windows.len() == 1));
}

#[test]
fn gitops_paths_exist() {
    let there = |path: &str| samples().join(path.trim_start_matches("./")).join("kustomization.yaml").is_file();
    let application = &documents("platform.yaml", &text("argocd/platform.yaml").unwrap()).unwrap()[0];
    assert!(there(application["spec"]["source"]["path"].as_str().unwrap()));
    for flux in documents("flux", &text("flux/kustomizations.yaml").unwrap()).unwrap() {
        assert!(there(flux["spec"]["path"].as_str().unwrap()), "{flux}");
        assert_eq!(flux["spec"]["wait"], true);
    }
    let set = &documents("teams.yaml", &text("argocd/teams.yaml").unwrap()).unwrap()[0];
    assert_eq!(set["spec"]["generators"][0]["git"]["directories"][0]["path"], "teams/*");
    let folders = std::fs::read_dir(samples().join("teams")).unwrap().flatten().filter(|e| e.path().is_dir());
    for folder in folders.map(|e| e.file_name().into_string().unwrap()) {
        assert!(there(&format!("teams/{folder}")), "{folder}");
    }
}

#[test]
fn argocd_config_map_has_health_script_for_every_kind() {
    let map = &documents("argocd-cm.yaml", &text("argocd/argocd-cm.yaml").unwrap()).unwrap()[0];
    let data = map["data"].as_object().unwrap();
    let keys: Vec<&str> = data.keys().map(String::as_str).collect();
    let kinds = ["GpuPool", "GpuProfile", "GpuTenant"];
    assert_eq!(keys, kinds.map(|kind| format!("resource.customizations.health.gputenancy.io_{kind}")));
    let program = text("argocd/health.lua").unwrap();
    assert!(data.values().all(|v| v == &json!(program)), "argocd-cm.yaml differs from health.lua");
}

/// The health of an object of generation 2 with this status.
fn of(status: Value, more: Value) -> (String, String) {
    let mut object = json!({"metadata": {"name": "x", "generation": 2}, "spec": {}, "status": status});
    for (key, value) in more.as_object().unwrap() {
        object[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    }
    let health = health(&text("argocd/health.lua").unwrap(), &object).unwrap();
    (health.status, health.message)
}

fn status(generation: i64, conditions: &[(&str, &str, &str)]) -> Value {
    let one =
        |(kind, status, message): &(&str, &str, &str)| json!({"type": kind, "status": status, "message": message});
    json!({"observedGeneration": generation, "conditions": conditions.iter().map(one).collect::<Vec<_>>()})
}

#[test]
fn health_follows_conditions() {
    let ready = [("Ready", "True", "all is there"), ("Stalled", "False", "")];
    let waiting = [("Ready", "False", "GPUs are being partitioned"), ("Reconciling", "True", "")];
    let stalled = [("Ready", "False", "x"), ("Stalled", "True", "profile mig-9g does not exist")];
    let none = json!({});
    let is = |status: &str, message: &str| (status.to_owned(), message.to_owned());
    assert_eq!(of(status(2, &ready), none.clone()), is("Healthy", "all is there"));
    assert_eq!(of(status(2, &waiting), none.clone()), is("Progressing", "GPUs are being partitioned"));
    assert_eq!(of(status(2, &stalled), none.clone()), is("Degraded", "profile mig-9g does not exist"));
    let unseen = "the operator has not seen this generation yet";
    assert_eq!(of(status(1, &ready), none.clone()), is("Progressing", unseen));
    assert_eq!(of(status(-1, &[]), none.clone()), is("Progressing", unseen));
    assert_eq!(of(json!({}), none.clone()), is("Progressing", unseen));
    assert_eq!(of(status(2, &ready), json!({"spec": {"suspend": true}})).0, "Suspended");
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert_eq!(of(status(2, &ready), going), is("Progressing", "is being deleted all is there"));
}
