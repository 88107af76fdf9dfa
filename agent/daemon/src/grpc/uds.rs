//! gRPC over unix sockets.

use std::{os::unix::fs::MetadataExt, path::Path, time::Duration};

pub use gputenancy_agent_core::warm_up::SocketIdentity as Identity;
use tonic::transport::Endpoint;

/// The identity of a file, if it exists.
pub fn identity(path: &Path) -> Option<Identity> {
    let meta = std::fs::metadata(path).ok()?;
    Some(Identity(meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

/// How long ago a file was created or replaced; zero if that is in the future of the clock.
pub fn age(path: &Path) -> Option<Duration> {
    let changed = std::fs::metadata(path).ok()?.modified().ok()?;
    Some(changed.elapsed().unwrap_or_default())
}

/// The server at a socket. Connecting and each call have this limit.
pub fn endpoint(path: &Path, timeout: Duration) -> Endpoint {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()));
    // cannot fail: any text is a path
    let endpoint = endpoint.unwrap_or_else(|_| Endpoint::from_static("unix:"));
    endpoint.connect_timeout(timeout).timeout(timeout)
}
