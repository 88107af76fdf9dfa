//! The kubeconfig of a tenant's virtual cluster, made from the Secret that its status names.
//!
//! The team can write that Secret, and a kubeconfig can name a program that kubectl runs: only certificate authority and token are taken from
//! it, and the rest is written here.

use gputenancy_cluster::error::sentence;
use gputenancy_crds::{GpuTenant, VirtualClusterStatus, condition::READY};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

/// Why there is no kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// No tenant has this name.
    #[error("there is no GpuTenant {0}: kubectl get gputenants lists them")]
    NoTenant(String),
    /// The user may not read the tenant.
    #[error("you may not read GpuTenant {0}: those in its spec.owners and spec.viewers may")]
    Forbidden(String),
    /// The tenant cannot be read.
    #[error("reading GpuTenant {tenant}: {}", sentence(&**source))]
    Tenant {
        /// Its name.
        tenant: String,
        /// The error.
        source: Box<kube::Error>,
    },
    /// The tenant has namespaces only.
    #[error(
        "GpuTenant {tenant} has no virtual cluster (spec.virtualCluster is not set). Its namespaces are on this cluster: {}. \
         Use your own kubeconfig: kubectl -n {} get pods",
        .namespaces.join(", "), .namespaces.first().map_or("NAMESPACE", String::as_str)
    )]
    NoVirtualCluster {
        /// The tenant.
        tenant: String,
        /// Its namespaces.
        namespaces: Vec<String>,
    },
    /// The virtual cluster has not come so far.
    #[error("the virtual cluster of GpuTenant {tenant} has no kubeconfig yet: {reason}")]
    NotReady {
        /// The tenant.
        tenant: String,
        /// Its condition.
        reason: String,
    },
    /// The Secret cannot be read.
    #[error(
        "Secret {secret} cannot be read: {}; owners of GpuTenant {tenant} may read it, viewers may not", sentence(&**source)
    )]
    Secret {
        /// Namespace and name.
        secret: String,
        /// The tenant.
        tenant: String,
        /// The error.
        source: Box<kube::Error>,
    },
    /// The Secret has no kubeconfig of this product.
    #[error("Secret {secret} has no token: see KubeconfigReady in kubectl describe gputenant {tenant}")]
    NoToken {
        /// Namespace and name.
        secret: String,
        /// The tenant.
        tenant: String,
    },
    /// The kubeconfig cannot be written as YAML.
    #[error("writing YAML: {0}")]
    Yaml(#[from] serde_saphyr::SerializeError),
}

/// Reads the Secret and makes the kubeconfig.
pub async fn read(client: &Client, tenant: &str) -> Result<String, KubeconfigError> {
    let place = Place::of(&find(client, tenant).await?)?;
    credentials(client, &place).await?.kubeconfig(&place.tenant, &place.server, None)
}

/// The tenant.
pub(crate) async fn find(client: &Client, name: &str) -> Result<GpuTenant, KubeconfigError> {
    Api::<GpuTenant>::all(client.clone()).get(name).await.map_err(|error| match error {
        kube::Error::Api(status) if status.is_not_found() => KubeconfigError::NoTenant(name.to_owned()),
        kube::Error::Api(status) if status.is_forbidden() => KubeconfigError::Forbidden(name.to_owned()),
        error => KubeconfigError::Tenant { tenant: name.to_owned(), source: Box::new(error) },
    })
}

/// Where the kubeconfig of a virtual cluster is, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Name of the tenant, and of the Service of its virtual cluster.
    pub tenant: String,
    /// Namespace of the Secret and of the Service.
    pub namespace: String,
    secret: String,
    /// Address of the API server inside this cluster, or as `expose` says.
    server: String,
}

impl Place {
    /// Of a tenant whose virtual cluster has a kubeconfig; or why there is none.
    pub fn of(tenant: &GpuTenant) -> Result<Self, KubeconfigError> {
        let name = tenant.name_any();
        if tenant.spec.virtual_cluster.is_none() {
            let namespaces = tenant.spec.namespaces.iter().map(|n| n.name.clone()).collect();
            return Err(KubeconfigError::NoVirtualCluster { tenant: name, namespaces });
        }
        let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.clone()).unwrap_or_default();
        let reason = reason(&name, &status, READY);
        match (status.namespace, status.kubeconfig_secret, status.server) {
            (Some(namespace), Some(secret), Some(server)) => Ok(Self { tenant: name, namespace, secret, server }),
            _ => Err(KubeconfigError::NotReady { tenant: name, reason }),
        }
    }
}

/// Reason and message of a condition of the virtual cluster.
pub(crate) fn reason(tenant: &str, status: &VirtualClusterStatus, type_: &str) -> String {
    let found = status.conditions.iter().find(|c| c.type_ == type_);
    found
        .map_or_else(|| format!("see kubectl describe gputenant {tenant}"), |c| format!("{} ({})", c.message, c.reason))
}

/// What is taken from the Secret.
#[derive(PartialEq, Eq)]
pub(crate) struct Credentials {
    authority: String,
    token: String,
}

