//! The kubeconfig of a tenant's virtual cluster, made from the Secret that its status names.
//!
//! The team can write that Secret, and a kubeconfig can name a program that kubectl runs: only certificate authority and token are taken from
//! it, and the rest is written here.

use std::error::Error;

use gputenancy_crds::{GpuTenant, VirtualClusterStatus};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use serde_json::{Value, json};

/// Reads the Secret and makes the kubeconfig.
pub async fn read(client: &Client, tenant: &str) -> Result<String, Box<dyn Error>> {
    let found = Api::<GpuTenant>::all(client.clone()).get(tenant).await?;
    if found.spec.virtual_cluster.is_none() {
        return Err(format!("GpuTenant {tenant} has no virtual cluster: spec.virtualCluster is not set").into());
    }
    let status = found.status.and_then(|s| s.virtual_cluster).unwrap_or_default();
    let (namespace, name, server) = place(tenant, &status)?;
    let secret = Api::<Secret>::namespaced(client.clone(), &namespace).get(&name).await;
    let secret = secret.map_err(|error| {
        format!("Secret {namespace}/{name} cannot be read: {error}; owners of GpuTenant {tenant} may read it, viewers may not")
    })?;
    let config = secret.data.and_then(|mut d| d.remove("config")).map(|c| c.0).unwrap_or_default();
    let parsed: Value = serde_saphyr::from_str(&String::from_utf8(config)?).unwrap_or_default();
    let unusable = || {
        format!("Secret {namespace}/{name} has no token: see KubeconfigReady in kubectl describe gputenant {tenant}")
    };
    Ok(serde_saphyr::to_string(&rebuilt(tenant, &server, &parsed).ok_or_else(unusable)?)?)
}

/// Namespace and name of the Secret, and the server; or why there is none yet.
fn place(tenant: &str, status: &VirtualClusterStatus) -> Result<(String, String, String), String> {
    if let (Some(namespace), Some(secret), Some(server)) =
        (&status.namespace, &status.kubeconfig_secret, &status.server)
    {
        return Ok((namespace.clone(), secret.clone(), server.clone()));
    }
    let why = status.conditions.iter().find(|c| c.type_ == "Ready");
    let why = why.map_or_else(|| format!("see kubectl describe gputenant {tenant}"), |c| c.message.clone());
    Err(format!("the virtual cluster of GpuTenant {tenant} has no kubeconfig yet: {why}"))
}

/// A kubeconfig with these credentials and nothing else of the given one; `None`: it has none.
fn rebuilt(tenant: &str, server: &str, config: &Value) -> Option<Value> {
    let text = |at: &str, more: &str| {
        let text = config.pointer(at)?.as_str()?;
        let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
        plain.then(|| text.to_owned())
    };
    let authority = text("/clusters/0/cluster/certificate-authority-data", "+/=")?;
    let token = text("/users/0/user/token", "-_.")?;
    Some(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": tenant, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": tenant, "user": {"token": token}}],
        "contexts": [{"name": tenant, "context": {"cluster": tenant, "user": tenant}}],
        "current-context": tenant,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kubeconfig_says_why() {
        let error = place("team-a", &VirtualClusterStatus::default()).unwrap_err();
        assert!(error.ends_with("has no kubeconfig yet: see kubectl describe gputenant team-a"), "{error}");
    }

    #[test]
    fn programs_and_servers_of_the_secret_are_left_out() {
        let config = json!({
            "clusters": [{"cluster": {"server": "https://evil.example", "certificate-authority-data": "QUJD"}}],
            "users": [{"user": {"token": "a.b-c", "exec": {"command": "/bin/evil"}}}],
        });
        let text = rebuilt("team-a", "https://team-a.ns.svc", &config).unwrap().to_string();
        assert!(text.contains("https://team-a.ns.svc") && text.contains("a.b-c") && !text.contains("evil"), "{text}");
        let escape = json!({
            "clusters": [{"cluster": {"certificate-authority-data": "QUJD"}}], "users": [{"user": {"token": "a\u{1b}[2J"}}],
        });
        assert_eq!(rebuilt("team-a", "https://a", &escape), None);
    }
}
