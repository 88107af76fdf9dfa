//! Runs the subcommands and chooses the exit code.

use std::{ffi::OsStr, fs, io, path::PathBuf, process};

use anstyle::{AnsiColor, Style};

use crate::{
    args::{Args, ChangesArgs, ClusterArgs, Command, LintArgs, PlanArgs, SnapshotArgs, TenantArgs},
    cluster::{self, ClusterError},
    follow::{self, FollowError},
    input::{self, InputErrors, Reading, Text},
    lint::{self, Options, Policies},
    preview::{self, DeleteError, PlanPreview},
    render::{self, RenderError},
    snapshot,
    tenant::{self, GatherError},
    world::World,
};

/// Exit code of usage errors, input errors and failures.
pub const ERROR: u8 = 1;
/// Exit code of a failed change with `--exit-code`.
const FAILED: u8 = 4;
/// Style of the prefix of an error.
pub const RED: Style = AnsiColor::Red.on_default().bold();

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The input is wrong.
    #[error("{0}")]
    Input(#[from] InputErrors),
    /// An object cannot be deleted.
    #[error(transparent)]
    Delete(#[from] DeleteError),
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Changes cannot be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// A tenant cannot be read.
    #[error(transparent)]
    Tenant(#[from] GatherError),
    /// The chart cannot be rendered.
    #[error("helm template {0}: {1}")]
    Helm(String, String),
    /// The given files contain no admission policies.
    #[error("no ValidatingAdmissionPolicy in {0}: give what `helm template` prints for the chart")]
    NoPolicies(String),
    /// The result cannot be written.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The snapshot cannot be written.
    #[error("writing {0}: {1}")]
    Write(String, io::Error),
}

/// Runs a command; returns the exit code.
pub async fn run(args: Args) -> Result<u8, RunError> {
    let Args { command, cluster } = args;
    match command {
        Command::Plan(args) => plan(&args, &cluster).await,
        Command::Snapshot(args) => write_snapshot(&args, &cluster).await,
        Command::Changes(args) => follow(&args, &cluster).await,
        Command::Tenant(args) => print_tenant(&args, &cluster).await,
        Command::Lint(args) => check_manifests(&args),
    }
}

async fn plan(args: &PlanArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    // bad manifests are reported before a cluster is read
    let manifests = read(&args.files)?;
    let before = if args.snapshot.is_empty() {
        cluster::read(&cluster::client(cluster).await?).await?
    } else {
        World::of(read(&args.snapshot)?)
    };
    let preview = answer(&before, manifests, args)?;
    anstream::print!("{}", render::document(&preview, args.output, || render::plan(&preview))?);
    Ok(if args.exit_code { preview.exit_code } else { 0 })
}

/// The preview for a cluster, these manifests and flags. Pure.
pub fn answer(before: &World, manifests: Reading, args: &PlanArgs) -> Result<PlanPreview, DeleteError> {
    let proposal = preview::propose(before, manifests, &args.delete, args.prune)?;
    Ok(preview::preview(before, &proposal, args.ignore_known))
}

fn read(paths: &[PathBuf]) -> Result<Reading, InputErrors> {
    input::documents(&input::read(paths)?)
}

async fn write_snapshot(args: &SnapshotArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let world = cluster::read(&cluster::client(cluster).await?).await?;
    let text = snapshot::to_yaml(&world).map_err(RenderError::from)?;
    match &args.file {
        Some(file) => fs::write(file, text).map_err(|e| RunError::Write(file.display().to_string(), e))?,
        None => anstream::print!("{text}"),
    }
    Ok(0)
}

async fn follow(args: &ChangesArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let client = cluster::client(cluster).await?;
    let last = follow::follow(&client, args).await?;
    Ok(match (last.failed(), args.exit_code) {
        (false, _) => 0,
        (true, false) => ERROR,
        (true, true) => FAILED,
    })
}

async fn print_tenant(args: &TenantArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let client = cluster::client(cluster).await?;
    let report = tenant::report(&tenant::gather(&client, &args.name, &args.namespaces).await?);
    anstream::print!("{}", render::document(&report, args.output, || render::tenant(&report))?);
    Ok(0)
}

fn check_manifests(args: &LintArgs) -> Result<u8, RunError> {
    let LintArgs { files, namespace, output, policies: _, chart: _, values: _ } = args;
    let options = Options { namespace: namespace.as_deref(), policies: &policies(args)? };
    let report = lint::lint(&input::read(files)?, options);
    anstream::print!("{}", render::document(&report, *output, || render::lint(&report))?);
    Ok(if report.findings.is_empty() { 0 } else { ERROR })
}

/// The admission policies to check against: of files, of a chart, or the chart's defaults.
fn policies(args: &LintArgs) -> Result<Policies, RunError> {
    let (source, texts) = match &args.chart {
        Some(chart) => (chart.clone(), vec![Text { name: chart.clone(), text: rendered(chart, &args.values)? }]),
        None if args.policies.is_empty() => {
            let name = "(policies of the chart's default values)".to_owned();
            (name.clone(), vec![Text { name, text: lint::DEFAULT_POLICIES.to_owned() }])
        }
        None => {
            let names: Vec<String> = args.policies.iter().map(|p| p.display().to_string()).collect();
            (names.join(", "), input::read(&args.policies)?)
        }
    };
    let policies = Policies::read(&texts)?;
    if policies.is_empty() { Err(RunError::NoPolicies(source)) } else { Ok(policies) }
}

/// What `helm template` prints for a chart with these values files.
fn rendered(chart: &str, values: &[PathBuf]) -> Result<String, RunError> {
    let failed = |why: String| RunError::Helm(chart.to_owned(), why.trim().to_owned());
    let mut helm = process::Command::new("helm");
    helm.args(["template", "gputenancy", chart, "--namespace", "gputenancy-system"]);
    helm.args(values.iter().flat_map(|file| [OsStr::new("--values"), file.as_os_str()]));
    let output = helm.output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
