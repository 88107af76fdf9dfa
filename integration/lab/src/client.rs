//! The client of the lab's API server.

use crate::error::{Asking, Error, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::path::Path;

/// A client from a kubeconfig file.
pub async fn from_file(path: &Path) -> Result<Client> {
    let invalid = |why: String| Error::Invalid { what: path.display().to_string(), why };
    let file = Kubeconfig::read_from(path).map_err(|error| invalid(error.to_string()))?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(file, &options).await.map_err(|error| invalid(error.to_string()))?;
    Client::try_from(config).asking(|| format!("using {}", path.display()))
}
