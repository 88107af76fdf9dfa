//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

/// Follows the label protocol of NVIDIA's MIG manager.
#[derive(Parser, Clone, Debug)]
pub struct Args {
    /// The node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// mig-parted's configs.
    #[arg(long, env = "CONFIG_FILE", default_value = "/mig-parted-config/config.yaml")]
    pub config_file: PathBuf,
    /// Root of the driver's files.
    #[arg(long, env = "DRIVER_ROOT", default_value = "/run/nvidia/driver")]
    pub driver_root: PathBuf,
    /// Namespace of the GPU Operator's pods that are waited for.
    #[arg(long, env = "DEFAULT_GPU_CLIENTS_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Seconds that each part of the GPU Operator may take to stop; five minutes in NVIDIA's program.
    #[arg(long, default_value = "300", value_parser = seconds)]
    pub wait: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).map_err(|_| "write whole seconds".to_owned())
}
