//! One budget over several namespaces: never exceeded at any instant, and usable in full by any of them.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use e2e::{
    Error, Result, World,
    fixtures::{deployment, gated_pod, mig_profile, pool},
    interrupt, objects,
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually, follow, rounds},
};
use futures::future::join_all;
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event, Pod, ResourceQuota},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    runtime::watcher,
};
use serde_json::json;
use tokio::task::JoinSet;

const TENANT: &str = "many";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";
const KEY: &str = "requests.nvidia.com/mig-1g.10gb";
const NAMESPACES: [&str; 5] = ["many-a", "many-b", "many-c", "many-d", "many-e"];
const BUDGET: i64 = 12;
const CLIENTS: usize = 8;
/// Changed limits under load before the operator is killed, and again after, in a run of one round (`GPUTENANCY_ROUNDS`).
const MOVES: usize = 10;

/// A tenant with five namespaces and limits on devices, pods, CPU and memory.
async fn onboard(world: &World) -> Result<()> {
    let namespaces: Vec<_> = NAMESPACES.iter().map(|name| json!({"name": name})).collect();
    let tenant = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": TENANT},
        "spec": {
            "namespaces": namespaces, "gpus": [{"profile": "slice", "count": BUDGET}], "deletionProtection": false,
            "resources": {"pods": "60", "requests.cpu": "2", "requests.memory": "4Gi"},
        },
    });
    world.set(&[mig_profile("slice", "1g.10gb"), pool("p", "gpu-1", &["slice"]), tenant]).await?;
    tenant_ready(world, TENANT).await.map(drop)
}

fn amount(quota: &ResourceQuota, of: impl Fn(&ResourceQuota) -> Option<String>) -> i64 {
    of(quota).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn written(quota: &ResourceQuota) -> i64 {
    amount(quota, |q| Some(q.spec.as_ref()?.hard.as_ref()?.get(KEY)?.0.clone()))
}

fn enforced(quota: &ResourceQuota) -> i64 {
    amount(quota, |q| Some(q.status.as_ref()?.hard.as_ref()?.get(KEY)?.0.clone()))
}

fn used(quota: &ResourceQuota) -> i64 {
    amount(quota, |q| Some(q.status.as_ref()?.used.as_ref()?.get(KEY)?.0.clone()))
}

/// Observations of the watches, in the order of the API server's events.
struct Observed {
    begun: Instant,
    quotas: BTreeMap<String, ResourceQuota>,
    /// Number of observed states.
    states: usize,
    /// The greatest sum of limits and of use, over all namespaces.
    most: i64,
    most_used: i64,
    /// Number of changed limits.
    moves: usize,
    wrong: Option<String>,
    /// The last states, as text.
    history: VecDeque<String>,
    /// Refusals without a raised limit so far, by namespace: limit and time.
    waiting: HashMap<String, Vec<(i64, Instant)>>,
    /// Times from a controller's refusal to the enforced higher limit.
    took: Vec<Duration>,
}

impl Observed {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            quotas: BTreeMap::new(),
            states: 0,
            most: 0,
            most_used: 0,
            moves: 0,
            wrong: None,
            history: VecDeque::new(),
            waiting: HashMap::new(),
            took: Vec::new(),
        }
    }

    fn quota(&mut self, quota: ResourceQuota) {
        let name = quota.namespace().unwrap_or_default();
        if self.history.len() > 30 {
            self.history.pop_front();
        }
        let (version, at) = (quota.resource_version().unwrap_or_default(), self.begun.elapsed().as_millis());
        self.history.push_back(format!(
            "{at} ms {name} @{version} {}/{}/{}",
            used(&quota),
            enforced(&quota),
            written(&quota)
        ));
        if self.quotas.get(&name).is_some_and(|old| written(old) != written(&quota)) {
            self.moves += 1;
        }
        if let Some(waiting) = self.waiting.get_mut(&name) {
            let limit = enforced(&quota);
            let done = waiting.extract_if(.., |(was, _)| limit > *was);
            self.took.extend(done.map(|(_, since)| since.elapsed()));
        }
        self.quotas.insert(name, quota);
        let sum = |of: fn(&ResourceQuota) -> i64| self.quotas.values().map(of).sum::<i64>();
        let limits = sum(|q| written(q).max(enforced(q)));
        (self.most, self.most_used) = (self.most.max(limits), self.most_used.max(sum(used)));
        self.states += 1;
        if limits > BUDGET && self.wrong.is_none() {
            let lines = self.quotas.iter().map(|(ns, q)| format!("{ns} {}/{}/{}", used(q), enforced(q), written(q)));
            let (now, history) = (lines.collect::<Vec<_>>().join(", "), Vec::from(self.history.clone()).join("\n"));
            self.wrong = Some(format!("used/enforced/written: {now}; before:\n{history}"));
        }
    }

    /// Records a refusal; only the first counts until the limit is raised.
    fn refusal(&mut self, event: &Event) {
        let Some(namespace) = event.involved_object.namespace.clone() else { return };
        let message = event.message.clone().unwrap_or_default();
        let limit = message.split_once("limited: ").and_then(|(_, rest)| {
            rest.split(',').find_map(|pair| pair.trim().strip_prefix(KEY)?.strip_prefix('=')?.parse::<i64>().ok())
        });
        let Some(limit) = limit else { return };
        let waiting = self.waiting.entry(namespace.clone()).or_default();
        let answered = self.quotas.get(&namespace).is_some_and(|q| enforced(q) > limit);
        if !answered && waiting.is_empty() {
            waiting.push((limit, Instant::now()));
        }
    }
}

