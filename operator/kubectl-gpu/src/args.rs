//! The command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use gputenancy_crds::{DurationText, duration::DurationError};

/// Previews, follows and checks changes of GPU profiles, pools and tenants.
///
/// Exit codes: 0 success, 1 usage error, input error or failure. `--exit-code` adds finer codes to `plan` and `changes`.
#[derive(Parser, Debug, Clone)]
#[command(name = "kubectl-gpu", bin_name = "kubectl gpu", version)]
pub struct Args {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
    /// Cluster to read.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// The cluster to read; the flags have kubectl's names.
#[derive(ClapArgs, Debug, Clone)]
pub struct ClusterArgs {
    /// Path of the kubeconfig file to use.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the kubeconfig context to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// User to impersonate, to see what this user sees.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub user: Option<String>,
    /// Group to impersonate; may be given more than once.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub groups: Vec<String>,
    /// Time to wait for an answer of the API server, such as 90s or 2m.
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub request_timeout: Duration,
}

impl Default for ClusterArgs {
    fn default() -> Self {
        let (kubeconfig, context, user, groups) = <_>::default();
        Self { kubeconfig, context, user, groups, request_timeout: Duration::from_secs(30) }
    }
}

/// Why a time limit cannot be used.
#[derive(Debug, thiserror::Error)]
enum TimeoutError {
    #[error("a request needs time: write 1s or more")]
    Zero,
    #[error(transparent)]
    Duration(#[from] DurationError),
}

fn duration(text: &str) -> Result<Duration, TimeoutError> {
    match DurationText::parse(text)?.get()? {
        Duration::ZERO => Err(TimeoutError::Zero),
        limit => Ok(limit),
    }
}

/// Subcommands.
#[derive(Subcommand, Debug, Clone)]
pub enum Command {
    /// Prints what the operator would do if these manifests were applied; writes nothing.
    ///
    /// Exit codes: 0 success, 1 usage or input error. With --exit-code also: 2 GPUs change without evictions, 3 pods are
    /// evicted, 4 an object is refused or a guarantee cannot be met.
    Plan(PlanArgs),
    /// Writes everything a plan depends on to a file, for `plan --snapshot` without a cluster.
    Snapshot(SnapshotArgs),
    /// Follows GPU changes until none is in progress.
    ///
    /// Exit codes: 0 all changes succeeded, 1 error or a change failed. With --exit-code a failed change exits with 4.
    Changes(ChangesArgs),
    /// Prints the fleet: nodes, GPUs, their devices (whole GPUs, MIG instances, shares) and the pod that owns each.
    ///
    /// A bar for each GPU with its slices to scale, and a row for each device: used, free or withdrawn. Parts of a GPU that no device has
    /// are unallocated, or stranded if no profile of the pool can use them.
    Status(StatusArgs),
    /// Prints the catalog: what each profile is, what it isolates and what not, its contract and price, free devices, and a pod to copy.
    ///
    /// `-o markdown` writes a page that a platform team can publish.
    Catalog(CatalogArgs),
    /// Prints the status of a tenant: budget, quota by namespace, waiting workloads with the reason, and profile contracts.
    ///
    /// Without the right to read the tenant, prints what its namespaces show.
    Tenant(TenantArgs),
    /// Prints what pods do on their devices now: utilization with its source, multiprocessors, memory, and what to look at.
    ///
    /// Reads the agents' metrics through the API server. A value that the hardware does not show is `?`, not 0.
    Top(TopArgs),
    /// Prints the kubeconfig of a tenant's virtual cluster, with a token that expires (spec.virtualCluster.kubeconfig.ttl).
    Kubeconfig {
        /// Name of the tenant.
        tenant: String,
    },
    /// Reaches the API server of a tenant's virtual cluster from this machine: forwards a port of 127.0.0.1, and writes a kubeconfig for it.
    ///
    /// Runs until Ctrl-C, and removes the kubeconfig then. With `-- COMMAND` it runs the command with KUBECONFIG set, and exits with the
    /// command's code. Needs kubectl in PATH, and the rights of an owner of the tenant.
    Connect(ConnectArgs),
    /// Checks manifests without a cluster: the custom resources, references between them, and workloads of tenants among the
    /// files against the admission policies.
    ///
    /// Exit codes: 0 no mistakes, 1 mistakes found, usage or input error.
    Lint(LintArgs),
}

/// Flags of `plan`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct PlanArgs {
    /// Manifests to apply: files, folders, or `-` for standard input.
    #[arg(short, long = "filename", value_name = "FILE", num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// File of `kubectl gpu snapshot` to read instead of a running cluster; may be given more than once.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub snapshot: Vec<PathBuf>,
    /// Objects to delete, such as `gputenant/team-a`.
    #[arg(long, value_name = "KIND/NAME", num_args = 1..)]
    pub delete: Vec<String>,
    /// Delete profiles, pools and tenants that no manifest contains.
    #[arg(long, requires = "files")]
    pub prune: bool,
    /// Ignore problems that exist without the manifests too when choosing the exit code.
    #[arg(long)]
    pub ignore_known: bool,
    /// Exit with 2 if GPUs change, 3 if pods are evicted, 4 if an object is refused or a guarantee cannot be met.
    #[arg(long)]
    pub exit_code: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Flags of `snapshot`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct SnapshotArgs {
    /// File to write; default: standard output.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Flags of `changes`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct ChangesArgs {
    /// Print the current changes and exit.
    #[arg(long)]
    pub once: bool,
    /// Exit with 4 if a change failed.
    #[arg(long)]
    pub exit_code: bool,
    /// Output format; json and yaml print the current changes and exit.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Flags of `status`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct StatusArgs {
    /// Only nodes of this pool.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Only this node.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// List the containers with processes on each device as well, with their memory. JSON and YAML always have them.
    #[arg(long)]
    pub processes: bool,
    /// File of `kubectl gpu snapshot` to read instead of a running cluster; may be given more than once.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub snapshot: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Flags of `catalog`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct CatalogArgs {
    /// Profiles to print; default: all.
    #[arg(value_name = "PROFILE")]
    pub profiles: Vec<String>,
    /// File of `kubectl gpu snapshot`, or a folder of manifests, to read instead of a running cluster; may be given more than once.
    #[arg(long, value_name = "FILE")]
    pub snapshot: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = CatalogOutput::Table)]
    pub output: CatalogOutput,
}

