//! Settings of the platform for every tenant, from the chart's values (`tenants`).

use std::{collections::BTreeMap, str::FromStr};

use gputenancy_crds::{quantity::Amount, quota::is_counted};
use k8s_openapi::{api::networking::v1::NetworkPolicyEgressRule, apimachinery::pkg::api::resource::Quantity};
use serde::Deserialize;

/// Settings for every tenant.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Standard {
    /// Egress of isolated tenants in addition to their namespaces, DNS and the API server: rules of a `NetworkPolicy`.
    #[serde(default)]
    pub egress: Vec<NetworkPolicyEgressRule>,
    /// Default requests of a container, by resource.
    #[serde(default)]
    pub default_requests: Option<BTreeMap<String, Quantity>>,
    /// Default limits of a tenant over all its namespaces, as keys of a `ResourceQuota`; never of GPUs.
    #[serde(default)]
    pub default_resources: Option<BTreeMap<String, Quantity>>,
    /// `PriorityClasses` that pods of all tenants may name, in addition to those of `spec.priorityClasses`.
    #[serde(default)]
    pub priority_classes: Vec<String>,
}

/// Why settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum StandardError {
    /// Fields or types differ.
    #[error(
        "not {{egress: [rules of a NetworkPolicy], defaultRequests: {{resource: quantity}}, defaultResources: {{key: quantity}}, priorityClasses: [name]}} in JSON: {0}"
    )]
    Shape(#[from] serde_json::Error),
    /// A request or a limit is not a quantity.
    #[error("{field}.{resource}: {text:?} is not a quantity")]
    Quantity {
        /// Field of the settings.
        field: &'static str,
        /// Resource.
        resource: String,
        /// The invalid text.
        text: String,
    },
    /// A limit of a GPU resource: it would admit GPUs that no tenant is granted.
    #[error("defaultResources.{0}: GPUs are budgeted in spec.gpus of each GpuTenant; remove the key")]
    Gpu(String),
    /// A limit that no quota counts.
    #[error(
        "defaultResources.{0}: a ResourceQuota counts nothing under this key; write one such as requests.cpu, pods or count/<resource>.<group>"
    )]
    Key(String),
    /// A default request of something that no container has by default.
    #[error("defaultRequests.{0}: write cpu, memory or ephemeral-storage")]
    Request(String),
}

impl FromStr for Standard {
    type Err = StandardError;

    fn from_str(text: &str) -> Result<Self, StandardError> {
        let mut standard: Self = serde_json::from_str(text)?;
        let requests = standard.requests().map(|entry| ("defaultRequests", entry));
        let limits = standard.resources().map(|entry| ("defaultResources", entry));
        for (field, (resource, quantity)) in requests.chain(limits) {
            if Amount::parse(quantity).is_none() {
                let (resource, text) = (resource.clone(), quantity.0.clone());
                return Err(StandardError::Quantity { field, resource, text });
            }
        }
        // wider than `names::is_gpu_resource`, for keys have prefixes: the rule in the schema of `spec.resources`
        let is_gpu = |key: &str| key.contains("nvidia.com/") || key.contains("gputenancy.io/");
        if let Some((key, _)) = standard.resources().find(|(key, _)| is_gpu(key)) {
            return Err(StandardError::Gpu(key.clone()));
        }
        if let Some((key, _)) = standard.resources().find(|(key, _)| !is_counted(key)) {
            return Err(StandardError::Key(key.clone()));
        }
        let known = |resource: &str| matches!(resource, "cpu" | "memory" | "ephemeral-storage");
        if let Some((resource, _)) = standard.requests().find(|(resource, _)| !known(resource)) {
            return Err(StandardError::Request(resource.clone()));
        }
        // the API server's default: what is written must equal what is read
        for port in standard.egress.iter_mut().flat_map(|rule| rule.ports.iter_mut().flatten()) {
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
        Ok(standard)
    }
}

impl Standard {
    /// Default requests of a container.
    pub fn requests(&self) -> impl Iterator<Item = (&String, &Quantity)> {
        self.default_requests.iter().flatten()
    }

    /// Default limits of a tenant.
    pub fn resources(&self) -> impl Iterator<Item = (&String, &Quantity)> {
        self.default_resources.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_is_parsed_from_the_charts_json() {
        let text = r#"{"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443}]}], "defaultRequests": {"cpu": "100m"}, "defaultResources": {"services.nodeports": "0"}}"#;
        let standard: Standard = text.parse().unwrap();
        assert_eq!(standard.egress[0].ports.as_ref().unwrap()[0].protocol.as_deref(), Some("TCP"));
        assert_eq!((standard.requests().count(), standard.resources().count()), (1, 1));
        let nothing: Standard = r#"{"egress": [], "defaultRequests": null, "defaultResources": null}"#.parse().unwrap();
        assert_eq!(nothing, Standard::default());
    }

    #[test]
    fn standard_with_invalid_fields_is_refused_by_name() {
        let refusal = |text: &str| text.parse::<Standard>().unwrap_err().to_string();
        assert!(refusal(r#"{"defaultRequests": {"memory": "much"}}"#).contains("defaultRequests.memory: \"much\""));
        assert!(refusal(r#"{"defaultResources": {"pods": "few"}}"#).contains("defaultResources.pods: \"few\""));
        let gpu = refusal(r#"{"defaultResources": {"requests.nvidia.com/gpu": "1"}}"#);
        assert!(gpu.contains("spec.gpus of each GpuTenant"), "{gpu}");
        assert!(refusal(r#"{"defaultResources": {"request.cpu": "8"}}"#).contains("defaultResources.request.cpu: "));
        assert!(
            refusal(r#"{"defaultResources": {"example.com/fpga": "8"}}"#).contains("counts nothing under this key")
        );
        assert!(refusal(r#"{"defaultRequests": {"pods": "1"}}"#).contains("defaultRequests.pods: write cpu, memory"));
        assert!(refusal(r#"{"ingress": []}"#).contains("unknown field `ingress`"));
    }
}
