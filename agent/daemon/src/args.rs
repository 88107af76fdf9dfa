//! Flags; each can come from the environment.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser;
use gputenancy_cluster::service::logging::LogArgs;
use gputenancy_crds::{DurationError, DurationText};

use crate::{
    forbidden_variables::Enforcement,
    gpu::{DriverRoot, NodePaths},
    handover::Policy,
    kubelet,
};

/// Root of the GPU Operator's driver container.
const OPERATOR_DRIVER: &str = "/run/nvidia/driver";

/// The node agent of gputenancy: partitions the GPUs of its node through NVML and is their device plugin.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Flags of the device plugin.
    #[command(flatten)]
    pub plugin: kubelet::Config,
    /// Root of the driver's files on the host. Default: the GPU Operator's /run/nvidia/driver if it has the library, else the host's
    /// root.
    #[arg(long, env = "DRIVER_ROOT")]
    pub driver_root: Option<PathBuf>,
    /// What happens to containers of tenants that get forbidden variables by envFrom, which admission policies cannot see. Default:
    /// no check.
    #[arg(long, env = "HIDDEN_VARIABLES", value_enum)]
    pub hidden_variables: Option<Enforcement>,
    /// Values that tenants may use in `NVIDIA_DRIVER_CAPABILITIES`.
    #[arg(long, env = "DRIVER_CAPABILITIES", value_delimiter = ',', default_value = "compute,utility")]
    pub driver_capabilities: Vec<String>,
    /// What happens to processes that still use a device after kubelet forgot their pod: the device stays withdrawn until they end
    /// (`wait`), or they are killed after the deadline.
    #[arg(long, env = "UNATTRIBUTED_PROCESSES", value_enum, ignore_case = true, default_value_t)]
    pub unattributed_processes: Policy,
    /// How long such processes are waited for before they are killed, such as `90s`, `10m` or `1h`.
    #[arg(long, env = "UNATTRIBUTED_DEADLINE", default_value = "10m", value_parser = duration)]
    pub unattributed_deadline: Duration,
    /// Time between two samples of utilization, power and memory, `1s` to `5m`.
    #[arg(long, env = "USAGE_INTERVAL", default_value = "10s", value_parser = interval)]
    pub usage_interval: Duration,
    /// `HOST:PORT` of the dcgm-exporter that measures this node's GPUs, such as `10.0.0.7:9400`: a source of utilization for MIG instances before Hopper.
    /// Default: none.
    #[arg(long, env = "DCGM_EXPORTER")]
    pub dcgm_exporter: Option<String>,
    /// The container runtime's socket on the host. Default: the first of the usual paths that exists.
    #[arg(long, env = "RUNTIME_SOCKET")]
    pub runtime_socket: Option<PathBuf>,
    /// Address of health and metrics; `:PORT` listens on all addresses.
    #[arg(long, env = "HTTP", default_value = "127.0.0.1:9400", value_parser = address)]
    pub http: SocketAddr,
    /// Print which rights the agent needs, what for, and whether this account has them, and exit.
    #[arg(long)]
    pub rights: bool,
    /// Flags of the log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// A text that is no address.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an address; examples: 127.0.0.1:9400, :9400")]
struct NoAddress(String);

fn duration(text: &str) -> Result<Duration, DurationError> {
    DurationText::parse(text).and_then(|text| text.get())
}

/// A time between two samples that is too short or too long.
#[derive(Debug, thiserror::Error)]
enum IntervalError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("`{0}` is not between 1s and 5m")]
    Range(String),
}

fn interval(text: &str) -> Result<Duration, IntervalError> {
    let interval = duration(text)?;
    let range = Duration::from_secs(1)..=Duration::from_mins(5);
    if range.contains(&interval) { Ok(interval) } else { Err(IntervalError::Range(text.to_owned())) }
}

fn address(text: &str) -> Result<SocketAddr, NoAddress> {
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    full.parse().map_err(|_| NoAddress(text.to_owned()))
}

impl Args {
    /// Where the driver and the kernel's trees are.
    pub fn paths(&self) -> NodePaths {
        let mounted = |host: &Path| DriverRoot { host: host.to_owned(), local: self.plugin.mounted(host) };
        let driver_roots = match &self.driver_root {
            Some(root) => vec![mounted(root)],
            None => vec![mounted(OPERATOR_DRIVER.as_ref()), mounted("/".as_ref())],
        };
        // the same folder mounted at its own path is preferred: it may be writable where the host's root is not
        let direct = driver_roots.iter().map(|root| root.host.clone()).filter(|host| host.starts_with("/run/nvidia"));
        let direct = direct.map(|host| DriverRoot { local: host.clone(), host });
        let sys = self.plugin.host_root.join("sys");
        NodePaths {
            driver_roots: direct.chain(driver_roots.iter().cloned()).collect(),
            proc_root: "/proc".into(),
            sys_root: if sys.exists() { sys } else { "/sys".into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(more: &[&str]) -> Args {
        Args::parse_from(["agent", "--node-name=n"].iter().chain(more))
    }

    #[test]
    fn root_of_the_driver_container_precedes_the_root_of_the_host() {
        let roots = args(&["--host-root=/host"]).paths().driver_roots;
        let local: Vec<_> = roots.iter().map(|root| root.local.to_str().unwrap()).collect();
        assert_eq!(local, ["/run/nvidia/driver", "/host/run/nvidia/driver", "/host/"]);
        assert_eq!(args(&["--driver-root=/opt/nvidia"]).paths().driver_roots.len(), 1);
    }

    #[test]
    fn unattributed_processes_are_waited_for_unless_the_flags_say_otherwise() {
        let flags = |more: &[&str]| {
            let args = args(more);
            (args.unattributed_processes, args.unattributed_deadline.as_secs())
        };
        assert_eq!(flags(&[]), (Policy::Wait, 600));
        let more = ["--unattributed-processes=Terminate", "--unattributed-deadline=1m30s"];
        assert_eq!(flags(&more), (Policy::Terminate, 90));
        assert!(Args::try_parse_from(["agent", "--node-name=n", "--unattributed-deadline=soon"]).is_err());
    }

    #[test]
    fn interval_of_samples_is_between_one_second_and_five_minutes() {
        let interval = |text: &str| {
            let args = Args::try_parse_from(["agent", "--node-name=n", &format!("--usage-interval={text}")]);
            args.map(|args| args.usage_interval.as_secs()).ok()
        };
        assert_eq!(
            [interval("1s"), interval("5m"), interval("301s"), interval("0s"), interval("soon")],
            [Some(1), Some(300), None, None, None]
        );
        assert_eq!(args(&[]).usage_interval.as_secs(), 10);
    }

    #[test]
    fn port_alone_listens_on_all_addresses() {
        assert_eq!(args(&["--http=:9400"]).http.to_string(), "0.0.0.0:9400");
        assert!(Args::try_parse_from(["agent", "--node-name=n", "--http=nine"]).is_err());
    }
}
