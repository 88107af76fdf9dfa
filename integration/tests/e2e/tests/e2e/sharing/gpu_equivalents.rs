//! A cap in whole GPUs over all profiles of a tenant: never exceeded at any instant, and usable in full by any profile in any
//! namespace once others have released it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, workload},
    objects::{ensure, patch_tenant, running},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually, follow},
};
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::core::v1::{Event, ResourceQuota};
use kube::{Api, Client, ResourceExt, api::ListParams, runtime::watcher};
use serde_json::json;
use tokio::task::JoinSet;

const TENANT: &str = "mixed";
const NAMESPACES: [&str; 2] = ["mixed-notebooks", "mixed-train"];
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const LARGE: &str = "nvidia.com/mig-3g.40gb";
/// The cap of one GPU, in memory slices of the board.
const CAP: i64 = 8;

/// A tenant with guarantees for two GPUs and a cap of one.
async fn onboard(world: &World) -> Result<()> {
    let namespaces: Vec<_> = NAMESPACES.iter().map(|name| json!({"name": name})).collect();
    let tenant = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": TENANT},
        "spec": {
            "namespaces": namespaces, "gpuEquivalents": "1", "deletionProtection": false,
            "gpus": [{"profile": "small", "count": 8}, {"profile": "large", "count": 2}],
        },
    });
    let profiles = [mig_profile("small", "1g.10gb"), mig_profile("large", "3g.40gb")];
    world.set(&profiles).await?;
    world.set(&[pool("p", "gpu-1", &["small", "large"]), tenant]).await?;
    tenant_ready(world, TENANT).await.map(drop)
}

/// Memory slices that a quota grants: the maximum of limits and use.
fn granted_slices(quota: &ResourceQuota) -> i64 {
    let (spec, status) = (quota.spec.as_ref(), quota.status.as_ref());
    let all = [
        spec.and_then(|s| s.hard.as_ref()),
        status.and_then(|s| s.hard.as_ref()),
        status.and_then(|s| s.used.as_ref()),
    ];
    let most = |resource: &str| {
        let key = format!("requests.{resource}");
        all.iter().flatten().filter_map(|amounts| amounts.get(&key)?.0.parse::<i64>().ok()).max().unwrap_or(0)
    };
    most(SMALL) + 4 * most(LARGE)
}

/// Observations of a watch on the tenant's quotas.
#[derive(Default)]
struct Observed {
    quotas: BTreeMap<String, i64>,
    states: usize,
    most: i64,
}

struct Observer {
    seen: Arc<Mutex<Observed>>,
    _tasks: JoinSet<()>,
}

impl Observer {
    fn start(client: &Client) -> Self {
        let (seen, mut tasks) = (Arc::new(Mutex::new(Observed::default())), JoinSet::new());
        let config = watcher::Config::default().labels(&format!("gputenancy.io/tenant={TENANT}"));
        let to = seen.clone();
        follow(&mut tasks, Api::<ResourceQuota>::all(client.clone()), config, move |quota| {
            let mut seen = to.lock().unwrap();
            seen.quotas.insert(quota.namespace().unwrap_or_default(), granted_slices(&quota));
            seen.states += 1;
            seen.most = seen.most.max(seen.quotas.values().sum());
        });
        Self { seen, _tasks: tasks }
    }

    fn check(&self) -> Result<()> {
        let seen = self.seen.lock().unwrap();
        println!("equivalents: {} states of quotas, at most {} of {CAP} slices granted", seen.states, seen.most);
        ensure(seen.states > 10 && seen.most == CAP, format!("at most {} of {CAP} slices granted", seen.most))
    }
}

async fn running_become(world: &World, namespace: &str, count: usize) -> Result<()> {
    eventually(&format!("{count} pods run in {namespace}"), PATIENCE, || async {
        let now = running(&world.client, namespace).await?.len();
        Ok(if now == count { Ok(()) } else { Err(format!("{now} run")) })
    })
    .await
}

/// The quota has refused a pod of a controller in this namespace.
async fn refused(world: &World, namespace: &str) -> Result<()> {
    let events = Api::<Event>::namespaced(world.client.clone(), namespace);
    eventually(&format!("a controller of {namespace} refused"), PATIENCE, || async {
        let found = events.list(&ListParams::default().fields("reason=FailedCreate")).await?;
        let quota = |e: &&Event| e.message.as_deref().is_some_and(|m| m.contains("exceeded quota: gputenancy"));
        Ok(found.iter().find(quota).map(drop).ok_or_else(|| format!("{} events", found.items.len())))
    })
    .await
}

async fn used(world: &World, gpus: &str) -> Result<()> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually(&format!("{gpus} whole GPUs in use"), PATIENCE, || async {
        let status = api.get(TENANT).await?.status.and_then(|s| s.equivalents);
        Ok(if status.as_ref().is_some_and(|s| s.used == gpus) { Ok(()) } else { Err(format!("{status:?}")) })
    })
    .await
}

#[tokio::test]
async fn gpu_equivalents_cap_moves_between_profiles() {
    let world = World::enter().await.unwrap();
    let body = async {
        let [notebooks, train] = NAMESPACES;
        onboard(&world).await?;
        let observer = Observer::start(&world.client);

        world.set(&[workload(notebooks, "small", SMALL, 8)]).await?;
        running_become(&world, notebooks, 8).await?;
        used(&world, "1").await?;

        world.set(&[workload(train, "large", LARGE, 2)]).await?;
        refused(&world, train).await?;
        running_become(&world, notebooks, 8).await?;
        ensure(running(&world.client, train).await?.is_empty(), "a pod beyond the cap runs")?;

        world.set(&[workload(notebooks, "small", SMALL, 4)]).await?;
        running_become(&world, train, 1).await?;
        running_become(&world, notebooks, 4).await?;
        world.set(&[workload(notebooks, "small", SMALL, 0)]).await?;
        running_become(&world, train, 2).await?;
        used(&world, "1").await?;
        observer.check()?;

        patch_tenant(&world.client, TENANT, json!({"spec": {"gpuEquivalents": "0.5"}})).await?;
        let excess = ["spec.gpuEquivalents by 0.5 over 0.5"];
        world.condition_becomes::<GpuTenant>(TENANT, "QuotaReady", "False", "OverBudget", &excess).await?;
        ensure(running(&world.client, train).await?.len() == 2, "a pod was stopped")?;
        let shown = world.kubectl(&["get", "gputenants", TENANT, "-o", "wide", "--no-headers"]).await?;
        let columns: Vec<&str> = shown.split_whitespace().collect();
        ensure(columns.windows(2).any(|pair| pair == ["1", "0.5"]), format!("columns of use and cap: {shown}"))
    };
    world.keeping_evidence("equivalents", body).await;
}