/// Watches quotas and refusals until it is dropped.
struct Observer {
    seen: Arc<Mutex<Observed>>,
    _tasks: JoinSet<()>,
}

impl Observer {
    async fn start(client: &Client) -> Result<Self> {
        let (seen, mut tasks) = (Arc::new(Mutex::new(Observed::new())), JoinSet::new());
        let config = watcher::Config::default().labels(&format!("gputenancy.io/tenant={TENANT}"));
        let to = seen.clone();
        follow(&mut tasks, Api::<ResourceQuota>::all(client.clone()), config, move |q| to.lock().unwrap().quota(q));
        let config = watcher::Config::default().fields("reason=FailedCreate");
        let to = seen.clone();
        follow(&mut tasks, Api::<Event>::all(client.clone()), config, move |e| to.lock().unwrap().refusal(&e));
        let observer = Self { seen, _tasks: tasks };
        let all = || async {
            let count = observer.seen.lock().unwrap().quotas.len();
            Ok(if count == NAMESPACES.len() { Ok(()) } else { Err(format!("{count} quotas")) })
        };
        eventually("all quotas seen", PATIENCE, all).await?;
        Ok(observer)
    }

    /// Waits until limits have changed so often from now on.
    async fn more_moves(&self) -> Result<()> {
        let moves = || self.seen.lock().unwrap().moves;
        let (before, wanted) = (moves(), MOVES * usize::try_from(rounds()).unwrap_or(1));
        eventually(&format!("{wanted} changed limits"), PATIENCE, || async {
            let more = moves() - before;
            Ok(if more >= wanted { Ok(()) } else { Err(format!("{more} changed limits")) })
        })
        .await
    }

    fn check(&self) -> Result<()> {
        let seen = self.seen.lock().unwrap();
        ensure(
            seen.wrong.is_none(),
            format!("over the budget of {BUDGET}: {}", seen.wrong.as_deref().unwrap_or_default()),
        )
    }

    fn print(&self, when: &str) {
        let seen = self.seen.lock().unwrap();
        let Observed { states, most, most_used, moves, .. } = *seen;
        println!(
            "budget: {when}: {states} states, at most {most} of {BUDGET} granted, {most_used} used, {moves} limits changed"
        );
    }
}

/// Sum of the devices that the tenant's pods request.
async fn requested(client: &Client) -> Result<i64> {
    let pods = Api::<Pod>::all(client.clone()).list(&ListParams::default()).await?;
    let ours = pods.iter().filter(|p| NAMESPACES.contains(&p.namespace().unwrap_or_default().as_str()));
    let containers = ours.filter_map(|p| p.spec.as_ref()).flat_map(|s| &s.containers);
    let requests =
        containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref()?.get(RESOURCE)?.0.parse::<i64>().ok());
    Ok(requests.sum())
}

