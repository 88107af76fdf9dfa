//! The container runtime of the node, over its socket: containerd's and CRI-O's answers have the same words for what is asked here.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use tonic::{Code, Status, transport::Channel};

use super::verdict::{Environment, environment};
use crate::kubelet::{
    config::below,
    proto::runtime::{
        ContainerState, ContainerStatusRequest, ImageSpec, ImageStatusRequest, StopContainerRequest,
        image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
    },
    uds,
};

/// Where runtimes listen, as the host sees it: containerd, CRI-O, and the containerd of k3s, k0s and `MicroK8s`.
const SOCKETS: &[&str] = &[
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];
/// A runtime that takes longer is asked again later.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds between the signal to end and the one that kills.
const GRACE: i64 = 2;

/// Why the runtime tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket where one is looked for.
    #[error("no container runtime listens at {0}")]
    Nowhere(String),
    /// It does not answer, or not this.
    #[error("the container runtime at {0}: {1}")]
    Refused(String, String),
}

/// What a container was started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// All its variables.
    pub env: Environment,
    /// It has not ended yet.
    pub runs: bool,
    /// How the runtime names its image: the id first.
    pub images: Vec<String>,
    /// Where the runtime that has it listens.
    pub socket: PathBuf,
}

/// The runtimes of this node.
#[derive(Clone, Debug)]
pub struct Runtime {
    sockets: Vec<PathBuf>,
}

/// The part of a container's details that is read here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerInfo {
    runtime_spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    process: Process,
}

#[derive(Deserialize)]
struct Process {
    #[serde(default)]
    env: Vec<String>,
}

/// The part of an image's details that is read here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImageInfo {
    image_spec: Image,
}

#[derive(Deserialize)]
struct Image {
    config: ImageConfig,
}

#[derive(Deserialize)]
struct ImageConfig {
    #[serde(default, rename = "Env")]
    env: Option<Vec<String>>,
}

/// Variables of a container's details.
fn of_container(info: &str) -> Result<Environment, serde_json::Error> {
    serde_json::from_str(info).map(|info: ContainerInfo| environment(&info.runtime_spec.process.env))
}

/// Variables of an image's details.
fn of_image(info: &str) -> Result<Environment, serde_json::Error> {
    let info: ImageInfo = serde_json::from_str(info)?;
    Ok(environment(&info.image_spec.config.env.unwrap_or_default()))
}

impl Runtime {
    /// The runtime at this socket of the host, or at one of the usual ones.
    pub fn new(host_root: &Path, socket: Option<&Path>) -> Self {
        let usual = || SOCKETS.iter().map(|socket| below(host_root, socket.as_ref())).collect();
        Self { sockets: socket.map_or_else(usual, |socket| vec![below(host_root, socket)]) }
    }

    /// What a container was started with; none when the runtime has removed it already.
    pub async fn started(&self, id: &str) -> Result<Option<Started>, Error> {
        let mut outcome = Err(Error::Nowhere(self.words()));
        for socket in self.sockets.iter().filter(|socket| socket.exists()) {
            match started(socket, id).await {
                Ok(Some(started)) => return Ok(Some(started)),
                Ok(None) => outcome = Ok(None),
                // of two runtimes on a node the one without kubelet may answer nothing
                Err(error) => outcome = outcome.or(Err(error)),
            }
        }
        outcome
    }

    /// What a container's image sets; nothing when the runtime has no such image any more.
    pub async fn image(&self, started: &Started) -> Result<Environment, Error> {
        let mut client = ImageServiceClient::new(channel(&started.socket));
        for image in &started.images {
            let spec = ImageSpec { image: image.clone() };
            let request = ImageStatusRequest { image: Some(spec), verbose: true };
            let answer = client.image_status(request).await.map_err(|status| refused(&started.socket, &status))?;
            if let Some(info) = answer.into_inner().info.get("info") {
                return of_image(info).map_err(|error| unreadable(&started.socket, &error));
            }
        }
        Ok(Environment::new())
    }

    /// Ends a container.
    pub async fn stop(&self, id: &str, started: &Started) -> Result<(), Error> {
        let mut client = RuntimeServiceClient::new(channel(&started.socket));
        let request = StopContainerRequest { container_id: id.to_owned(), timeout: GRACE };
        match client.stop_container(request).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Ok(()),
            Err(status) => Err(refused(&started.socket, &status)),
        }
    }

    fn words(&self) -> String {
        let all: Vec<String> = self.sockets.iter().map(|socket| socket.display().to_string()).collect();
        all.join(", ")
    }
}

async fn started(socket: &Path, id: &str) -> Result<Option<Started>, Error> {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let answer = match RuntimeServiceClient::new(channel(socket)).container_status(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == Code::NotFound => return Ok(None),
        Err(status) => return Err(refused(socket, &status)),
    };
    let status = answer.status.unwrap_or_default();
    let info: &HashMap<_, _> = &answer.info.into_iter().collect();
    let text = info.get("info").map_or("", String::as_str);
    Ok(Some(Started {
        env: of_container(text).map_err(|error| unreadable(socket, &error))?,
        runs: matches!(status.state(), ContainerState::ContainerCreated | ContainerState::ContainerRunning),
        images: [status.image_id, status.image_ref].into_iter().filter(|image| !image.is_empty()).collect(),
        socket: socket.to_owned(),
    }))
}

fn channel(socket: &Path) -> Channel {
    uds::lazy(socket, TIMEOUT)
}

fn refused(socket: &Path, status: &Status) -> Error {
    Error::Refused(socket.display().to_string(), status.message().to_owned())
}

fn unreadable(socket: &Path, error: &serde_json::Error) -> Error {
    Error::Refused(socket.display().to_string(), format!("its details cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_details_of_containerd_and_cri_o_are_read_alike() {
        let spec =
            r#"{"ociVersion": "1.2.0", "process": {"user": {"uid": 0}, "args": ["sleep"], "env": ["A=1", "B=2"]}}"#;
        let both = environment(&["A=1".to_owned(), "B=2".to_owned()]);
        let containerd = format!(r#"{{"sandboxID": "s", "pid": 7, "config": {{}}, "runtimeSpec": {spec}}}"#);
        let crio = format!(r#"{{"sandboxID": "s", "pid": 7, "runtimeSpec": {spec}, "privileged": false}}"#);
        assert_eq!(of_container(&containerd).unwrap(), both);
        assert_eq!(of_container(&crio).unwrap(), both);
        assert!(of_container("{}").is_err(), "no specification is no empty one");
        let image = r#"{"chainID": "c", "imageSpec": {"architecture": "amd64", "config": {"Env": ["A=1", "B=2"], "Cmd": ["x"]}}}"#;
        assert_eq!(of_image(image).unwrap(), both);
        assert!(of_image(r#"{"imageSpec": {"config": {}}}"#).unwrap().is_empty());
    }

    #[tokio::test]
    async fn without_a_socket_it_says_where_it_looked() {
        let root = tempfile::tempdir().unwrap();
        let error = Runtime::new(root.path(), None).started("0123").await.unwrap_err().to_string();
        assert!(error.contains("run/containerd/containerd.sock"), "{error}");
        let own = Runtime::new(root.path(), Some("/run/own.sock".as_ref())).started("0123").await.unwrap_err();
        assert_eq!(own.to_string(), format!("no container runtime listens at {}/run/own.sock", root.path().display()));
    }
}
