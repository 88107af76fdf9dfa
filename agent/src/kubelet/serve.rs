//! Keeps one resource's plugin server on its socket and registered, whatever kubelet does.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{net::UnixListener, sync::Notify, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;

use super::{
    plugin::{self as own, Plugin},
    proto::plugin::{
        self, RegisterRequest, device_plugin_server::DevicePluginServer, registration_client::RegistrationClient,
    },
    uds,
};

/// kubelet dials back before it answers, and gives that ten seconds.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(12);
/// Between attempts while kubelet is away.
const RETRY: Duration = Duration::from_millis(250);
/// Between looks at the sockets: kubelet wipes its folder when it starts.
const LOOK: Duration = Duration::from_millis(500);
/// kubelet opens `ListAndWatch` right after a registration.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
/// kubelet that sees an old call end after a new registration closes the new one: let it see the end first.
const FAREWELL: Duration = Duration::from_millis(200);

/// Why a plugin is not registered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// kubelet is not there.
    #[error("connecting to kubelet's registration socket")]
    Connect(#[from] tonic::transport::Error),
    /// The plugin's socket cannot be made.
    #[error("listening on {0}")]
    Listen(PathBuf, #[source] io::Error),
    /// kubelet said no.
    #[error("registering with kubelet: {0}")]
    Register(#[from] tonic::Status),
    /// kubelet said yes and did not come.
    #[error("kubelet accepted the registration but does not listen")]
    NotListening,
}

/// File name of a resource's socket.
pub fn socket_name(resource: &str) -> String {
    let slug: String = resource.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    format!("gputenancy-{slug}.sock")
}

/// Serves and registers until `plugin.stop`; `renew` makes it start over.
pub async fn keep(plugin: Plugin, folder: PathBuf, renew: Arc<Notify>) {
    let stop = plugin.stop.clone();
    let mut quiet = false;
    while !stop.is_cancelled() {
        match one_life(&plugin, &folder, &renew).await {
            Ok(()) => quiet = false,
            // kubelet may be away for long: once is enough
            Err(error) if quiet => tracing::debug!(resource = plugin.resource, %error, "not registered"),
            Err(error) => {
                tracing::warn!(
                    resource = plugin.resource,
                    error = super::chain(&error),
                    "not registered; trying again"
                );
                quiet = true;
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// From one registration to the loss of kubelet.
async fn one_life(plugin: &Plugin, folder: &Path, renew: &Notify) -> Result<(), Error> {
    let kubelet = folder.join("kubelet.sock");
    // connected: then kubelet has wiped its folder already, and our socket survives
    let channel = uds::connect(&kubelet, REGISTER_TIMEOUT).await?;
    let met = uds::identity(&kubelet);
    let own_socket = folder.join(socket_name(&plugin.resource));
    let served = Served::start(plugin, &own_socket).map_err(|error| Error::Listen(own_socket.clone(), error))?;
    let outcome = async {
        RegistrationClient::new(channel).register(registration(&plugin.resource)).await?;
        tokio::time::timeout(LISTEN_TIMEOUT, plugin.listeners.wait(true)).await.map_err(|_| Error::NotListening)?;
        tracing::info!(resource = plugin.resource, "registered with kubelet");
        Ok(())
    };
    let outcome = tokio::select! {
        outcome = outcome => outcome,
        () = plugin.stop.cancelled() => Ok(()),
    };
    if outcome.is_ok() {
        let present = (met, uds::identity(&own_socket));
        tokio::select! {
            biased;
            () = plugin.stop.cancelled() => {}
            () = renew.notified() => tracing::warn!(resource = plugin.resource, "kubelet does not list what it was told; connecting anew"),
            () = plugin.listeners.wait(false) => tracing::warn!(resource = plugin.resource, "kubelet stopped listening"),
            () = replaced(&kubelet, &own_socket, present) => tracing::info!(resource = plugin.resource, "kubelet was restarted"),
        }
    }
    served.end().await;
    tokio::time::sleep(FAREWELL).await;
    outcome
}

fn registration(resource: &str) -> RegisterRequest {
    RegisterRequest {
        version: plugin::VERSION.to_owned(),
        endpoint: socket_name(resource),
        resource_name: resource.to_owned(),
        options: Some(own::options()),
    }
}

/// Waits until one of the two sockets is another or gone.
async fn replaced(kubelet: &Path, own: &Path, before: (Option<uds::Identity>, Option<uds::Identity>)) {
    while (uds::identity(kubelet), uds::identity(own)) == before {
        tokio::time::sleep(LOOK).await;
    }
}

/// A running server.
struct Served {
    stop: CancellationToken,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
    socket: PathBuf,
}

impl Served {
    fn start(plugin: &Plugin, socket: &Path) -> io::Result<Self> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        let stop = plugin.stop.child_token();
        let service = DevicePluginServer::new(Plugin { stop: stop.clone(), ..plugin.clone() });
        let server = tonic::transport::Server::builder().add_service(service);
        let connections = UnixListenerStream::new(listener);
        let task = tokio::spawn(server.serve_with_incoming_shutdown(connections, stop.clone().cancelled_owned()));
        Ok(Self { stop, task, socket: socket.to_owned() })
    }

    async fn end(mut self) {
        self.stop.cancel();
        // calls that do not end by themselves are cut off
        if tokio::time::timeout(Duration::from_secs(1), &mut self.task).await.is_err() {
            self.task.abort();
        }
        // kubelet takes files away as well
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests;
