//! The node's container runtime, over its socket. The responses of containerd and CRI-O have the same fields as far as they are read here.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tonic::{Code, transport::Channel};

use super::violations::{Environment, parse};
use crate::{
    grpc::{
        proto::runtime::{
            ContainerFilter, ContainerState, ContainerStateValue, ContainerStatusRequest, ImageSpec,
            ImageStatusRequest, ListContainersRequest, StopContainerRequest, image_service_client::ImageServiceClient,
            runtime_service_client::RuntimeServiceClient,
        },
        uds,
    },
    kubelet::config::below,
};

/// Sockets of runtimes on the host: containerd, CRI-O, and the containerd of k3s, k0s and `MicroK8s`.
const SOCKETS: &[&str] = &[
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];
/// Limit for one call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, in bytes: also containerd's own limit. It has a container's environment twice as JSON, in which a byte can take six.
const MAX_ANSWER: usize = 16 << 20;
/// Label that kubelet gives to the containers of a pod: its UID.
const POD_UID: &str = "io.kubernetes.pod.uid";
/// Seconds between SIGTERM and SIGKILL.
const GRACE: i64 = 2;

/// Why the runtime gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// None of the sockets exists.
    #[error("no container runtime listens at {0}")]
    NoSocket(String),
    /// A call failed, or its response cannot be parsed.
    #[error("the container runtime at {0}: {1}")]
    Call(String, String),
}

/// A container as the runtime started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedContainer {
    /// All its variables.
    pub env: Environment,
    /// It has not ended.
    pub running: bool,
    /// Its variables are more than an answer can have: `env` is empty.
    pub too_large: bool,
    /// Names of its image in the runtime, the id first.
    images: Vec<String>,
    /// Socket of its runtime.
    socket: PathBuf,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// Its name in the pod.
    pub name: String,
    id: String,
    /// Socket of its runtime.
    socket: PathBuf,
}

/// The container runtimes of this node.
#[derive(Clone, Debug)]
pub struct Runtime {
    sockets: Vec<PathBuf>,
}

/// Where the details of a container have its variables: an object, and a field of it.
const OF_CONTAINER: (&str, &str) = ("/runtimeSpec/process", "env");
/// Where the details of an image have its variables.
const OF_IMAGE: (&str, &str) = ("/imageSpec/config", "Env");

/// Why the details of a container or image have no variables.
#[derive(Debug, thiserror::Error)]
enum DetailsError {
    #[error("parsing its details: {0}")]
    Json(#[from] serde_json::Error),
    #[error("its details have no {0}")]
    Lacks(String),
}

/// Variables in the details of a container or image.
fn environment(info: &str, (parent, variables): (&str, &str)) -> Result<Environment, DetailsError> {
    let info: Value = serde_json::from_str(info)?;
    let parent = info.pointer(parent).ok_or_else(|| DetailsError::Lacks(parent.to_owned()))?;
    let variables = parent.get(variables).and_then(Value::as_array);
    Ok(parse(&variables.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()))
}

impl Runtime {
    /// The runtime at this socket of the host, or at one of the usual sockets.
    pub fn new(host_root: &Path, socket: Option<&Path>) -> Self {
        let usual = || SOCKETS.iter().map(|socket| below(host_root, socket.as_ref())).collect();
        Self { sockets: socket.map_or_else(usual, |socket| vec![below(host_root, socket)]) }
    }

    /// The container with this id; none if the runtime has removed it.
    pub async fn container(&self, id: &str) -> Result<Option<StartedContainer>, Error> {
        let sockets: Vec<_> = self.sockets.iter().map(|socket| socket.display().to_string()).collect();
        let mut outcome = Err(Error::NoSocket(sockets.join(", ")));
        for socket in self.sockets.iter().filter(|socket| socket.exists()) {
            match container(socket, id).await {
                Ok(Some(container)) => return Ok(Some(container)),
                Ok(None) => outcome = Ok(None),
                // of two runtimes on a node the one without kubelet may not answer
                Err(error) => outcome = outcome.or(Err(error)),
            }
        }
        outcome
    }

