//! `make demo`: what a newcomer sees, from `kubectl apply` down to NVML.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::{Duration, Instant},
};

use e2e::{
    Result, World, discovery, forecast,
    objects::{self, Life},
    product,
    story::{self, GROWN, MIG_1G, NODES, TEAM_A, TEAM_B},
};

#[tokio::main]
async fn main() -> ExitCode {
    match tell().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn tell() -> Result<()> {
    let start = Instant::now();
    step(1, "The product, installed with helm: operator, agent, and simulated A100-80s on two nodes");
    let world = World::enter().await?;
    println!("{}", world.kubectl(&["get", "pods", "-n", product::NAMESPACE, "-o", "wide"]).await?);

    step(2, "A catalog of profiles, a pool, two teams (samples/catalog.yaml, pool.yaml, tenants.yaml)");
    story::onboard(&world).await?;
    let before = story::start_pods(&world).await?;
    tables(&world).await?;

    step(3, "Each pod sees its own instance and nothing else (NVML, asked inside the pods)");
    for pod in before.keys() {
        let namespace = if pod.starts_with("notebook") { TEAM_A } else { TEAM_B };
        println!("$ kubectl exec -n {namespace} {pod} -- gpu-work show");
        println!("{}", story::inside(&world, namespace, pod).await?);
    }

    step(4, "NVIDIA's own view: gpu-feature-discovery, unmodified, on each node, beside GpuNode.status");
    nvidias_view(&world).await?;

    step(5, "A third pod of team-a is refused by the API server: its guarantee is two");
    println!("{}", story::refused(&world, TEAM_A, MIG_1G).await?);

    step(6, &format!("What if team-b were guaranteed {GROWN} of mig-3g? The plan, before anything is touched"));
    let (plan, command) = forecast::ask(&world, TEAM_B, "mig-3g", GROWN).await?;
    println!("$ {command}\n{plan}");

    step(7, &format!("team-b's guarantee for mig-3g grows to {GROWN}: it happens as planned"));
    let after = grow(&world).await?;
    tables(&world).await?;

    step(8, "Who moved, and who did not; and NVIDIA's view again");
    who_moved(&before, &after);
    println!();
    nvidias_view(&world).await?;

    println!("\nThe story took {} s. The lab is still up. Try next:", start.elapsed().as_secs());
    println!("  target/debug/lab kubectl get gpunodes -o yaml     what NVML shows, and what was agreed");
    println!("  target/debug/lab kubectl edit gputenant {TEAM_B}    change a guarantee, watch the pool follow");
    println!("  {command}");
    println!("                                                    edit the last file and ask again");
    println!("  make down                                         removes everything");
    Ok(())
}

fn step(number: usize, words: &str) {
    println!("\n\x1b[1m{number}. {words}\x1b[0m");
}

async fn tables(world: &World) -> Result<()> {
    println!("$ kubectl get gpuprofiles,gpupools,gputenants,gpunodes");
    println!("{}", world.kubectl(&["get", "gpuprofiles,gpupools,gputenants,gpunodes"]).await?);
    Ok(())
}

/// What both say of the instances of each node. They agree, or the demo ends here.
async fn nvidias_view(world: &World) -> Result<()> {
    println!("  {:<7}{:<34}{:<24}GpuNode.status", "node", "label", "gpu-feature-discovery");
    for node in NODES {
        for row in discovery::agrees(world, node).await? {
            if row.label.contains("/mig-") && (row.label.ends_with(".count") || row.label.ends_with(".memory")) {
                let show = |value: Option<String>| value.unwrap_or_default();
                println!("  {node:<7}{:<34}{:<24}{}", row.label, show(row.nvidia), show(row.ours));
            }
        }
    }
    Ok(())
}

/// Raises the guarantee, tells what happens, and returns the pods that run then.
async fn grow(world: &World) -> Result<BTreeMap<String, Life>> {
    objects::set_guarantee(&world.client, TEAM_B, "mig-3g", GROWN).await?;
    tokio::select! {
        done = story::settled(world, "3g.40gb", 7) => { done?; }
        failed = watch_changes(world) => failed?,
    }
    let mut after = world.pods_ready(TEAM_A, 2).await?;
    after.extend(world.pods_ready(TEAM_B, 2).await?);
    story::tenant_ready(world, TEAM_B).await?;
    Ok(after)
}

/// Prints each phase of each GPU's change once, the reason before the first; ends only with an error.
async fn watch_changes(world: &World) -> Result<()> {
    let start = Instant::now();
    let mut told = BTreeSet::new();
    loop {
        for journal in story::changes(world).await.unwrap_or_default() {
            if told.insert((journal.gpu.clone(), journal.reason.clone())) {
                println!("  {}: {}", journal.gpu, journal.reason);
            }
            if told.insert((journal.gpu.clone(), format!("{:?} {}", journal.phase, journal.reason))) {
                println!("  {:>4} s  {}  {:?}", start.elapsed().as_secs(), journal.gpu, journal.phase);
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn who_moved(before: &BTreeMap<String, Life>, after: &BTreeMap<String, Life>) {
    for (pod, life) in before {
        if after.get(pod) == Some(life) {
            let started = life.started.join(" ");
            println!("  {pod}: untouched (UID {}, started {started}, {} restarts)", life.uid, life.restarts);
        } else {
            println!("  {pod}: evicted, because its device had to go");
        }
    }
    for (pod, life) in after.iter().filter(|(pod, _)| !before.contains_key(*pod)) {
        println!("  {pod}: took its place on {}", life.node);
    }
}