/// Flags of `tenant`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct TenantArgs {
    /// Name of the tenant.
    pub name: String,
    /// Namespaces to read without the right to read the tenant; default: the namespace of the context and the one with the
    /// tenant's name.
    #[arg(short, long = "namespace", value_name = "NAMESPACE", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// List the limits of other resources as well. JSON and YAML always have them.
    #[arg(long)]
    pub limits: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Flags of `top`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct TopArgs {
    /// Namespace of the chart, where the agents run. Pods of other namespaces are not read, whichever labels they have.
    #[arg(long, value_name = "NAMESPACE", default_value = "gputenancy-system")]
    pub agent_namespace: String,
    /// Only pods of this tenant.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only pods of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Only this node.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Order of pods.
    #[arg(long, value_enum, default_value_t = Sort::Utilization)]
    pub sort: Sort,
    /// Show the table once and exit: the default.
    #[arg(long, conflicts_with = "watch")]
    pub once: bool,
    /// Show the table again every 10 seconds, until Ctrl-C; on a terminal with the last five minutes.
    #[arg(short, long, conflicts_with = "output")]
    pub watch: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Flags of `connect`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct ConnectArgs {
    /// Name of the tenant.
    pub tenant: String,
    /// Kubeconfig to write, readable by you alone; default: TENANT.kubeconfig, and with a command a temporary file. A file of another origin
    /// is not overwritten.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
    /// Local port; 0: a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Command to run, such as `-- kubectl get pods -A`.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Flags of `lint`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct LintArgs {
    /// Manifests: files, folders, or `-` for standard input.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Namespace of workloads without metadata.namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Admission policies to check against, as `helm template` prints them: files, folders, or `-` for standard input;
    /// default: the policies of the chart's default values.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub policies: Vec<PathBuf>,
    /// Chart to render the admission policies from; needs helm in PATH.
    #[arg(long, value_name = "CHART", conflicts_with = "policies")]
    pub chart: Option<String>,
    /// Values files for --chart.
    #[arg(long, value_name = "FILE", requires = "chart")]
    pub values: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Orders of pods.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// The busiest first; those without a source last.
    #[default]
    Utilization,
    /// The most memory first.
    Memory,
    /// By tenant, namespace and name.
    Name,
}

/// Output formats.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// Text with tables.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Output formats of the catalog.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CatalogOutput {
    /// Text with tables.
    #[default]
    Table,
    /// A Markdown page.
    Markdown,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_flags_after_the_subcommand_are_accepted() {
        let args =
            Args::try_parse_from(["kubectl-gpu", "plan", "-f", "a.yaml", "b.yaml", "--context", "prod"]).unwrap();
        assert_eq!(args.cluster.context.as_deref(), Some("prod"));
        assert!(matches!(args.command, Command::Plan(p) if p.files.len() == 2 && p.output == Output::Table));
    }

    #[test]
    fn flags_after_two_dashes_belong_to_the_command() {
        let line =
            ["kubectl-gpu", "connect", "team-a", "--port", "8443", "--", "kubectl", "get", "pods", "--context", "x"];
        let args = Args::try_parse_from(line).unwrap();
        assert_eq!(args.cluster.context, None);
        let Command::Connect(connect) = args.command else { panic!("{:?}", args.command) };
        assert_eq!((connect.tenant.as_str(), connect.port, connect.command.len()), ("team-a", 8443, 5));
        assert!(Args::try_parse_from(["kubectl-gpu", "connect", "team-a", "kubectl"]).is_err());
    }

    #[test]
    fn top_shows_the_table_once_or_again() {
        let parsed = |flags: &[&str]| Args::try_parse_from([&["kubectl-gpu", "top"][..], flags].concat());
        let Command::Top(top) = parsed(&["--once"]).unwrap().command else { panic!("not top") };
        assert!(top.once && !top.watch);
        assert!(parsed(&["--watch"]).is_ok());
        assert!(parsed(&["--once", "--watch"]).is_err());
    }

    #[test]
    fn plan_prune_without_manifests_is_refused() {
        assert!(Args::try_parse_from(["kubectl-gpu", "plan", "--prune"]).is_err());
    }
}
