//! `make demo`: two teams on shared GPUs and a changed guarantee, shown from `kubectl apply` down to NVML; what programs do on their GPUs; and a team with
//! a virtual cluster, if vCluster has been built.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::{Duration, Instant},
};

use anstyle::Style;
use e2e::{
    Result, World, discovery,
    objects::PodIdentity,
    plan_preview, product,
    scenario::{self, GROWN, GROWN_TO, MIG_1G, NODES, SHARED, TEAM_A, TEAM_B, h100},
    virtual_cluster::{self, scene},
};

/// Titles, on a terminal.
const BOLD: Style = Style::new().bold();

#[tokio::main]
async fn main() -> ExitCode {
    // it changes a cluster, which a wrong argument must not do
    if let Some(argument) = std::env::args().nth(1) {
        let usage = "usage: demo\nIt runs in the lab that GPUTENANCY_LAB_NAME names (default lab), and replaces what is installed there.";
        eprintln!("demo: it takes no argument, such as {argument}\n{usage}");
        return ExitCode::FAILURE;
    }
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let start = Instant::now();
    step(1, "The product, installed with helm: operator, agent, and simulated A100-80s on two nodes");
    let world = World::enter_realtime().await?;
    println!("{}", world.kubectl(&["get", "pods", "-n", product::NAMESPACE, "-o", "wide"]).await?);

    step(2, "A catalog of profiles, a pool, two teams (samples/catalog.yaml, pool.yaml, tenants.yaml)");
    scenario::onboard(&world).await?;
    let before = scenario::start_pods(&world).await?;
    table(&world, "gpuprofiles,gpupools,gputenants,gpunodes").await?;

    step(3, "Each pod sees its own instance only (NVML inside the pods)");
    for pod in before.keys() {
        let namespace = if pod.starts_with("notebook") { TEAM_A } else { TEAM_B };
        println!("$ kubectl exec -n {namespace} {pod} -- gpu-work show");
        println!("{}", scenario::visible_gpus(&world, namespace, pod).await?);
    }

    step(4, "NVIDIA's view: labels of unmodified gpu-feature-discovery on each node, compared with GpuNode.status");
    compare_with_nvidia(&world).await?;

    step(5, "A third pod of team-a is refused by the API server: its guarantee is two");
    println!("{}", scenario::refused_pod(&world, TEAM_A, MIG_1G).await?);

    step(6, "The plan for a guarantee of seven mig-3g for team-b, without changing anything");
    let (plan, _) = plan_preview::run(&world, GROWN, "table").await?;
    println!("$ {}\n{plan}", plan_preview::command(GROWN));

    step(7, "team-b's guarantee grows; the change follows the plan");
    println!("$ kubectl apply --server-side -f samples/{GROWN}");
    let after = grow(&world).await?;
    table(&world, "gpupools,gputenants,gpunodes").await?;

    step(8, "Evicted and untouched pods, and NVIDIA's view again");
    print_moves(&before, &after);
    println!();
    compare_with_nvidia(&world).await?;

    step(9, "team-b needs less; team-c shares one GPU in turns and another one in fractions; the other GPUs keep MIG");
    println!("$ kubectl apply --server-side -f samples/{SHARED} -f samples/pods/team-c.yaml");
    for (pod, gpu) in scenario::share(&world).await? {
        println!("  {pod:<28}{gpu}");
    }
    table(&world, "gpuprofiles,gpunodes").await?;

    step(10, "What each pod does on its device, by the agents' samples: allocation, processes and activity in one row");
    println!("$ kubectl gpu top\n{}", scenario::usage(&world).await?);

    step(11, "A node with H100s joins the pool; of two programs that keep a GPU busy, one uses almost nothing of it");
    busy_but_idle(&world).await?;

    let virtual_clusters = virtual_cluster::lacking()?.is_none();
    if virtual_clusters {
        step(
            12,
            "team-v gets a Kubernetes control plane of its own, sees its budget there, and runs a pod on one of its slices",
        );
        own_cluster(&world).await?;
    } else {
        println!(
            "Not shown, because vCluster is not built: a team with a Kubernetes control plane of its own. `make virtual-clusters` builds it (seven minutes, once); then run `make demo` again."
        );
    }

    println!("\nThe scenario took {} s. The lab is still up. Try next:", start.elapsed().as_secs());
    let kubeconfig = world.lab.kubeconfig_path();
    println!("  export KUBECONFIG={} PATH=$PWD/target/toolset/bin:$PWD/target/debug:$PATH", kubeconfig.display());
    println!("  kubectl get gpunodes -o yaml                desired layout, and what NVML shows");
    println!("  kubectl gpu status                          nodes, GPUs, devices, and who has them");
    println!("  kubectl gpu plan -f samples/tenants.yaml    plan for the old guarantee");
    println!("  kubectl edit gputenant {TEAM_B}             change a guarantee; follow it with kubectl gpu changes");
    if virtual_clusters {
        println!(
            "  kubectl gpu connect {} -- kubectl get namespaces   its control plane; see docs/virtual-clusters.md",
            scene::TEAM
        );
    }
    println!("  make down                                   removes everything");
    Ok(())
}