/// A client that creates pods of one or two devices in any namespace and deletes some of its own, until the load is over.
async fn run_client(
    client: Client,
    number: usize,
    over: &AtomicBool,
    (admitted, refused): (&AtomicUsize, &AtomicUsize),
) {
    let mut own: Vec<(usize, String)> = Vec::new();
    let mut turn = number;
    while !over.load(Ordering::Relaxed) {
        turn += 1;
        // a client stays in a namespace for a while, so that the split has to follow it
        let at = (number + turn / 40) % NAMESPACES.len();
        let api = Api::<Pod>::namespaced(client.clone(), NAMESPACES[at]);
        let name = format!("c{number}-{turn}");
        let object =
            json!({"metadata": {"name": name}, "spec": gated_pod(RESOURCE, 1 + i64::from(turn.is_multiple_of(3)))});
        match api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await {
            Ok(_) => {
                admitted.fetch_add(1, Ordering::Relaxed);
                own.push((at, name));
            }
            Err(_) => {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        if own.len() > 2 || turn.is_multiple_of(7) {
            for (at, name) in own.drain(..own.len().div_ceil(2)) {
                let api = Api::<Pod>::namespaced(client.clone(), NAMESPACES[at]);
                drop(api.delete(&name, &DeleteParams::default().grace_period(0)).await);
            }
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

async fn clear(client: &Client) -> Result<()> {
    let (now, all) = (DeleteParams::default().grace_period(0), ListParams::default());
    for namespace in NAMESPACES {
        Api::<Deployment>::namespaced(client.clone(), namespace)
            .delete_collection(&DeleteParams::default(), &all)
            .await?;
        Api::<Pod>::namespaced(client.clone(), namespace).delete_collection(&now, &all).await?;
    }
    eventually("nothing used", PATIENCE, || async {
        let quotas = Api::<ResourceQuota>::all(client.clone()).list(&ListParams::default()).await?;
        let ours = quotas.iter().filter(|q| q.labels().get("gputenancy.io/tenant").is_some_and(|t| t == TENANT));
        let left: i64 = ours.map(used).sum();
        Ok(if left == 0 { Ok(()) } else { Err(format!("{left} used")) })
    })
    .await
}

/// A Deployment whose pods request one device each.
fn requesting(namespace: &str, devices: i64) -> serde_json::Value {
    deployment(namespace, "greedy", devices, &gated_pod(RESOURCE, 1))
}

#[tokio::test]
async fn budget_holds_under_eight_clients_and_is_usable_by_any_namespace() {
    let world = World::enter().await.unwrap();
    let body = async {
        onboard(&world).await?;
        let observer = Observer::start(&world.client).await?;
        under_load(&world, &observer).await?;
        observer.print("eight clients, the operator killed once");
        observer.check()?;
        each_namespace_in_turn(&world, &observer).await?;
        observer.check()
    };
    world.keeping_evidence("budget", body).await;
}

async fn under_load(world: &World, observer: &Observer) -> Result<()> {
    let (admitted, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let over = AtomicBool::new(false);
    let one = |n| run_client(world.client.clone(), n, &over, (&admitted, &refused));
    let count = async {
        let mut most = 0;
        while !over.load(Ordering::Relaxed) {
            most = most.max(requested(&world.client).await.unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        most
    };
    let interrupt = async {
        let outcome = async {
            observer.more_moves().await?;
            interrupt::kill_leader(world).await?;
            observer.more_moves().await
        };
        let outcome = outcome.await;
        over.store(true, Ordering::Relaxed);
        outcome
    };
    let (_, most, struck) = tokio::join!(join_all((0..CLIENTS).map(one)), count, interrupt);
    struck?;
    let (admitted, refused) = (admitted.into_inner(), refused.into_inner());
    println!("\nbudget: {admitted} pods admitted, {refused} refused, at most {most} devices of {BUDGET} by pods");
    observer.print("so far");
    observer.check()?;
    // The budget bounds the limits at every instant. Pods can exceed it by a device or two, even under one constant quota, because
    // Kubernetes' quota controller may recount before it sees a pod that was just admitted.
    ensure(admitted > CLIENTS && refused > CLIENTS, "too few pods were admitted or refused")
}

/// A Deployment in each namespace in turn uses the whole budget.
async fn each_namespace_in_turn(world: &World, observer: &Observer) -> Result<()> {
    let mut medians = Vec::new();
    for namespace in NAMESPACES {
        clear(&world.client).await?;
        let begun = Instant::now();
        {
            let mut seen = observer.seen.lock().unwrap();
            seen.waiting.clear();
            seen.took.clear();
        }
        world.set(&[requesting(namespace, BUDGET)]).await?;
        eventually(&format!("all {BUDGET} devices in {namespace}"), PATIENCE, || async {
            let pods = Api::<Pod>::namespaced(world.client.clone(), namespace).list(&ListParams::default()).await?;
            let count = i64::try_from(pods.items.len()).unwrap_or(0);
            Ok(if count == BUDGET { Ok(()) } else { Err(format!("{count} pods")) })
        })
        .await?;
        let mut took = observer.seen.lock().unwrap().took.clone();
        took.sort_unstable();
        let millis: Vec<u128> = took.iter().map(Duration::as_millis).collect();
        println!(
            "budget: {namespace}: all pods after {} ms; refused -> enforced: {millis:?} ms",
            begun.elapsed().as_millis()
        );
        medians.extend(took.get(took.len() / 2).copied());
        observer.check()?;
    }
    medians.sort_unstable();
    println!("budget: median of medians, refused -> enforced: {:?}", medians.get(medians.len() / 2));
    observer.print("each namespace in turn");
    ensure(!medians.is_empty(), "no limit was raised after a refusal")
}

/// The tenant has this condition, and the quota refuses one more pod in each namespace.
async fn refuses_everywhere(world: &World, reason: &str, words: &[&str]) -> Result<()> {
    let status = if reason == "Suspended" { "True" } else { "False" };
    world.condition_becomes::<GpuTenant>(TENANT, "QuotaReady", status, reason, words).await?;
    for namespace in NAMESPACES {
        let object = json!({"metadata": {"name": "one-more"}, "spec": gated_pod(RESOURCE, 1)});
        let pods = Api::<Pod>::namespaced(world.client.clone(), namespace);
        match pods.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await {
            Err(kube::Error::Api(status)) if status.message.contains("exceeded quota: gputenancy") => {}
            other => return Err(Error::Wrong(format!("a pod in {namespace}: {:?}", other.map(|p| p.name_any())))),
        }
    }
    Ok(())
}

#[tokio::test]
async fn budget_below_use_or_suspended_admits_no_pod_and_stops_none() {
    let world = World::enter().await.unwrap();
    let body = async {
        onboard(&world).await?;
        world.set(&[requesting(NAMESPACES[1], BUDGET)]).await?;
        let all_there = || async {
            let count = requested(&world.client).await?;
            Ok(if count == BUDGET { Ok(()) } else { Err(format!("{count} devices")) })
        };
        eventually("the whole budget used", PATIENCE, all_there).await?;

        objects::set_guarantee(&world.client, TENANT, "slice", 9).await?;
        refuses_everywhere(&world, "OverBudget", &[KEY, "by 3 over 9"]).await?;
        objects::patch_tenant(&world.client, TENANT, json!({"spec": {"suspend": true}})).await?;
        refuses_everywhere(&world, "Suspended", &[]).await?;
        ensure(requested(&world.client).await? == BUDGET, "a pod was stopped")?;

        objects::set_guarantee(&world.client, TENANT, "slice", 14).await?;
        objects::patch_tenant(&world.client, TENANT, json!({"spec": {"suspend": false}})).await?;
        world.set(&[requesting(NAMESPACES[3], 2)]).await?;
        eventually("two more pods in another namespace", PATIENCE, || async {
            let count = requested(&world.client).await?;
            Ok(if count == BUDGET + 2 { Ok(()) } else { Err(format!("{count} devices")) })
        })
        .await?;
        clear(&world.client).await
    };
    world.keeping_evidence("suspended", body).await;
}