    /// Variables of a container's image; none if the runtime has removed the image.
    pub async fn image(&self, container: &StartedContainer) -> Result<Environment, Error> {
        let socket = &container.socket;
        let mut client = ImageServiceClient::new(channel(socket)).max_decoding_message_size(MAX_ANSWER);
        for image in &container.images {
            let spec = ImageSpec { image: image.clone() };
            let request = ImageStatusRequest { image: Some(spec), verbose: true };
            let response = client.image_status(request).await.map_err(|status| failed(socket, status.message()))?;
            if let Some(info) = response.into_inner().info.get("info") {
                return environment(info, OF_IMAGE).map_err(|error| failed(socket, &error.to_string()));
            }
        }
        Ok(Environment::new())
    }

    /// The containers of a pod that run, by the pod's UID. Kubelet does not report a container whose `postStart` hook has not ended.
    pub async fn running(&self, uid: &str) -> Result<Vec<RunningContainer>, Error> {
        let sockets: Vec<_> = self.sockets.iter().map(|socket| socket.display().to_string()).collect();
        let mut answers = Vec::new();
        for socket in self.sockets.iter().filter(|socket| socket.exists()) {
            answers.push(running(socket, uid).await);
        }
        if answers.is_empty() { Err(Error::NoSocket(sockets.join(", "))) } else { of_all(answers) }
    }

    /// Stops a container, with SIGKILL after [`GRACE`].
    pub async fn stop(&self, id: &str, container: &StartedContainer) -> Result<(), Error> {
        stop(&container.socket, id, GRACE).await
    }