/// Reads the Secret.
pub(crate) async fn credentials(client: &Client, place: &Place) -> Result<Credentials, KubeconfigError> {
    let Place { tenant, namespace, secret: name, .. } = place;
    let (tenant, secret) = (tenant.clone(), format!("{namespace}/{name}"));
    let found = match Api::<Secret>::namespaced(client.clone(), namespace).get(name).await {
        Ok(found) => found,
        Err(error) => return Err(KubeconfigError::Secret { secret, tenant, source: Box::new(error) }),
    };
    let config = found.data.and_then(|mut d| d.remove("config")).map(|c| c.0).unwrap_or_default();
    let parsed: Value = serde_saphyr::from_str(&String::from_utf8_lossy(&config)).unwrap_or_default();
    Credentials::of(&parsed).ok_or(KubeconfigError::NoToken { secret, tenant })
}

impl Credentials {
    /// Of a kubeconfig; `None`: it has none.
    fn of(config: &Value) -> Option<Self> {
        let text = |at: &str, more: &str| {
            let text = config.pointer(at)?.as_str()?;
            let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
            plain.then(|| text.to_owned())
        };
        let authority = text("/clusters/0/cluster/certificate-authority-data", "+/=")?;
        Some(Self { authority, token: text("/users/0/user/token", "-_.")? })
    }

    /// A kubeconfig with these credentials for a server; `certified`: the name in the server's certificate, where the address has another one.
    pub fn kubeconfig(&self, name: &str, server: &str, certified: Option<&str>) -> Result<String, KubeconfigError> {
        let mut cluster = json!({"server": server, "certificate-authority-data": self.authority});
        if let (Some(certified), Some(fields)) = (certified, cluster.as_object_mut()) {
            fields.insert("tls-server-name".into(), certified.into());
        }
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": self.token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        });
        Ok(serde_saphyr::to_string(&config)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(spec: &Value, status: &Value) -> GpuTenant {
        let metadata = json!({"name": "team-a"});
        serde_json::from_value(json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": metadata, "spec": spec,
            "status": {"virtualCluster": status},
        }))
        .unwrap()
    }

    #[test]
    fn missing_kubeconfig_says_why() {
        let spec = json!({"namespaces": [{"name": "a"}], "virtualCluster": {"version": "0.36.1"}});
        let error = Place::of(&tenant(&spec, &json!({}))).unwrap_err().to_string();
        assert!(error.ends_with("has no kubeconfig yet: see kubectl describe gputenant team-a"), "{error}");
        let condition = json!({"type": "Ready", "status": "False", "reason": "ControlPlaneStarting", "message": "it has no pod",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let error = Place::of(&tenant(&spec, &json!({"conditions": [condition]}))).unwrap_err().to_string();
        assert!(error.ends_with("has no kubeconfig yet: it has no pod (ControlPlaneStarting)"), "{error}");
    }

    #[test]
    fn tenant_without_a_virtual_cluster_names_its_namespaces() {
        let plain = tenant(&json!({"namespaces": [{"name": "a-dev"}, {"name": "a-prod"}]}), &json!({}));
        let error = Place::of(&plain).unwrap_err().to_string();
        assert!(
            error.contains("are on this cluster: a-dev, a-prod. Use your own kubeconfig: kubectl -n a-dev"),
            "{error}"
        );
    }

    #[test]
    fn programs_and_servers_of_the_secret_are_left_out() {
        let config = json!({
            "clusters": [{"cluster": {"server": "https://evil.example", "certificate-authority-data": "QUJD"}}],
            "users": [{"user": {"token": "a.b-c", "exec": {"command": "/bin/evil"}}}],
        });
        let made = Credentials::of(&config).unwrap();
        let text = made.kubeconfig("team-a", "https://team-a.ns.svc", None).unwrap();
        assert!(text.contains("https://team-a.ns.svc") && text.contains("a.b-c") && !text.contains("evil"), "{text}");
        assert!(!text.contains("tls-server-name"), "{text}");
        let escape = json!({
            "clusters": [{"cluster": {"certificate-authority-data": "QUJD"}}], "users": [{"user": {"token": "a\u{1b}[2J"}}],
        });
        assert!(Credentials::of(&escape).is_none());
    }

    #[test]
    fn kubeconfig_for_another_address_names_the_certificate() {
        let made = Credentials { authority: "QUJD".into(), token: "t".into() };
        let text = made.kubeconfig("team-a", "https://127.0.0.1:40123", Some("team-a.ns-a")).unwrap();
        let config: Value = serde_saphyr::from_str(&text).unwrap();
        let cluster = json!({"server": "https://127.0.0.1:40123", "certificate-authority-data": "QUJD", "tls-server-name": "team-a.ns-a"});
        assert_eq!(config["clusters"][0]["cluster"], cluster);
        assert_eq!((&config["current-context"], &config["users"][0]["user"]["token"]), (&json!("team-a"), &json!("t")));
    }
}
