//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

/// What a change of profiles, pools and tenants would do to the cluster's GPUs, and what changes are doing now.
#[derive(Parser, Debug, Clone)]
#[command(name = "kubectl-gpu", bin_name = "kubectl gpu", version)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Which cluster is asked, as kubectl's flags of the same names.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct ClusterArgs {
    /// Path of the kubeconfig file to use.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the kubeconfig context to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
}

/// What the program can do.
#[derive(Subcommand, Debug, Clone)]
pub enum Command {
    /// Says what the cluster would do if these manifests were applied; nothing is written.
    ///
    /// Exit codes: 0 nothing to do, 1 error, 2 GPUs change and nobody is evicted, 3 pods are evicted, 4 something is refused
    /// or a guarantee cannot be met.
    Plan(PlanArgs),
    /// Writes all that a plan depends on, for `plan --snapshot` where there is no cluster.
    Snapshot(SnapshotArgs),
    /// Follows the changes of GPUs until none is left.
    ///
    /// Exit codes: 0 all done, 1 error, 4 a change failed.
    Changes(ChangesArgs),
    /// Says how a tenant stands: its budget, where it lies now, what waits and why, and what its profiles promise.
    ///
    /// Whoever may not read the tenant is told what its namespaces show.
    Tenant(TenantArgs),
    /// Checks manifests before anybody applies them, without a cluster: our kinds, what they say of each other, and workloads of
    /// tenants that are among the files.
    ///
    /// Exit codes: 0 nothing found, 1 something found, or the files cannot be read.
    Lint(LintArgs),
}

/// Flags of `plan`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct PlanArgs {
    /// Manifests that would be applied: files, folders, or `-` for standard input.
    #[arg(short, long = "filename", value_name = "FILE", num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// The cluster as `kubectl gpu snapshot` wrote it, in place of a running one; may be given more than once.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub snapshot: Vec<PathBuf>,
    /// Objects that would be deleted, such as `gputenant/team-a`.
    #[arg(long, value_name = "KIND/NAME", num_args = 1..)]
    pub delete: Vec<String>,
    /// Profiles, pools and tenants that no manifest has would be deleted, as tools do that keep a cluster like a repository.
    #[arg(long, requires = "files")]
    pub prune: bool,
    /// What is refused or unmet without the manifests too does not lead to exit code 4.
    #[arg(long)]
    pub ignore_known: bool,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Flags of `snapshot`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct SnapshotArgs {
    /// File to write; standard output when left out.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Flags of `changes`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct ChangesArgs {
    /// Say what there is now, and end.
    #[arg(long)]
    pub once: bool,
    /// How the answer is written; json and yaml write what there is now, and end.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Flags of `tenant`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct TenantArgs {
    /// Name of the tenant.
    pub name: String,
    /// Namespaces of the team, for somebody who may not read the tenant; by default that of the context, and the one that is
    /// named as the tenant.
    #[arg(short, long = "namespace", value_name = "NAMESPACE", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Flags of `lint`.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct LintArgs {
    /// Manifests: files, folders, or `-` for standard input.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Namespace of workloads that name none.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// The chart is installed with `policies.imagePullPolicyAlways=true`: containers of tenants without `imagePullPolicy: Always`
    /// are refused.
    #[arg(long)]
    pub image_pull_policy_always: bool,
    /// How the answer is written.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// How an answer is written.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_cluster_may_stand_behind_the_command() {
        let args =
            Args::try_parse_from(["kubectl-gpu", "plan", "-f", "a.yaml", "b.yaml", "--context", "prod"]).unwrap();
        assert_eq!(args.cluster.context.as_deref(), Some("prod"));
        assert!(matches!(args.command, Command::Plan(p) if p.files.len() == 2 && p.output == Output::Table));
    }

    #[test]
    fn pruning_without_manifests_would_delete_everything_and_is_refused() {
        assert!(Args::try_parse_from(["kubectl-gpu", "plan", "--prune"]).is_err());
    }
}
