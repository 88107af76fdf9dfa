//! Flags; each can come from the environment.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use gputenancy_service::logging::LogArgs;

use crate::{
    environment::Answer,
    gpu::{DriverRoot, Places},
    kubelet::{Allocation, config::below},
};

/// Where the GPU Operator's driver container shows its root.
const OPERATOR_DRIVER: &str = "/run/nvidia/driver";

/// The node agent of gputenancy: carves the GPUs of its node through NVML and is their device plugin.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Name of this node's Node object.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Root of the driver's files as the host sees it. Default: the GPU Operator's /run/nvidia/driver when it has the library,
    /// else the host's root.
    #[arg(long, env = "DRIVER_ROOT")]
    pub driver_root: Option<PathBuf>,
    /// Where the host's root folder is mounted here.
    #[arg(long, env = "HOST_ROOT", default_value = "/")]
    pub host_root: PathBuf,
    /// Folder with the device nodes, as seen here.
    #[arg(long, env = "DEV_ROOT", default_value = "/dev")]
    pub dev_root: PathBuf,
    /// Kubelet's folder.
    #[arg(long, env = "KUBELET_DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Folder of CDI specifications.
    #[arg(long, env = "CDI_DIR", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// CDI devices that every container with a GPU gets besides its own.
    #[arg(long, env = "EXTRA_CDI_DEVICES", value_delimiter = ',')]
    pub extra_cdi_devices: Vec<String>,
    /// How containers get their devices: by CDI, or by the variable that NVIDIA's runtime hook reads.
    #[arg(long, env = "ALLOCATE", value_enum, default_value_t = Allocate::Cdi)]
    pub allocate: Allocate,
    /// What happens to containers of tenants that get by envFrom what the admission policies refuse in a manifest. Without it nobody
    /// looks.
    #[arg(long, env = "HIDDEN_VARIABLES", value_enum)]
    pub hidden_variables: Option<Answer>,
    /// What containers of tenants may name in `NVIDIA_DRIVER_CAPABILITIES`.
    #[arg(long, env = "DRIVER_CAPABILITIES", value_delimiter = ',', default_value = "compute,utility")]
    pub driver_capabilities: Vec<String>,
    /// The container runtime's socket as the host sees it. Default: the first of the usual places that has one.
    #[arg(long, env = "RUNTIME_SOCKET")]
    pub runtime_socket: Option<PathBuf>,
    /// Address of health and metrics; `:PORT` listens on all addresses.
    #[arg(long, env = "HTTP", default_value = "127.0.0.1:9400", value_parser = address)]
    pub http: SocketAddr,
    /// Say which rights the agent needs, what for, and whether this account has them, and end.
    #[arg(long)]
    pub rights: bool,
    /// Flags of the log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// How containers get their devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Allocate {
    /// CDI device names.
    Cdi,
    /// `NVIDIA_VISIBLE_DEVICES`.
    Envvar,
}

impl From<Allocate> for Allocation {
    fn from(allocate: Allocate) -> Self {
        match allocate {
            Allocate::Cdi => Self::Cdi,
            Allocate::Envvar => Self::Envvar,
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    full.parse().map_err(|_| format!("`{text}` is no address: write it like 127.0.0.1:9400 or :9400"))
}

impl Args {
    /// Where to look for the driver and the kernel's trees.
    pub fn places(&self) -> Places {
        let seen = |host: &str| DriverRoot { host: host.into(), seen: below(&self.host_root, host.as_ref()) };
        let driver_roots = match &self.driver_root {
            Some(root) => vec![DriverRoot { host: root.clone(), seen: below(&self.host_root, root) }],
            None => vec![seen(OPERATOR_DRIVER), seen("/")],
        };
        // The same folder mounted at its own path is preferred: it may be writable where the host's root is not.
        let own = |root: &DriverRoot| root.host.starts_with("/run/nvidia");
        let direct = driver_roots
            .iter()
            .filter(|root| own(root))
            .map(|root| DriverRoot { host: root.host.clone(), seen: root.host.clone() });
        let sys = self.host_root.join("sys");
        Places {
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
    fn the_driver_containers_root_comes_before_the_hosts() {
        let roots = args(&["--host-root=/host"]).places().driver_roots;
        let seen: Vec<_> = roots.iter().map(|root| root.seen.to_str().unwrap()).collect();
        assert_eq!(seen, ["/run/nvidia/driver", "/host/run/nvidia/driver", "/host/"]);
        assert_eq!(args(&["--driver-root=/opt/nvidia"]).places().driver_roots.len(), 1);
    }

    #[test]
    fn a_port_alone_listens_on_all_addresses() {
        assert_eq!(args(&["--http=:9400"]).http.to_string(), "0.0.0.0:9400");
        assert!(Args::try_parse_from(["agent", "--node-name=n", "--http=nine"]).is_err());
    }
}
