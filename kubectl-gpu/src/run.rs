//! The wiring: what is asked for, from where, and the exit code.

use std::{fs, io, path::PathBuf};

use anstyle::{AnsiColor, Style};

use crate::{
    args::{Args, ChangesArgs, ClusterArgs, Command, LintArgs, PlanArgs, SnapshotArgs, TenantArgs},
    changes::{self, FollowError},
    cluster::{self, ClusterError},
    input::{self, InputErrors, Reading},
    lint::{self, Assumed},
    preview::{self, DeleteError, PlanPreview},
    render::{self, RenderError},
    snapshot,
    tenant::{self, GatherError},
    world::World,
};

/// Exit code of an error.
pub const ERROR: u8 = 1;
/// Exit code of a check that found something.
const FOUND: u8 = 1;
/// Exit code of a change that failed.
const FAILED: u8 = 4;
/// Style of the word in front of an error.
pub const RED: Style = AnsiColor::Red.on_default().bold();

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The input is wrong.
    #[error("{0}")]
    Input(#[from] InputErrors),
    /// Nothing of that name can be deleted.
    #[error(transparent)]
    Delete(#[from] DeleteError),
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Changes cannot be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// Nothing can be said about a tenant.
    #[error(transparent)]
    Tenant(#[from] GatherError),
    /// The answer cannot be written.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The snapshot cannot be written.
    #[error("writing {0}: {1}")]
    Write(String, io::Error),
}

/// Does what the command line asks for; the exit code.
pub async fn run(args: Args) -> Result<u8, RunError> {
    let Args { command, cluster } = args;
    match command {
        Command::Plan(args) => plan(&args, &cluster).await,
        Command::Snapshot(args) => take(&args, &cluster).await,
        Command::Changes(args) => follow(&args, &cluster).await,
        Command::Tenant(args) => of_tenant(&args, &cluster).await,
        Command::Lint(args) => check(&args),
    }
}

async fn plan(args: &PlanArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    // bad manifests are told before a cluster is asked
    let manifests = read(&args.files)?;
    let before = if args.snapshot.is_empty() {
        cluster::read(&cluster::client(cluster).await?).await?
    } else {
        World::of(read(&args.snapshot)?)
    };
    let preview = answer(&before, manifests, args)?;
    anstream::print!("{}", render::document(&preview, args.output, || render::plan(&preview))?);
    Ok(preview.exit_code)
}

/// The preview for a cluster, these manifests and flags. Pure.
pub fn answer(before: &World, manifests: Reading, args: &PlanArgs) -> Result<PlanPreview, DeleteError> {
    let proposal = preview::propose(before, manifests, &args.delete, args.prune)?;
    Ok(preview::preview(before, &proposal, args.ignore_known))
}

fn read(paths: &[PathBuf]) -> Result<Reading, InputErrors> {
    input::documents(&input::read(paths)?)
}

async fn take(args: &SnapshotArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
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
    let last = changes::follow(&client, args).await?;
    Ok(if last.failed() { FAILED } else { 0 })
}

async fn of_tenant(args: &TenantArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let client = cluster::client(cluster).await?;
    let report = tenant::report(&tenant::gather(&client, &args.name, &args.namespaces).await?);
    anstream::print!("{}", render::document(&report, args.output, || render::tenant(&report))?);
    Ok(0)
}

fn check(args: &LintArgs) -> Result<u8, RunError> {
    let LintArgs { files, namespace, image_pull_policy_always, output } = args;
    let assumed = Assumed { namespace: namespace.as_deref(), image_pull_policy_always: *image_pull_policy_always };
    let report = lint::lint(&input::read(files)?, assumed);
    anstream::print!("{}", render::document(&report, *output, || render::lint(&report))?);
    Ok(if report.findings.is_empty() { 0 } else { FOUND })
}
