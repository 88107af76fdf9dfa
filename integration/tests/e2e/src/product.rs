//! Installs the product in a lab with helm, from the chart of this checkout.

use std::{
    path::{Path, PathBuf},
    process::Output,
};

use lab::Lab;
use tokio::process::Command;

use crate::{Error, Result};

/// Namespace of operator and agent.
pub const NAMESPACE: &str = "gputenancy-system";
/// Name of the helm release.
pub const RELEASE: &str = "gputenancy";

/// The lab's node without GPUs, which has H100s while a scene of the demo labels it.
pub const H100_NODE: &str = "cpu-1";

/// The root of the checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(3).unwrap_or(here).to_owned()
}

/// Values of the chart for the lab: its images, and simulated GPUs on the nodes that are labelled for them.
pub fn values() -> Vec<String> {
    let image = |part: &str| {
        [
            format!("image.{part}.repository=lab.local/gputenancy-{part}"),
            format!("image.{part}.tag=dev"),
            format!("image.{part}.pullPolicy=Never"),
        ]
    };
    let mut values: Vec<String> = ["operator", "agent", "simulator"].iter().flat_map(|part| image(part)).collect();
    values.push("simulator.enabled=true".into());
    values.push("simulator.board=a100-80gb".into());
    values.push("simulator.gpus=2".into());
    values.push(format!("simulator.nodeBoards.{H100_NODE}=h100-80gb"));
    // the API server is no pod: tests read metrics through its proxy
    values.push("networkPolicy.metricsFrom[0].ipBlock.cidr=10.10.0.0/24".into());
    // the lab's nodes share two processors and a small disk
    for (resource, amount) in [("cpu", "10m"), ("memory", "16Mi"), ("ephemeral-storage", "1Mi")] {
        values.push(format!("tenants.defaultRequests.{resource}={amount}"));
    }
    values
}

/// `helm upgrade --install --wait` with the lab's values and these on top.
pub async fn install(lab: &Lab, more: &[&str]) -> Result<String> {
    upgrade(lab, more, &[]).await
}

/// As [`install`], with further flags of helm, such as a file of values.
pub async fn install_with(lab: &Lab, more: &[&str], flags: &[&str]) -> Result<String> {
    upgrade(lab, more, flags).await
}

/// As [`install`], overwriting manual changes of the release's objects, which helm refuses otherwise.
pub async fn install_over_changes(lab: &Lab) -> Result<String> {
    upgrade(lab, &[], &["--force-conflicts"]).await
}

async fn upgrade(lab: &Lab, more: &[&str], flags: &[&str]) -> Result<String> {
    let chart = root().join("helm/gputenancy").display().to_string();
    let mut args: Vec<String> = [
        "upgrade",
        "--install",
        RELEASE,
        &chart,
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--wait",
        "--timeout",
        "5m",
    ]
    .map(String::from)
    .into();
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    // in place of the default, which has the label that the operator writes: it would keep the agent on a node without a simulator
    for selector in ["simulator.nodeSelector", "agent.nodeSelectors[0]"] {
        args.extend(["--set-string".into(), format!("{selector}.gputenancy\\.io/lab-gpu=true")]);
    }
    for value in values().iter().map(String::as_str).chain(more.iter().copied()) {
        args.extend(["--set".into(), value.into()]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Ok(lab.helm(&args).await?)
}

/// `helm uninstall --wait`.
pub async fn uninstall(lab: &Lab) -> Result<String> {
    Ok(lab.helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "5m"]).await?)
}

/// Runs `kubectl-gpu` with a kubeconfig, in the root of the checkout.
pub async fn kubectl_gpu(kubeconfig: &Path, args: &[&str]) -> Result<Output> {
    let io = |source| Error::Io { what: "running kubectl-gpu".into(), source };
    kubectl_gpu_command(kubeconfig, args).output().await.map_err(io)
}

/// `kubectl-gpu` with a kubeconfig, in the root of the checkout, and with the kubectl of the toolset.
pub fn kubectl_gpu_command(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut folders = vec![root().join("target/toolset/bin")];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut command = Command::new(root().join("target/debug/kubectl-gpu"));
    command.args(args).current_dir(root()).env("KUBECONFIG", kubeconfig);
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    command
}
