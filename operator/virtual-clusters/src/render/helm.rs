//! Runs the real `helm template` on a packed chart.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncWriteExt as _, process::Command, sync::Semaphore};

use super::RenderError;
use crate::{args::Chart, hex::hex, host_api::Served};

/// A chart renders in well under a second; a loaded machine takes longer.
const TIME_LIMIT: Duration = Duration::from_mins(1);

/// One helm at a time: it takes tens of MiB, and after a restart all virtual clusters are rendered.
static ONE: Semaphore = Semaphore::const_new(1);

/// What is rendered.
#[derive(Debug, Clone, Copy)]
pub struct Release<'a> {
    /// Name of the release.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Version and APIs of this cluster's API server: some objects depend on them.
    pub served: &'a Served,
}

/// The manifests of a release. helm gets no credentials and no environment.
pub async fn template(helm: &Path, chart: &Chart, release: Release<'_>, values: &Value) -> Result<String, RenderError> {
    let _turn = ONE.acquire().await.map_err(|e| RenderError::Helm(e.to_string()))?;
    verify(chart).await?;
    let mut command = command(helm);
    command
        .args(["template", release.name])
        .arg(&chart.file)
        .args(["--namespace", release.namespace, "--kube-version", &release.served.version, "--values", "-"])
        .args(release.served.api_versions.iter().flat_map(|api| ["--api-versions", api]));
    let output = output(command, &values.to_string()).await?;
    String::from_utf8(output).map_err(|e| RenderError::Output(e.to_string()))
}

/// helm without environment.
pub(super) fn command(helm: &Path) -> Command {
    let (mut command, scratch) = (Command::new(helm), std::env::temp_dir());
    command
        .env_clear()
        .env("HOME", &scratch)
        .current_dir(&scratch)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// What a command writes, given this text.
pub(super) async fn output(mut command: Command, text: &str) -> Result<Vec<u8>, RenderError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| RenderError::Helm(format!("{what}: {error}"));
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|e| failed(&program, &e))?;
    let stdin = child.stdin.take();
    let write = async move {
        let Some(mut stdin) = stdin else { return Ok(()) };
        stdin.write_all(text.as_bytes()).await
    };
    let both = async { tokio::join!(write, child.wait_with_output()) };
    let Ok((fed, output)) = tokio::time::timeout(TIME_LIMIT, both).await else {
        return Err(RenderError::Helm(format!("no result within {} seconds", TIME_LIMIT.as_secs())));
    };
    let output = output.map_err(|e| failed("waiting for it", &e))?;
    if !output.status.success() {
        return Err(RenderError::Helm(shortened(&String::from_utf8_lossy(&output.stderr))));
    }
    fed.map_err(|e| failed("passing the values", &e))?;
    Ok(output.stdout)
}

/// The chart is applied with wide rights, so it must be exactly the chart that the platform named.
pub(super) async fn verify(chart: &Chart) -> Result<(), RenderError> {
    let Chart { version, file, sha256, .. } = chart;
    let bytes = tokio::fs::read(file).await.map_err(|e| {
        RenderError::Helm(format!("the chart of version {version} (virtualClusters.charts): {}: {e}", file.display()))
    })?;
    let digest = hex(&Sha256::digest(&bytes));
    if digest == sha256.to_lowercase() {
        return Ok(());
    }
    Err(RenderError::Helm(format!(
        "{} has the SHA-256 {digest}, and virtualClusters.charts names {sha256} for version {version}",
        file.display()
    )))
}

/// The end of helm's message, which has the cause.
fn shortened(message: &str) -> String {
    let message = message.trim();
    let from = message.len().saturating_sub(600);
    message.get(message.ceil_char_boundary(from)..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(file: &Path, sha256: &str) -> Chart {
        Chart { version: "0.36.1".into(), file: file.into(), sha256: sha256.into(), url: None }
    }

    #[tokio::test]
    async fn chart_with_another_digest_is_not_rendered() {
        let file = std::env::temp_dir().join(format!("chart-{}.tgz", std::process::id()));
        std::fs::write(&file, b"abc").unwrap();
        let served = Served { version: "v1.36.0".into(), ..Served::default() };
        let release = Release { name: "a", namespace: "b", served: &served };
        let wrong = template(Path::new("/nonexistent"), &chart(&file, &"0".repeat(64)), release, &Value::Null).await;
        assert!(wrong.unwrap_err().to_string().contains("names 0000"));
        // the SHA-256 of "abc" is that of FIPS 180-4
        let right = chart(&file, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let no_helm = template(Path::new("/nonexistent"), &right, release, &Value::Null).await;
        assert!(no_helm.unwrap_err().to_string().contains("/nonexistent: No such file"));
        std::fs::remove_file(&file).unwrap();
    }
}
