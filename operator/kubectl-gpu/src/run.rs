//! Runs the subcommands and chooses the exit code.

use std::{ffi::OsStr, fs, io, path::PathBuf, process};

use crate::{
    args::{
        Args, CatalogArgs, CatalogOutput, ChangesArgs, ClusterArgs, Command, LintArgs, Output, PlanArgs, SnapshotArgs,
        StatusArgs, TenantArgs, TopArgs,
    },
    catalog::{self, UnknownProfile},
    cluster::{self, ClusterError},
    connect::{self, ConnectError},
    follow::{self, FollowError},
    input::{self, InputError, Reading, Text},
    kubeconfig::{self, KubeconfigError},
    lint::{self, Options, Policies},
    output::{self, OutputError},
    preview::{self, PlanPreview, ProposeError},
    render::{self, RenderError},
    snapshot,
    status::{self, Filter, FilterError},
    tenant::{self, GatherError},
    top::{self, TopError},
    world::World,
};

/// Exit code of usage errors, input errors and failures.
pub const ERROR: u8 = 1;
/// Exit code of a failed change with `--exit-code`.
const FAILED: u8 = 4;

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Manifests cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Manifests and flags of `plan` do not fit.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// Changes cannot be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// No node is selected.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The catalog has no such profile.
    #[error(transparent)]
    Catalog(#[from] UnknownProfile),
    /// The tenant cannot be read.
    #[error(transparent)]
    Tenant(#[from] GatherError),
    /// No agent can be read.
    #[error(transparent)]
    Top(#[from] TopError),
    /// There is no kubeconfig.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// A virtual cluster cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A result cannot be written as a document.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A snapshot cannot be written as YAML.
    #[error("writing YAML: {0}")]
    Snapshot(#[from] serde_saphyr::SerializeError),
    /// The file of a snapshot cannot be written.
    #[error("writing {}: {}", .file.display(), unwritten(source))]
    SnapshotFile {
        /// The file.
        file: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// There is nothing to check against.
    #[error("no ValidatingAdmissionPolicy in {0}: give what `helm template` prints for the chart")]
    NoPolicies(String),
    /// helm cannot be run.
    #[error("running helm: {}: install it, or give its output with --policies", output::cause(.0))]
    Helm(#[source] io::Error),
    /// helm cannot render the chart.
    #[error("helm template {chart}: {}", .output.trim())]
    Template {
        /// The chart.
        chart: String,
        /// Standard error of helm.
        output: String,
    },
}

/// Why a file is not written, with what to do, without the number of the operating system's error.
fn unwritten(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => ": create its folder, or name a file in a folder that exists",
        io::ErrorKind::IsADirectory => ": name a file",
        io::ErrorKind::PermissionDenied => ": name a file that you may write",
        _ => "",
    };
    format!("{}{remedy}", output::cause(error))
}

/// Runs a command; returns the exit code.
pub async fn run(args: Args) -> Result<u8, RunError> {
    let Args { command, cluster } = args;
    match command {
        Command::Plan(args) => Box::pin(plan(&args, &cluster)).await,
        Command::Snapshot(args) => Box::pin(write_snapshot(&args, &cluster)).await,
        Command::Changes(args) => follow(&args, &cluster).await,
        Command::Status(args) => print_status(&args, &cluster).await,
        Command::Catalog(args) => print_catalog(&args, &cluster).await,
        Command::Tenant(args) => print_tenant(&args, &cluster).await,
        Command::Top(args) => Box::pin(print_top(&args, &cluster)).await,
        Command::Kubeconfig { tenant } => {
            output::print(kubeconfig::read(&cluster::client(&cluster).await?, &tenant).await?)?;
            Ok(0)
        }
        Command::Connect(args) => Ok(Box::pin(connect::connect(&args, &cluster)).await?),
        Command::Lint(args) => check_manifests(&args),
    }
}

async fn plan(args: &PlanArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    // bad manifests are reported before a cluster is read
    let manifests = read(&args.files)?;
    let (before, not_visible) = if args.snapshot.is_empty() {
        Box::pin(cluster::read(&cluster::client(cluster).await?)).await?
    } else {
        (World::of(read(&args.snapshot)?), Vec::new())
    };
    let mut preview = preview(&before, manifests, args)?;
    preview.notes.extend(not_visible);
    output::print(render::document(&preview, args.output, || render::plan(&preview))?)?;
    Ok(if args.exit_code { preview.exit_code } else { 0 })
}

/// The preview for a cluster, these manifests and flags. Pure.
pub fn preview(before: &World, manifests: Reading, args: &PlanArgs) -> Result<PlanPreview, ProposeError> {
    let proposal = preview::propose(before, manifests, &args.delete, args.prune)?;
    Ok(preview::preview(before, &proposal, args.ignore_known))
}

fn read(paths: &[PathBuf]) -> Result<Reading, RunError> {
    Ok(input::documents(&input::read(paths)?)?)
}

async fn write_snapshot(args: &SnapshotArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let (world, not_visible) = Box::pin(cluster::read(&cluster::client(cluster).await?)).await?;
    for what in not_visible {
        output::note(format_args!("warning: {what}"));
    }
    let text = snapshot::to_yaml(&world)?;
    match &args.file {
        Some(file) => fs::write(file, text).map_err(|source| RunError::SnapshotFile { file: file.clone(), source })?,
        None => output::print(text)?,
    }
    Ok(0)
}

async fn follow(args: &ChangesArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let last = follow::follow(cluster, args).await?;
    Ok(match (last.failed(), args.exit_code) {
        (false, _) => 0,
        (true, false) => ERROR,
        (true, true) => FAILED,
    })
}

async fn print_status(args: &StatusArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let (world, not_visible) = if args.snapshot.is_empty() {
        cluster::read_fleet(&cluster::client(cluster).await?).await?
    } else {
        (World::of(read(&args.snapshot)?), Vec::new())
    };
    let mut report = status::report(&world, &Filter { pool: args.pool.clone(), node: args.node.clone() })?;
    report.not_visible = not_visible;
    output::print(render::document(&report, args.output, || render::status(&report, args.processes))?)?;
    Ok(0)
}

async fn print_catalog(args: &CatalogArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let (world, not_visible) = if args.snapshot.is_empty() {
        cluster::read_catalog(&cluster::client(cluster).await?).await?
    } else {
        (World::of(read(&args.snapshot)?), Vec::new())
    };
    let catalog = catalog::catalog(&world, &args.profiles, not_visible)?;
    let output = match args.output {
        CatalogOutput::Markdown => {
            output::print(render::catalog_page(&catalog))?;
            return Ok(0);
        }
        CatalogOutput::Table => Output::Table,
        CatalogOutput::Json => Output::Json,
        CatalogOutput::Yaml => Output::Yaml,
    };
    output::print(render::document(&catalog, output, || render::catalog(&catalog))?)?;
    Ok(0)
}

async fn print_tenant(args: &TenantArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let client = cluster::client(cluster).await?;
    let report = tenant::report(&tenant::gather(&client, &args.name, &args.namespaces).await?);
    output::print(render::document(&report, args.output, || render::tenant(&report, args.limits))?)?;
    Ok(0)
}

async fn print_top(args: &TopArgs, cluster: &ClusterArgs) -> Result<u8, RunError> {
    let (client, limit) = (cluster::client(cluster).await?, cluster.request_timeout);
    if args.watch {
        Box::pin(follow::usage::refresh(&client, args, limit)).await??;
        return Ok(0);
    }
    let report = top::report(Box::pin(top::gather(&client, args, limit)).await?, args);
    if report.pods.is_empty() {
        Box::pin(top::check_names(&client, args)).await?;
    }
    output::print(render::document(&report, args.output, || render::top(&report, None))?)?;
    Ok(0)
}

fn check_manifests(args: &LintArgs) -> Result<u8, RunError> {
    let LintArgs { files, namespace, output, policies: _, chart: _, values: _ } = args;
    let options = Options { namespace: namespace.as_deref(), policies: &policies(args)? };
    let report = lint::lint(&input::read(files)?, options);
    output::print(render::document(&report, *output, || render::lint(&report))?)?;
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
    if policies.is_empty() {
        return Err(RunError::NoPolicies(source));
    }
    Ok(policies)
}

/// What `helm template` prints for a chart with these values files.
fn rendered(chart: &str, values: &[PathBuf]) -> Result<String, RunError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut helm = process::Command::new("helm");
    helm.args(["template", "gputenancy", chart, "--namespace", "gputenancy-system"]);
    helm.args(values.iter().flat_map(|file| [OsStr::new("--values"), file.as_os_str()]));
    let output = helm.output().map_err(RunError::Helm)?;
    if !output.status.success() {
        return Err(RunError::Template { chart: chart.to_owned(), output: text(&output.stderr) });
    }
    Ok(text(&output.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_a_snapshot_that_cannot_be_written_is_named_with_the_remedy() {
        let unwritten = |file: PathBuf| {
            let source = fs::write(&file, "").unwrap_err();
            RunError::SnapshotFile { file, source }.to_string()
        };
        let no_folder = "writing /nonexistent/x.yaml: No such file or directory: create its folder, or name a file in a folder that exists";
        assert_eq!(unwritten("/nonexistent/x.yaml".into()), no_folder);
        assert_eq!(unwritten("/".into()), "writing /: Is a directory: name a file");
    }

    #[test]
    fn missing_helm_is_reported_without_the_number_of_the_error() {
        let error = RunError::Helm(fs::read("/nonexistent/helm").unwrap_err());
        let expected = "running helm: No such file or directory: install it, or give its output with --policies";
        assert_eq!(error.to_string(), expected);
    }
}
