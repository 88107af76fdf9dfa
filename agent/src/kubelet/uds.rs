//! gRPC over unix sockets.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Distinguishes sockets at the same path; inode numbers alone are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(u64, i64, i64);

/// The identity of a file, if it exists.
pub fn identity(path: &Path) -> Option<Identity> {
    let meta = std::fs::metadata(path).ok()?;
    Some(Identity(meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

/// Connects now.
pub async fn connect(path: &Path, timeout: Duration) -> Result<Channel, tonic::transport::Error> {
    endpoint(timeout).connect_with_connector(connector(path)).await
}

/// Connects at the first call, and again after restarts of the server.
pub fn lazy(path: &Path, timeout: Duration) -> Channel {
    endpoint(timeout).connect_with_connector_lazy(connector(path))
}

fn endpoint(timeout: Duration) -> Endpoint {
    // the name is only the authority in requests, as kubelet sends it
    Endpoint::from_static("http://localhost").connect_timeout(timeout).timeout(timeout)
}

fn connector(
    path: &Path,
) -> impl tower::Service<
    Uri,
    Response = TokioIo<UnixStream>,
    Error = io::Error,
    Future = impl Future<Output = io::Result<TokioIo<UnixStream>>> + Send + use<>,
> + Clone
+ Send
+ use<> {
    let path: PathBuf = path.to_owned();
    tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    })
}
