//! A cap in whole GPUs over all profiles of a tenant: never exceeded at any instant, all of it to be had by one profile in one
//! namespace, and by another once that one's pods have gone.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use e2e::{
    Result, World,
    objects::{ensure, patch_tenant, running, says},
    scene::{mig_profile, pool, workload},
    story::tenant_ready,
    wait::{PATIENCE, eventually},
};
use futures::{StreamExt, pin_mut};
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::core::v1::{Event, ResourceQuota};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;

const TENANT: &str = "mixed";
const NAMESPACES: [&str; 2] = ["mixed-notebooks", "mixed-train"];
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const LARGE: &str = "nvidia.com/mig-3g.40gb";
/// The cap of one GPU, in memory slices of the board.
const CAP: i64 = 8;

/// Both shapes are carved as often as the counts say; together they may be used by half.
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

/// Memory slices that a quota may grant, or has granted: the largest of its limits and of its use.
fn weighs(quota: &ResourceQuota) -> i64 {
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

/// What a watch on the tenant's quotas has seen.
#[derive(Default)]
struct Seen {
    quotas: BTreeMap<String, i64>,
    looks: usize,
    most: i64,
}

struct Witness {
    seen: Arc<Mutex<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Witness {
    fn begin(client: &Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let config = watcher::Config::default().labels(&format!("gputenancy.io/tenant={TENANT}"));
        let quotas = watcher(Api::<ResourceQuota>::all(client.clone()), config).default_backoff().applied_objects();
        let to = seen.clone();
        let task = tokio::spawn(async move {
            pin_mut!(quotas);
            while let Some(next) = quotas.next().await {
                let Ok(quota) = next else { continue };
                let mut seen = to.lock().unwrap();
                seen.quotas.insert(quota.namespace().unwrap_or_default(), weighs(&quota));
                seen.looks += 1;
                seen.most = seen.most.max(seen.quotas.values().sum());
            }
        });
        Self { seen, task }
    }

    fn verdict(&self) -> Result<()> {
        let seen = self.seen.lock().unwrap();
        println!("equivalents: {} states of quotas, at most {} of {CAP} slices granted", seen.looks, seen.most);
        ensure(seen.looks > 10 && seen.most == CAP, format!("at most {} of {CAP} slices granted", seen.most))
    }
}

async fn running_are(world: &World, namespace: &str, count: usize) -> Result<()> {
    eventually(&format!("{count} pods run in {namespace}"), PATIENCE, || async {
        let now = running(&world.client, namespace).await?.len();
        Ok(if now == count { Ok(()) } else { Err(format!("{now} run")) })
    })
    .await
}

/// A controller of this namespace was refused by our quota.
async fn refused(world: &World, namespace: &str) -> Result<()> {
    let events = Api::<Event>::namespaced(world.client.clone(), namespace);
    eventually(&format!("a controller of {namespace} refused"), PATIENCE, || async {
        let found = events.list(&ListParams::default().fields("reason=FailedCreate")).await?;
        let quota = |e: &&Event| e.message.as_deref().is_some_and(|m| m.contains("exceeded quota: gputenancy"));
        Ok(found.iter().find(quota).map(drop).ok_or_else(|| format!("{} events", found.items.len())))
    })
    .await
}

async fn used(world: &World, words: &str) -> Result<()> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually(&format!("{words} whole GPUs in use"), PATIENCE, || async {
        let told = api.get(TENANT).await?.status.and_then(|s| s.equivalents);
        Ok(if told.as_ref().is_some_and(|t| t.used == words) { Ok(()) } else { Err(format!("{told:?}")) })
    })
    .await
}

#[tokio::test]
async fn one_profile_has_the_whole_cap_and_another_gets_it_when_its_pods_have_gone() {
    let world = World::enter().await.unwrap();
    let body = async {
        let [notebooks, train] = NAMESPACES;
        onboard(&world).await?;
        let witness = Witness::begin(&world.client);

        world.set(&[workload(notebooks, "small", SMALL, 8)]).await?;
        running_are(&world, notebooks, 8).await?;
        used(&world, "1").await?;

        world.set(&[workload(train, "large", LARGE, 2)]).await?;
        refused(&world, train).await?;
        running_are(&world, notebooks, 8).await?;
        ensure(running(&world.client, train).await?.is_empty(), "nothing is taken from pods that run")?;

        world.set(&[workload(notebooks, "small", SMALL, 4)]).await?;
        running_are(&world, train, 1).await?;
        running_are(&world, notebooks, 4).await?;
        world.set(&[workload(notebooks, "small", SMALL, 0)]).await?;
        running_are(&world, train, 2).await?;
        used(&world, "1").await?;
        witness.verdict()?;

        patch_tenant(&world.client, TENANT, json!({"spec": {"gpuEquivalents": "0.5"}})).await?;
        let api = Api::<GpuTenant>::all(world.client.clone());
        eventually("the tenant says by how much", PATIENCE, || async {
            let status = api.get(TENANT).await?.status.unwrap_or_default();
            Ok(says(&status.conditions, "QuotaReady", "False", "OverBudget", &["spec.gpuEquivalents by 0.5 over 0.5"]))
        })
        .await?;
        ensure(running(&world.client, train).await?.len() == 2, "nothing is stopped")?;
        let shown = world.kubectl(&["get", "gputenants", TENANT, "-o", "wide", "--no-headers"]).await?;
        let columns: Vec<&str> = shown.split_whitespace().collect();
        ensure(columns.windows(2).any(|pair| pair == ["1", "0.5"]), format!("use and cap are shown: {shown}"))
    };
    world.keeping_evidence("equivalents", body).await;
}
