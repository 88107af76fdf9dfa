//! `make demo`: what a newcomer sees, from `kubectl apply` down to NVML.

use std::{process::ExitCode, time::Instant};

use e2e::{
    Result, World, objects, product,
    story::{self, GROWN, MIG_1G, TEAM_A, TEAM_B},
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

fn step(number: usize, words: &str) {
    println!("\n\x1b[1m{number}. {words}\x1b[0m");
}

async fn tables(world: &World) -> Result<()> {
    println!("$ kubectl get gpuprofiles,gpupools,gputenants,gpunodes");
    println!("{}", world.kubectl(&["get", "gpuprofiles,gpupools,gputenants,gpunodes"]).await?);
    Ok(())
}

async fn tell() -> Result<()> {
    let start = Instant::now();
    let world = World::bare().await?;
    step(1, "The product, installed with helm: operator, agent, and simulated A100-80s on two nodes");
    product::install(&world.lab, &[]).await?;
    objects::delete_everything(&world.client).await?;
    world.agents_ready().await?;
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

    step(4, "A third pod of team-a is refused by the API server: its guarantee is two");
    println!("{}", story::refused(&world, TEAM_A, MIG_1G).await?);

    step(5, &format!("team-b's guarantee for mig-3g grows to {GROWN}: three of four GPUs are needed whole"));
    let held = story::holdings(&world).await?;
    for (pod, (node, gpu, start)) in &held {
        println!("  {pod}: {node} GPU {gpu}, memory slice {start}");
    }
    objects::set_guarantee(&world.client, TEAM_B, "mig-3g", GROWN).await?;
    let watched = watch_changes(&world);
    let settled = story::settled(&world, "3g.40gb", 7);
    tokio::select! {
        done = settled => { done?; }
        failed = watched => failed?,
    }
    let mut after = world.pods_ready(TEAM_A, 2).await?;
    after.extend(world.pods_ready(TEAM_B, 2).await?);
    story::tenant_ready(&world, TEAM_B).await?;
    tables(&world).await?;

    step(6, "Who moved, and who did not");
    for (pod, life) in &before {
        match after.get(pod) {
            Some(now) if now == life => {
                println!(
                    "  {pod}: untouched (UID {}, started {}, {} restarts)",
                    life.uid,
                    life.started.join(" "),
                    life.restarts
                );
            }
            _ => println!("  {pod}: evicted, because its device had to go"),
        }
    }
    for (pod, life) in after.iter().filter(|(pod, _)| !before.contains_key(*pod)) {
        println!("  {pod}: took its place on {}", life.node);
    }
    println!("\nThe story took {} s. The lab is still up. Try next:", start.elapsed().as_secs());
    println!("  target/debug/lab kubectl get gpunodes -o yaml     what NVML shows, and what was agreed");
    println!("  target/debug/lab kubectl edit gputenant {TEAM_B}     change a guarantee, watch the pool follow");
    println!("  target/debug/lab exec gpu-1 -- nvsim show         the simulated silicon itself");
    println!("  make down                                         removes everything");
    Ok(())
}

/// Prints each phase of each GPU's change once; ends only with an error.
async fn watch_changes(world: &World) -> Result<()> {
    let mut told = std::collections::BTreeSet::new();
    loop {
        for line in story::changes(world).await.unwrap_or_default() {
            if told.insert(line.clone()) {
                println!("  {line}");
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}
