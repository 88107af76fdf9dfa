//! Downloads packed charts that have a URL, once each, with `helm pull`.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{fs, sync::Mutex};

use super::{RenderError, helm};
use crate::args::Chart;

/// Time until a failed download is tried again: all tenants of a version ask for the same chart.
const RETRY: Duration = Duration::from_mins(1);

/// Time and error of the last failed download of a file. Locked while one runs: one at a time for each file.
type Failed = Arc<Mutex<Option<(Instant, RenderError)>>>;

/// Downloads by file. Not locked while one runs: a slow registry holds up its own charts alone.
static DOWNLOADS: Mutex<BTreeMap<PathBuf, Failed>> = Mutex::const_new(BTreeMap::new());

/// Makes the file of a chart that has a URL exist. Its digest is that of the chart.
pub async fn pull(program: &Path, chart: &Chart) -> Result<(), RenderError> {
    let Some(url) = &chart.url else { return Ok(()) };
    if is_present(chart).await {
        return Ok(());
    }
    let failed = DOWNLOADS.lock().await.entry(chart.file.clone()).or_default().clone();
    let mut failed = failed.lock().await;
    // another tenant's reconcile may have pulled it in the meantime
    if is_present(chart).await {
        return Ok(());
    }
    if let Some((_, error)) = failed.as_ref().filter(|(at, _)| at.elapsed() < RETRY) {
        return Err(error.clone());
    }
    let scratch = chart.file.with_extension("pull");
    let done = download(program, chart, url, &scratch).await;
    // what a failed download has left
    let _ = fs::remove_dir_all(&scratch).await;
    *failed = done.as_ref().err().map(|error| (Instant::now(), error.clone()));
    done
}

async fn is_present(chart: &Chart) -> bool {
    fs::try_exists(&chart.file).await.unwrap_or(false)
}

async fn download(program: &Path, chart: &Chart, url: &str, scratch: &Path) -> Result<(), RenderError> {
    let Chart { version, file, .. } = chart;
    let refused = |why: String| RenderError::Helm(format!("pulling the chart of version {version} from {url}: {why}"));
    let io = |error: io::Error| refused(error.to_string());
    fs::create_dir_all(scratch).await.map_err(io)?;
    let mut command = helm::command(program);
    command.args(["pull", url, "--destination"]).arg(scratch);
    if url.starts_with("oci://") {
        command.args(["--version", version]);
    }
    helm::output(command, "").await.map_err(|error| refused(cause(error)))?;
    let mut entries = fs::read_dir(scratch).await.map_err(io)?;
    let pulled = entries.next_entry().await.map_err(io)?.ok_or_else(|| refused("helm wrote no file".into()))?.path();
    let unchecked = Chart { file: pulled.clone(), url: None, ..chart.clone() };
    helm::verify(&unchecked).await.map_err(|error| refused(cause(error)))?;
    fs::rename(pulled, file).await.map_err(io)
}

/// Without the words of another command.
fn cause(error: RenderError) -> String {
    match error {
        RenderError::Helm(text) => text,
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn chart_is_pulled_once_and_only_with_its_digest() {
        let folder = std::env::temp_dir().join(format!("gputenancy-pull-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/tests/helm");
        let chart = |name: &str, url: &str, sha256: &str| Chart {
            version: "0.36.1".into(),
            file: folder.join(name),
            sha256: sha256.into(),
            url: Some(url.into()),
        };
        // the SHA-256 of "abc" is that of FIPS 180-4
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let oci = chart("right.tgz", "oci://registry.example/vcluster", right);
        for _ in 0..2 {
            pull(&program, &oci).await.unwrap();
        }
        assert_eq!(std::fs::read(&oci.file).unwrap(), b"abc");
        let wrong = chart("wrong.tgz", "https://charts.example/c.tgz", &"0".repeat(64));
        for _ in 0..2 {
            let error = pull(&program, &wrong).await.unwrap_err().to_string();
            assert!(error.contains("from https://charts.example/c.tgz") && error.contains("names 0000"), "{error}");
        }
        assert!(!wrong.file.exists() && !folder.join("wrong.pull").exists(), "an unchecked file is not kept");
        let log = std::fs::read_to_string(folder.join("log")).unwrap();
        let lines: Vec<_> = log.lines().collect();
        let scratch = folder.join("right.pull").display().to_string();
        assert_eq!(lines[0], format!("pull oci://registry.example/vcluster --destination {scratch} --version 0.36.1"));
        assert_eq!(lines.len(), 2, "the second time nothing is pulled, and a failure is not repeated at once: {log}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn download_in_progress_holds_up_no_other_file() {
        let folder = std::env::temp_dir().join(format!("gputenancy-pull-slow-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/tests/helm");
        let chart = |name: &str| Chart {
            version: "0.36.1".into(),
            file: folder.join(name),
            sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into(),
            url: Some("oci://registry.example/vcluster".into()),
        };
        let slow = DOWNLOADS.lock().await.entry(folder.join("slow.tgz")).or_default().clone();
        let busy = slow.lock().await;
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, pull(&program, &chart("other.tgz"))).await.unwrap().unwrap();
        // a file that exists needs no lock
        std::fs::write(folder.join("slow.tgz"), "abc").unwrap();
        tokio::time::timeout(limit, pull(&program, &chart("slow.tgz"))).await.unwrap().unwrap();
        drop(busy);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
