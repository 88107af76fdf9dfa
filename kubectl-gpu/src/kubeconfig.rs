//! The kubeconfig of a tenant's virtual cluster, from the Secret that its status names.

use std::error::Error;

use gputenancy_crds::{GpuTenant, VirtualClusterStatus};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

/// Reads the kubeconfig.
pub async fn read(client: &Client, tenant: &str) -> Result<String, Box<dyn Error>> {
    let found = Api::<GpuTenant>::all(client.clone()).get(tenant).await?;
    if found.spec.virtual_cluster.is_none() {
        return Err(format!("GpuTenant {tenant} has no virtual cluster: spec.virtualCluster is not set").into());
    }
    let status = found.status.and_then(|s| s.virtual_cluster).unwrap_or_default();
    let (namespace, secret) = place(tenant, &status)?;
    let secret = Api::<Secret>::namespaced(client.clone(), &namespace).get(&secret).await?;
    let config = secret.data.and_then(|mut d| d.remove("config")).map(|c| c.0).unwrap_or_default();
    Ok(String::from_utf8(config)?)
}

/// Namespace and name of the Secret, or why there is none yet.
fn place(tenant: &str, status: &VirtualClusterStatus) -> Result<(String, String), String> {
    if let (Some(namespace), Some(secret)) = (&status.namespace, &status.kubeconfig_secret) {
        return Ok((namespace.clone(), secret.clone()));
    }
    let why = status.conditions.iter().find(|c| c.type_ == "Ready").map_or("it is not reported yet", |c| &c.message);
    Err(format!("the virtual cluster of GpuTenant {tenant} has no kubeconfig yet: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kubeconfig_says_why() {
        let error = place("team-a", &VirtualClusterStatus::default()).unwrap_err();
        assert_eq!(error, "the virtual cluster of GpuTenant team-a has no kubeconfig yet: it is not reported yet");
        let status = VirtualClusterStatus {
            namespace: Some("ns".into()),
            kubeconfig_secret: Some("gputenancy-kubeconfig".into()),
            ..VirtualClusterStatus::default()
        };
        assert_eq!(place("team-a", &status), Ok(("ns".into(), "gputenancy-kubeconfig".into())));
    }
}
