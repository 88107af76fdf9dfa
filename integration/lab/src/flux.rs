//! Flux in a lab: source-controller and helm-controller as Flux's project builds them, next to the control plane.

use crate::component::CHARTS;
use crate::control::Request;
use crate::error::{During, Error, Result};
use crate::lab::Lab;
use std::fs;
use std::path::PathBuf;

/// In the order of their start.
const COMPONENTS: [&str; 3] = ["chart-server", "source-controller", "helm-controller"];
/// How long the API server has to serve the resources.
const SERVED: &str = "--timeout=2m";

impl Lab {
    /// Starts Flux's controllers with these packed charts of the toolset in a Helm repository; returns its URL. Resources and controllers stay
    /// until [`Lab::stop_flux`].
    pub async fn start_flux(&self, charts: &[&str]) -> Result<String> {
        for name in COMPONENTS {
            self.inner.folders.tool(name)?;
        }
        // removed with the lab
        let folder = self.inner.folder.join("home/charts");
        fs::create_dir_all(&folder).during(|| format!("creating {}", folder.display()))?;
        for chart in charts {
            let to = folder.join(chart);
            fs::copy(self.inner.folders.chart(chart)?, &to).during(|| format!("writing {}", to.display()))?;
        }
        let folder = folder.display().to_string();
        self.helm(&["repo", "index", &folder]).await?;
        let resources = self.flux_resources()?.display().to_string();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &resources]).await?;
        self.kubectl(&["wait", "--for=condition=Established", SERVED, "-f", &resources]).await?;
        self.ask(&Request::Flux(folder)).await?;
        for name in COMPONENTS {
            self.start_component(name).await?;
        }
        Ok(format!("https://{CHARTS}"))
    }

    /// Stops the controllers, and deletes their resources with all objects.
    pub async fn stop_flux(&self) -> Result<()> {
        let status = self.status().await?;
        for name in COMPONENTS.into_iter().filter(|name| status.components.contains_key(*name)) {
            self.stop_component(name).await?;
        }
        let resources = self.flux_resources()?.display().to_string();
        self.kubectl(&["delete", "--ignore-not-found", "--wait=false", "-f", &resources]).await.map(drop)
    }

    /// The folder with the `CustomResourceDefinitions`.
    fn flux_resources(&self) -> Result<PathBuf> {
        let path = self.inner.folders.toolset.join("flux-crds");
        // kubectl does not follow a link to a folder
        let found = fs::canonicalize(&path);
        found.map_err(|_| Error::Missing(format!("{} is missing: run `make virtual-clusters`", path.display())))
    }
}
