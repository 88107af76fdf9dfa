//! `make demo`: what a newcomer sees, from `kubectl apply` down to NVML.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::{Duration, Instant},
};

use e2e::{
    Result, World, discovery, forecast,
    objects::Life,
    product,
    story::{self, GROWN, GROWN_TO, MIG_1G, NODES, TEAM_A, TEAM_B},
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
    let world = World::enter_real().await?;
    println!("{}", world.kubectl(&["get", "pods", "-n", product::NAMESPACE, "-o", "wide"]).await?);

    step(2, "A catalog of profiles, a pool, two teams (samples/catalog.yaml, pool.yaml, tenants.yaml)");
    story::onboard(&world).await?;
    let before = story::start_pods(&world).await?;
    table(&world, "gpuprofiles,gpupools,gputenants,gpunodes").await?;

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

    step(6, "What if team-b were guaranteed seven of mig-3g? The plan, before anything is touched");
    let (plan, _) = forecast::ask(&world, GROWN, "table").await?;
    println!("$ {}\n{plan}", forecast::command(GROWN));

    step(7, "team-b's guarantee grows, and it happens as planned");
    println!("$ kubectl apply --server-side -f samples/{GROWN}");
    let after = grow(&world).await?;
    table(&world, "gpupools,gputenants,gpunodes").await?;

    step(8, "Which pods moved, and which did not; and NVIDIA's view again");
    who_moved(&before, &after);
    println!();
    nvidias_view(&world).await?;

    println!("\nThe story took {} s. The lab is still up. Try next:", start.elapsed().as_secs());
    let kubeconfig = world.lab.kubeconfig_path();
    println!("  export KUBECONFIG={} PATH=$PWD/target/toolset/bin:$PWD/target/debug:$PATH", kubeconfig.display());
    println!("  kubectl get gpunodes -o yaml                what NVML shows, and what was agreed");
    println!("  kubectl gpu plan -f samples/tenants.yaml    what taking it back would do");
    println!(
        "  kubectl edit gputenant {TEAM_B}             change a guarantee; kubectl gpu changes follows what comes of it"
    );
    println!("  make down                                   removes everything");
    Ok(())
}

fn step(number: usize, words: &str) {
    println!("\n\x1b[1m{number}. {words}\x1b[0m");
}

async fn table(world: &World, kinds: &str) -> Result<()> {
    println!("$ kubectl get {kinds}\n{}", world.kubectl(&["get", kinds]).await?);
    Ok(())
}

/// What both say of the instances of each node. They agree, or the demo ends here.
async fn nvidias_view(world: &World) -> Result<()> {
    println!("  {:<7}{:<34}{:<24}GpuNode.status", "node", "label", "gpu-feature-discovery");
    for node in NODES {
        for row in discovery::agrees(world, node).await? {
            let told = matches!(row.label.rsplit('.').next(), Some("count" | "memory"));
            if told && row.label.contains("/mig-") {
                let show = |value: Option<String>| value.unwrap_or_default();
                println!("  {node:<7}{:<34}{:<24}{}", row.label, show(row.nvidia), show(row.ours));
            }
        }
    }
    Ok(())
}

/// Raises the guarantee, tells what happens, and returns the pods that run then.
async fn grow(world: &World) -> Result<BTreeMap<String, Life>> {
    print!("{}", world.sample(GROWN).await?);
    tokio::select! {
        done = story::settled(world, "3g.40gb", GROWN_TO) => { done?; }
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