fn step(number: usize, title: &str) {
    let title = format!("\n{}{number}. {title}{}", BOLD.render(), BOLD.render_reset());
    anstream::println!("{title}");
}

async fn table(world: &World, kinds: &str) -> Result<()> {
    println!("$ kubectl get {kinds}\n{}", world.kubectl(&["get", kinds]).await?);
    Ok(())
}

/// Shows a program with tiny kernels next to one that works.
async fn busy_but_idle(world: &World) -> Result<()> {
    println!("$ {}", h100::label_command());
    h100::join(world).await?;
    println!("$ kubectl apply --server-side -f samples/{} -f samples/{}", h100::SAMPLE, h100::PODS);
    h100::start(world).await?;
    println!("$ kubectl gpu top -n {}\n{}", h100::TEAM, h100::side_by_side(world).await?.table);
    Ok(())
}

/// Shows the virtual cluster of a team, with the team's own kubeconfig.
async fn own_cluster(world: &World) -> Result<()> {
    println!(
        "$ helm upgrade gputenancy helm/gputenancy --reset-then-reuse-values --set virtualClusters.enabled=true …"
    );
    virtual_cluster::serve(world).await?;
    println!("$ kubectl apply --server-side -f samples/{}", scene::TENANT);
    println!("$ kubectl wait gputenant/{} --for=condition=VirtualClusterReady", scene::TEAM);
    let start = Instant::now();
    let inside = scene::start(world).await?;
    println!("  ready after {} s", start.elapsed().as_secs());
    println!("$ kubectl gpu kubeconfig {0} > {0}.kubeconfig\nWith that kubeconfig, inside:", scene::TEAM);
    println!("$ kubectl get nodes\n{}", scene::budget(world, &inside).await?);
    println!("$ kubectl apply -f samples/{}", scene::INSIDE);
    let pod = scene::notebook(world, &inside).await?;
    println!("$ kubectl get pods -n {} -o wide\n{}", scene::SPACE, pod.inside);
    println!("$ kubectl describe nodes\n{}", scene::described(&inside).await?);
    println!("The same pod in this cluster, within the quota and policies of {}:", scene::TEAM);
    println!("$ kubectl exec -n {} {} -- gpu-work show\n{}", scene::TEAM, pod.name, pod.gpus);
    Ok(())
}

/// Prints both sources for the instances of each node; a difference ends the demo.
async fn compare_with_nvidia(world: &World) -> Result<()> {
    println!("  {:<7}{:<34}{:<24}GpuNode.status", "node", "label", "gpu-feature-discovery");
    for node in NODES {
        for row in discovery::compare_on(world, node).await? {
            let shown = matches!(row.label.rsplit('.').next(), Some("count" | "memory"));
            if shown && row.label.contains("/mig-") {
                let show = |value: Option<String>| value.unwrap_or_default();
                println!("  {node:<7}{:<34}{:<24}{}", row.label, show(row.nvidia), show(row.ours));
            }
        }
    }
    Ok(())
}

/// Raises the guarantee, prints the progress, and returns the pods that run afterwards.
async fn grow(world: &World) -> Result<BTreeMap<String, PodIdentity>> {
    print!("{}", world.sample(GROWN).await?);
    tokio::select! {
        done = scenario::instances_ready(world, "3g.40gb", GROWN_TO) => { done?; }
        failed = watch_changes(world) => failed?,
    }
    let mut after = world.pods_ready(TEAM_A, 2).await?;
    after.extend(world.pods_ready(TEAM_B, 2).await?);
    scenario::tenant_ready(world, TEAM_B).await?;
    Ok(after)
}

/// Prints the reason and each phase of every change once; ends only with an error.
async fn watch_changes(world: &World) -> Result<()> {
    let start = Instant::now();
    let mut printed = BTreeSet::new();
    loop {
        for change in scenario::changes(world).await.unwrap_or_default() {
            if printed.insert((change.gpu.clone(), change.reason.clone())) {
                println!("  {}: {}", change.gpu, change.reason);
            }
            if printed.insert((change.gpu.clone(), format!("{:?} {}", change.phase, change.reason))) {
                println!("  {:>4} s  {}  {:?}", start.elapsed().as_secs(), change.gpu, change.phase);
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn print_moves(before: &BTreeMap<String, PodIdentity>, after: &BTreeMap<String, PodIdentity>) {
    for (pod, identity) in before {
        if after.get(pod) == Some(identity) {
            let started = identity.started.join(" ");
            println!("  {pod}: untouched (UID {}, started {started}, {} restarts)", identity.uid, identity.restarts);
        } else {
            println!("  {pod}: evicted, because its device was removed");
        }
    }
    for (pod, identity) in after.iter().filter(|(pod, _)| !before.contains_key(*pod)) {
        println!("  {pod}: replacement on {}", identity.node);
    }
}
