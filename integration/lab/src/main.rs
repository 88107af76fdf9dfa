//! The lab's command line.

use clap::{Args, Parser, Subcommand};
use lab::place::Folders;
use lab::{Lab, LabSpec, Profile, Progress, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// A real multi-node Kubernetes on one machine, without Docker.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Name {
    /// The lab's name.
    #[arg(long, default_value = "lab", env = "GPUTENANCY_LAB_NAME")]
    name: String,
}

#[derive(Subcommand)]
enum Command {
    /// Start a lab and wait until it is ready.
    Up(Up),
    /// Stop a lab and remove all of its files, also after a crash.
    Down {
        #[command(flatten)]
        name: Name,
        /// All labs of this checkout.
        #[arg(long)]
        all: bool,
    },
    /// Show the status of the lab.
    Status {
        #[command(flatten)]
        name: Name,
    },
    /// Run a command inside a node, or without NODE with the control plane.
    Exec {
        #[command(flatten)]
        name: Name,
        /// The node.
        node: Option<String>,
        /// The command.
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
    /// Run kubectl.
    Kubectl {
        #[command(flatten)]
        name: Name,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        argv: Vec<String>,
    },
    /// Run helm.
    Helm {
        #[command(flatten)]
        name: Name,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        argv: Vec<String>,
    },
    /// Show a component's log: `etcd`, `kube-apiserver`, …, `gpu-1/kubelet`, …; without a name, list them.
    Logs {
        #[command(flatten)]
        name: Name,
        /// The component.
        component: Option<String>,
    },
    /// Pack the images; with --load also load them into the running lab's nodes.
    Images {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        pack: Pack,
        /// Load changed images into all nodes of the lab, and restart the pods that run them.
        #[arg(long)]
        load: bool,
    },
    /// Switch a node off (power loss), on, or off and on again; pull or plug in its network cable.
    Node {
        #[command(flatten)]
        name: Name,
        /// The node.
        node: String,
        /// The action.
        action: Action,
    },
    /// Collect logs, events and objects.
    Collect {
        #[command(flatten)]
        name: Name,
        /// The folder's name under the lab's artifacts.
        #[arg(default_value = "manual")]
        test: String,
    },
    /// Add nodes simulated by kwok.
    Kwok {
        #[command(flatten)]
        name: Name,
        /// How many.
        count: usize,
    },
    #[command(hide = true)]
    Keeper { folder: PathBuf, name: String },
    #[command(hide = true)]
    Enter {
        #[arg(long)]
        group: Vec<PathBuf>,
        #[arg(long)]
        die_with_parent: bool,
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
    #[command(hide = true)]
    Init { plan: PathBuf },
    #[command(hide = true)]
    NodeInit { node: String },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Action {
    Off,
    On,
    Cycle,
    Cut,
    Restore,
}

#[derive(Args)]
struct Pack {
    /// The cargo profile to take the project's programs from.
    #[arg(long, value_enum, default_value = "debug")]
    profile: Profile,
    /// Fail when one of the project's programs has not been built.
    #[arg(long)]
    require_images: bool,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    name: Name,
    /// Nodes with simulated GPUs.
    #[arg(long, default_value_t = 2)]
    gpu_nodes: u8,
    /// Nodes without GPUs.
    #[arg(long, default_value_t = 1)]
    cpu_nodes: u8,
    #[command(flatten)]
    pack: Pack,
    /// Keep a running lab of this name.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse().command).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Up(up) => start(up).await?,
        Command::Down { name, all } => down(&name.name, all)?,
        Command::Status { name } => status(&name.name).await?,
        Command::Exec { name, node, argv } => return exec(&name.name, node.as_deref(), &argv).await,
        Command::Kubectl { name, argv } => return host(&name.name, "kubectl", &argv).await,
        Command::Helm { name, argv } => return host(&name.name, "helm", &argv).await,
        Command::Logs { name, component } => logs(&name.name, component.as_deref()).await?,
        Command::Images { name, pack, load } => images(&name.name, &pack, load).await?,
        Command::Node { name, node, action } => act(&name.name, &node, action).await?,
        Command::Collect { name, test } => {
            let folder = Lab::attach(&name.name).await?.collect(&test).await?;
            println!("{}", folder.display());
        }
        Command::Kwok { name, count } => Lab::attach(&name.name).await?.add_kwok_nodes(count).await?,
        Command::Keeper { folder, name } => lab::keeper::run(&folder, &name)?,
        Command::Enter { group, die_with_parent, argv } => lab::keeper::enter(&group, die_with_parent, &argv)?,
        Command::Init { plan } => lab::init::run(&plan).await?,
        Command::NodeInit { node } => lab::node_init::run(&node).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn start(up: Up) -> Result<()> {
    if up.keep
        && let Ok(lab) = Lab::attach(&up.name.name).await
    {
        eprintln!("lab: {} runs already", up.name.name);
        lab.switch_on().await?;
        return images(&up.name.name, &up.pack, true).await;
    }
    let spec = LabSpec {
        name: up.name.name,
        gpu_nodes: up.gpu_nodes,
        cpu_nodes: up.cpu_nodes,
        profile: up.pack.profile,
        require_images: up.pack.require_images,
        ..LabSpec::default()
    };
    Lab::start(spec).await.map(drop)
}

fn down(name: &str, all: bool) -> Result<()> {
    let folders = Folders::find()?;
    let names = if all { lab::keeper::names(&folders.state) } else { vec![name.to_owned()] };
    for name in names {
        lab::lab::down(&folders, &name)?;
        eprintln!("lab: {name} is down");
    }
    Ok(())
}

async fn status(name: &str) -> Result<()> {
    let lab = Lab::attach(name).await?;
    let status = lab.status().await?;
    println!("lab {name}: first process {}, kubeconfig {}", lab.init_pid(), lab.kubeconfig_path().display());
    for (component, pid) in status.components {
        println!("  {component:<26} {}", pid.map_or("stopped", |_| "runs"));
    }
    for (node, state) in status.nodes {
        let power = state.pid.map_or("off", |_| "on");
        println!("  {node:<26} {power}{}", if state.cut { ", network cut" } else { "" });
    }
    Ok(())
}

fn code(status: std::process::ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

async fn wait(mut command: tokio::process::Command, what: &str) -> Result<ExitCode> {
    let status = command.status().await;
    status.map(code).map_err(|source| lab::Error::Io { what: format!("running {what}"), source })
}

async fn exec(name: &str, node: Option<&str>, argv: &[String]) -> Result<ExitCode> {
    let lab = Lab::attach(name).await?;
    let command = match node {
        Some(node) => lab.node(node)?.command(argv).await?,
        None => lab.command(argv),
    };
    wait(command, &argv.join(" ")).await
}

async fn host(name: &str, tool: &str, argv: &[String]) -> Result<ExitCode> {
    let mut command = Lab::attach(name).await?.host_command(tool)?;
    command.args(argv);
    wait(command, tool).await
}

async fn logs(name: &str, component: Option<&str>) -> Result<()> {
    let lab = Lab::attach(name).await?;
    let Some(component) = component else {
        for component in lab.status().await?.components.keys() {
            println!("{component}");
        }
        for node in lab.node_names() {
            for component in ["boot", "containerd", "kubelet", "kube-proxy"] {
                println!("{node}/{component}");
            }
        }
        return Ok(());
    };
    let file = match component.split_once('/') {
        Some((node, component)) => lab.node(node)?.log(component),
        None => lab.inside(&format!("/run/lab/log/{component}.log")),
    };
    let mut log = std::fs::File::open(&file)
        .map_err(|source| lab::Error::Io { what: format!("opening {}", file.display()), source })?;
    // a reader such as `head` may end before the log does
    let _ = std::io::copy(&mut log, &mut std::io::stdout());
    Ok(())
}

async fn images(name: &str, pack: &Pack, load: bool) -> Result<()> {
    let mut progress = Progress::new(true);
    if load {
        return Lab::attach(name).await?.refresh_images(pack.profile, pack.require_images, &mut progress).await;
    }
    for tar in lab::image::build_all(&Folders::find()?, pack.profile, pack.require_images, &mut progress).await? {
        println!("{}", tar.display());
    }
    Ok(())
}

async fn act(name: &str, node: &str, action: Action) -> Result<()> {
    let node = Lab::attach(name).await?.node(node)?;
    match action {
        Action::Off => node.power_off().await,
        Action::On => node.power_on().await,
        Action::Cycle => node.power_cycle().await,
        Action::Cut => node.cut_network().await,
        Action::Restore => node.restore_network().await,
    }
}
