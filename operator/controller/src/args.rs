//! The command line: `run` is the default, the other commands are for people and for the chart's hooks.

use std::{net::SocketAddr, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand};
use gputenancy_cluster::{rights::operator::Locations, service::logging::LogArgs};

use crate::{pool::Tolerated, tenant::Standard, usage_endpoint::UsageArgs};

/// Tenants, profiles and pools of NVIDIA GPUs on Kubernetes: the controller.
#[derive(Parser, Debug, Clone)]
#[command(name = "gputenancy-operator", version, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// What to do; `run` when left out.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What the program can do.
#[derive(Subcommand, Debug, Clone)]
pub enum Command {
    /// Runs the controller until SIGTERM or SIGINT, or until it loses its lease.
    Run(Box<RunArgs>),
    /// Removes our finalizers from all objects, so that they can be deleted with no operator running.
    ReleaseFinalizers(LogArgs),
    /// Prints the rights that the operator needs, what for, and whether this account has them; nothing is changed.
    Rights(Locations),
}

/// Flags of `run`.
#[derive(ClapArgs, Debug, Clone)]
pub struct RunArgs {
    /// Flags that the rights depend on.
    #[command(flatten)]
    pub locations: Locations,
    /// Name under which this replica holds the lease; must differ between replicas.
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
    /// How long a silent leader stays leader, in seconds.
    #[arg(long, default_value = "15", value_parser = seconds)]
    pub lease_duration: Duration,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Tenants reconciled at once.
    #[arg(long, default_value = "16")]
    pub concurrency: u16,
    /// What every tenant gets alike, in JSON: `egress` (rules of a `NetworkPolicy`), `defaultRequests` and `defaultResources`
    /// (quantities by resource).
    #[arg(long, env = "TENANT_STANDARD", default_value = "{}")]
    pub tenant_standard: Standard,
    /// Key of the taint that the API server makes pods of tenants tolerate; empty: they tolerate what their authors write.
    #[arg(long, env = "GPU_TAINT_KEY", default_value = "nvidia.com/gpu")]
    pub gpu_taint_key: Tolerated,
    /// Labels, `key=value`, of tenants that have metrics of their own in a cluster with more than a thousand tenants, besides those that need attention.
    #[arg(long, env = "METRICS_TENANT_LABELS", value_delimiter = ',', value_parser = label)]
    pub metrics_tenant_labels: Vec<(String, String)>,
    /// Flags of the endpoint for teams.
    #[command(flatten)]
    pub usage: UsageArgs,
    /// Flags of the log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// A text that is no label.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no label; write key=value")]
struct NoLabel(String);

fn label(text: &str) -> Result<(String, String), NoLabel> {
    let (key, value) =
        text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| NoLabel(text.to_owned()))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// A duration of the lease that is too short for renewals, or keeps another replica waiting for too long.
#[derive(Debug, thiserror::Error)]
#[error("write whole seconds between 3 and 3600")]
struct LeaseDurationError;

fn seconds(text: &str) -> Result<Duration, LeaseDurationError> {
    match text.parse() {
        Ok(n @ 3..=3600) => Ok(Duration::from_secs(n)),
        _ => Err(LeaseDurationError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_secrets_are_names_between_commas() {
        let names = |args: &[&str]| Args::try_parse_from([&["op", "rights"], args].concat());
        let Some(Command::Rights(locations)) = names(&["--pull-secrets", "registry,mirror"]).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(locations.pull_secrets, ["registry", "mirror"]);
        assert!(names(&["--pull-secrets", "registry,"]).is_err(), "a Secret without a name");
        assert!(locations.wake_controllers && locations.owners_read_tenant, "on by default");
    }

    #[test]
    fn run_is_the_default_and_takes_the_same_flags() {
        let bare = Args::try_parse_from(["op", "--lease-duration", "9"]).unwrap();
        assert!(bare.command.is_none());
        assert_eq!(bare.run.lease_duration.as_secs(), 9);
        let named = Args::try_parse_from(["op", "run", "--lease-duration", "9"]).unwrap();
        assert!(matches!(named.command, Some(Command::Run(r)) if r.lease_duration.as_secs() == 9));
        assert!(Args::try_parse_from(["op", "--lease-duration", "1"]).is_err());
        assert!(Args::try_parse_from(["op", "--tenant-standard", "{\"ingress\": []}"]).is_err());
    }
}
