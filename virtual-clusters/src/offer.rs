//! Which backends the platform offers, and where vCluster's chart is taken from: the command line's part.

use std::str::FromStr;

use clap::ArgAction;
use gputenancy_crds::{VirtualClusterBackend, reasons};

use crate::report::Report;

/// What the platform offers to tenants.
#[derive(clap::Args, Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Where Flux and Argo CD take vCluster's chart from: a Helm repository, `https://…`, or the folder of the chart in an OCI registry,
    /// `oci://…`.
    #[arg(long, env = "REPOSITORY", default_value = "https://charts.loft.sh")]
    pub repository: Repository,
    /// Serve the backend `FluxHelmRelease`.
    #[arg(long, env = "FLUX", default_value_t = false, action = ArgAction::Set)]
    pub flux: bool,
    /// Namespace of Argo CD, for the backend `ArgoApplication`. Empty: it is not served.
    #[arg(long, env = "ARGO_NAMESPACE", default_value = "")]
    pub argo_namespace: String,
    /// Project of Argo CD for the Applications.
    #[arg(long, env = "ARGO_PROJECT", default_value = "default")]
    pub argo_project: String,
}

impl Offer {
    /// Why this backend is not served; `None`: it is.
    pub fn refusal(&self, backend: VirtualClusterBackend) -> Option<Report> {
        let needed = match backend {
            VirtualClusterBackend::FluxHelmRelease if !self.flux => "virtualClusters.flux=true",
            VirtualClusterBackend::ArgoApplication if self.argo_namespace.is_empty() => {
                "virtualClusters.argo.namespace, the namespace of Argo CD"
            }
            _ => return None,
        };
        let message = format!(
            "spec.virtualCluster.backend: {backend:?} is not offered: set {needed} in the chart's values, or remove spec.virtualCluster and choose another backend"
        );
        Some(Report::failed(reasons::BACKEND_NOT_OFFERED, message))
    }
}

/// A repository of charts: a Helm repository, or a folder of an OCI registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository(String);

impl Repository {
    /// The URL, without a slash at its end.
    pub fn url(&self) -> &str {
        &self.0
    }

    /// The registry and folder, if it is in an OCI registry.
    pub fn oci(&self) -> Option<&str> {
        self.0.strip_prefix("oci://")
    }
}

impl FromStr for Repository {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = text.trim_end_matches('/');
        let place = url.strip_prefix("https://").or_else(|| url.strip_prefix("oci://"));
        match place {
            Some(place) if !place.is_empty() && !place.contains(|c: char| c.is_whitespace() || c == '@') => {
                Ok(Self(url.into()))
            }
            _ => Err("virtualClusters.repository: write https://HOST/PATH of a Helm repository, or oci://HOST/PATH of a registry; without credentials".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flux: bool, argo: &str) -> Offer {
        let repository = "https://charts.loft.sh".parse().unwrap();
        Offer { repository, flux, argo_namespace: argo.into(), argo_project: "default".into() }
    }

    #[test]
    fn backend_that_is_not_offered_names_the_chart_value() {
        use VirtualClusterBackend::{ArgoApplication, External, FluxHelmRelease, Helm};
        let why = |backend| offer(false, "").refusal(backend).map(|r| r.message).unwrap_or_default();
        assert!(why(FluxHelmRelease).contains("virtualClusters.flux=true"), "{}", why(FluxHelmRelease));
        assert!(why(ArgoApplication).contains("ArgoApplication is not offered: set virtualClusters.argo.namespace"));
        assert_eq!((why(Helm), why(External)), (String::new(), String::new()));
        assert_eq!(offer(true, "").refusal(FluxHelmRelease), None);
        assert_eq!(offer(false, "argocd").refusal(ArgoApplication), None);
    }

    #[test]
    fn repository_is_https_or_oci_and_has_no_credentials() {
        let read = |text: &str| text.parse::<Repository>();
        assert_eq!(read("https://charts.loft.sh/").unwrap().url(), "https://charts.loft.sh");
        assert_eq!(read("oci://registry.example/charts").unwrap().oci(), Some("registry.example/charts"));
        for wrong in
            ["", "http://charts.example", "https://", "https://user:secret@host", "charts.loft.sh", "https://a b"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