    /// Stops a container: with SIGTERM, and with SIGKILL after so many seconds; 0: with SIGKILL at once.
    pub async fn kill(&self, container: &RunningContainer, seconds: i64) -> Result<(), Error> {
        stop(&container.socket, &container.id, seconds).await
    }
}

/// The containers of all runtimes. Of two runtimes on a node the one without kubelet may not answer; but if the other has no container of
/// the pod, it may be the one without kubelet.
fn of_all(answers: Vec<Result<Vec<RunningContainer>, Error>>) -> Result<Vec<RunningContainer>, Error> {
    let (mut all, mut failure) = (Vec::new(), None);
    for answer in answers {
        match answer {
            Ok(containers) => all.extend(containers),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if all.is_empty() => Err(error),
        _ => Ok(all),
    }
}

async fn stop(socket: &Path, id: &str, timeout: i64) -> Result<(), Error> {
    let mut client = RuntimeServiceClient::new(channel(socket));
    match client.stop_container(StopContainerRequest { container_id: id.to_owned(), timeout }).await {
        Err(status) if status.code() != Code::NotFound => Err(failed(socket, status.message())),
        _ => Ok(()),
    }
}

async fn running(socket: &Path, uid: &str) -> Result<Vec<RunningContainer>, Error> {
    let state = ContainerStateValue { state: ContainerState::ContainerRunning.into() };
    let label_selector = [(POD_UID.to_owned(), uid.to_owned())].into_iter().collect();
    let request = ListContainersRequest { filter: Some(ContainerFilter { state: Some(state), label_selector }) };
    let mut client = RuntimeServiceClient::new(channel(socket));
    let response = client.list_containers(request).await.map_err(|status| failed(socket, status.message()))?;
    let found = response.into_inner().containers.into_iter();
    let found = found.map(|container| {
        let name = container.metadata.map(|metadata| metadata.name).unwrap_or_default();
        RunningContainer { name, id: container.id, socket: socket.to_owned() }
    });
    Ok(found.collect())
}

async fn container(socket: &Path, id: &str) -> Result<Option<StartedContainer>, Error> {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let mut client = RuntimeServiceClient::new(channel(socket)).max_decoding_message_size(MAX_ANSWER);
    let response = match client.container_status(request).await {
        Ok(response) => response.into_inner(),
        Err(status) if status.code() == Code::NotFound => return Ok(None),
        // the first from the runtime, the second from this client
        Err(status) if matches!(status.code(), Code::ResourceExhausted | Code::OutOfRange) => {
            let socket = socket.to_owned();
            let (env, images) = (Environment::new(), Vec::new());
            return Ok(Some(StartedContainer { env, running: true, too_large: true, images, socket }));
        }
        Err(status) => return Err(failed(socket, status.message())),
    };
    let status = response.status.unwrap_or_default();
    let info = response.info.get("info").map_or("", String::as_str);
    Ok(Some(StartedContainer {
        env: environment(info, OF_CONTAINER).map_err(|error| failed(socket, &error.to_string()))?,
        too_large: false,
        running: matches!(status.state(), ContainerState::ContainerCreated | ContainerState::ContainerRunning),
        images: [status.image_id, status.image_ref].into_iter().filter(|image| !image.is_empty()).collect(),
        socket: socket.to_owned(),
    }))
}

fn channel(socket: &Path) -> Channel {
    uds::endpoint(socket, TIMEOUT).connect_lazy()
}

fn failed(socket: &Path, message: &str) -> Error {
    Error::Call(socket.display().to_string(), message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_containerd_and_cri_o_have_the_same_variables() {
        let spec =
            r#"{"ociVersion": "1.2.0", "process": {"user": {"uid": 0}, "args": ["sleep"], "env": ["A=1", "B=2"]}}"#;
        let both = parse(&["A=1".to_owned(), "B=2".to_owned()]);
        let containerd = format!(r#"{{"sandboxID": "s", "pid": 7, "config": {{}}, "runtimeSpec": {spec}}}"#);
        let crio = format!(r#"{{"sandboxID": "s", "pid": 7, "runtimeSpec": {spec}, "privileged": false}}"#);
        assert_eq!(environment(&containerd, OF_CONTAINER).unwrap(), both);
        assert_eq!(environment(&crio, OF_CONTAINER).unwrap(), both);
        assert!(environment("{}", OF_CONTAINER).is_err(), "a missing specification is an error");
        let image = r#"{"chainID": "c", "imageSpec": {"architecture": "amd64", "config": {"Env": ["A=1", "B=2"], "Cmd": ["x"]}}}"#;
        assert_eq!(environment(image, OF_IMAGE).unwrap(), both);
        assert!(environment(r#"{"imageSpec": {"config": {}}}"#, OF_IMAGE).unwrap().is_empty());
    }

    #[test]
    fn empty_list_of_one_runtime_does_not_hide_the_error_of_another() {
        let error = || Err(failed("/run/crio/crio.sock".as_ref(), "connection refused"));
        let (name, id) = ("main".to_owned(), "0123".to_owned());
        let main = RunningContainer { name, id, socket: "/run/containerd/containerd.sock".into() };
        for answers in [vec![Ok(vec![]), error()], vec![error(), Ok(vec![])], vec![error()]] {
            let message = of_all(answers).unwrap_err().to_string();
            assert_eq!(message, "the container runtime at /run/crio/crio.sock: connection refused");
        }
        for answers in [vec![Ok(vec![main.clone()]), error()], vec![error(), Ok(vec![main.clone()]), Ok(vec![])]] {
            assert_eq!(of_all(answers).unwrap(), std::slice::from_ref(&main));
        }
        assert_eq!(of_all(vec![Ok(vec![]), Ok(vec![])]).unwrap(), []);
    }

    #[tokio::test]
    async fn runtime_without_a_socket_names_the_paths() {
        let root = tempfile::tempdir().unwrap();
        let error = Runtime::new(root.path(), None).container("0123").await.unwrap_err().to_string();
        assert!(error.contains("run/containerd/containerd.sock"), "{error}");
        let own = Runtime::new(root.path(), Some("/run/own.sock".as_ref())).container("0123").await.unwrap_err();
        assert_eq!(own.to_string(), format!("no container runtime listens at {}/run/own.sock", root.path().display()));
    }
}
