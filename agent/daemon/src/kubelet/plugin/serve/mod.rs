//! Serves the plugin of one resource on its socket, and registers it with each run of kubelet.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sha2::{Digest as _, Sha256};
use tokio::{net::UnixListener, sync::Notify, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;

use super::{self as own, Plugin};
use crate::{
    grpc::{
        proto::plugin::{
            self, RegisterRequest, device_plugin_server::DevicePluginServer, registration_client::RegistrationClient,
        },
        uds,
    },
    kubelet::chain,
};

/// kubelet connects to the plugin before it answers, within ten seconds.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(12);
/// Delay between attempts.
const RETRY: Duration = Duration::from_millis(250);
/// Poll interval of the sockets: kubelet empties its folder when it starts.
const SOCKET_POLL: Duration = Duration::from_millis(500);
/// kubelet calls `ListAndWatch` right after a registration.
const WATCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the next registration: if the old call ended after it, kubelet would close the new one.
const CLOSE_DELAY: Duration = Duration::from_millis(200);

/// Most characters of a resource in the name of its socket. The path of a socket has 107 bytes at most (`sun_path` of unix(7)); this leaves 43 for
/// the folder, which by default has 32.
const LEGIBLE: usize = 40;

/// File name of a resource's socket: what can be read of the resource, and a hash, because resources that differ only in other characters, or only
/// at their end, must not share a socket.
pub fn socket_name(resource: &str) -> String {
    let legible = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let slug: String = resource.chars().take(LEGIBLE).map(legible).collect();
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(resource));
    format!("gputenancy-{slug}-{:08x}.sock", u32::from_be_bytes([a, b, c, d]))
}

/// Serves and registers until `plugin.stop`; `register` starts over.
pub async fn serve(plugin: Plugin, register: Arc<Notify>) {
    let stop = plugin.stop.clone();
    let mut warned = false;
    while !stop.is_cancelled() {
        match session(&plugin, &register).await {
            Ok(()) => warned = false,
            // kubelet may be down for long: one warning is enough
            Err(error) if warned => tracing::debug!(resource = plugin.resource, %error, "plugin not registered"),
            Err(error) => {
                tracing::warn!(resource = plugin.resource, %error, "plugin not registered");
                warned = true;
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Why the plugin is not registered.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("connecting to {}: {}", .0.display(), .1)]
    Connect(PathBuf, String),
    #[error("listening on {}: {}", .0.display(), .1)]
    Listen(PathBuf, #[source] io::Error),
    #[error("registering with kubelet: {0}")]
    Register(#[from] tonic::Status),
    #[error("kubelet accepted the registration and does not watch the device list")]
    NotWatched,
}

/// From one registration to the loss of kubelet.
async fn session(plugin: &Plugin, register: &Notify) -> Result<(), SessionError> {
    let folder = plugin.config.plugin_dir();
    let kubelet = plugin.config.kubelet_socket();
    // kubelet empties its folder before it listens, so the plugin's socket stays if it is created after this
    let channel = uds::endpoint(&kubelet, REGISTER_TIMEOUT).connect().await;
    let channel = channel.map_err(|error| SessionError::Connect(kubelet.clone(), chain(&error)))?;
    let kubelet_id = uds::identity(&kubelet);
    let own_socket = folder.join(socket_name(&plugin.resource));
    let server = Server::start(plugin, &own_socket).map_err(|error| SessionError::Listen(own_socket.clone(), error))?;
    let register_and_wait = async {
        let request = RegisterRequest {
            version: plugin::VERSION.to_owned(),
            endpoint: socket_name(&plugin.resource),
            resource_name: plugin.resource.clone(),
            options: Some(own::options(plugin)),
        };
        let registered = RegistrationClient::new(channel).register(request).await;
        registered?;
        let watched = tokio::time::timeout(WATCH_TIMEOUT, plugin.watchers.wait(true)).await;
        watched.map_err(|_| SessionError::NotWatched)?;
        tracing::info!(resource = plugin.resource, "registered plugin with kubelet");
        Ok(())
    };
    let outcome = plugin.stop.run_until_cancelled(register_and_wait).await.unwrap_or(Ok(()));
    if outcome.is_ok() {
        let sockets = (kubelet_id, uds::identity(&own_socket));
        tokio::select! {
            biased;
            () = plugin.stop.cancelled() => {}
            () = register.notified() => tracing::warn!(resource = plugin.resource, "kubelet has a stale device list; registering again"),
            () = plugin.watchers.wait(false) => tracing::warn!(resource = plugin.resource, "kubelet ended the watch"),
            () = replaced(&kubelet, &own_socket, sockets) => tracing::info!(resource = plugin.resource, "kubelet restarted"),
        }
    }
    server.stop().await;
    tokio::time::sleep(CLOSE_DELAY).await;
    outcome
}

/// Waits until one of the two sockets is replaced or removed.
async fn replaced(kubelet: &Path, own: &Path, before: (Option<uds::Identity>, Option<uds::Identity>)) {
    while (uds::identity(kubelet), uds::identity(own)) == before {
        tokio::time::sleep(SOCKET_POLL).await;
    }
}

/// A running server.
struct Server {
    stop: CancellationToken,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
    socket: PathBuf,
}

impl Server {
    fn start(plugin: &Plugin, socket: &Path) -> io::Result<Self> {
        crate::kubelet::remove_if_exists(socket)?;
        let listener = UnixListener::bind(socket)?;
        let stop = plugin.stop.child_token();
        let service = DevicePluginServer::new(Plugin { stop: stop.clone(), ..plugin.clone() });
        let server = tonic::transport::Server::builder().add_service(service);
        let connections = UnixListenerStream::new(listener);
        let task = tokio::spawn(server.serve_with_incoming_shutdown(connections, stop.clone().cancelled_owned()));
        Ok(Self { stop, task, socket: socket.to_owned() })
    }

    async fn stop(mut self) {
        self.stop.cancel();
        // calls that do not end by themselves are aborted
        if tokio::time::timeout(Duration::from_secs(1), &mut self.task).await.is_err() {
            self.task.abort();
        }
        // kubelet may have removed it
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests;
