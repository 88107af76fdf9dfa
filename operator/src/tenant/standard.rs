//! What the platform gives every tenant alike; the chart says it (`tenants` in its values).

use std::{collections::BTreeMap, str::FromStr};

use gputenancy_crds::quantity::Amount;
use k8s_openapi::{api::networking::v1::NetworkPolicyEgressRule, apimachinery::pkg::api::resource::Quantity};
use serde::Deserialize;

/// What every tenant gets.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Standard {
    /// Where pods of isolated tenants may connect to besides their own namespaces, DNS and the API server: rules of a `NetworkPolicy`.
    #[serde(default)]
    pub egress: Vec<NetworkPolicyEgressRule>,
    /// What a container requests that says nothing, by resource; empty: nothing.
    #[serde(default)]
    pub default_requests: Option<BTreeMap<String, Quantity>>,
    /// Limits of a tenant that names none for this resource, over all its namespaces, as keys of a `ResourceQuota`; never of GPUs.
    #[serde(default)]
    pub default_resources: Option<BTreeMap<String, Quantity>>,
}

/// What is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum StandardError {
    /// It has another shape.
    #[error(
        "not {{egress: [rules of a NetworkPolicy], defaultRequests: {{resource: quantity}}, defaultResources: {{key: quantity}}}} in JSON: {0}"
    )]
    Shape(#[from] serde_json::Error),
    /// A request or a limit is not a quantity.
    #[error("{field}.{resource}: {text:?} is not a quantity")]
    Quantity {
        /// Among which of the two.
        field: &'static str,
        /// Of which resource.
        resource: String,
        /// What is written.
        text: String,
    },
    /// A limit of a GPU resource: it would open to every tenant what none is granted.
    #[error("defaultResources.{0}: GPUs are budgeted in spec.gpus of each GpuTenant; remove the key")]
    Gpu(String),
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
        if let Some((key, _)) = standard.resources().find(|(key, _)| is_gpu_key(key)) {
            return Err(StandardError::Gpu(key.clone()));
        }
        // as the API server fills it in: what is written must be what is read back
        for port in standard.egress.iter_mut().flat_map(|rule| rule.ports.iter_mut().flatten()) {
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
        Ok(standard)
    }
}

impl Standard {
    /// What a container requests that says nothing.
    pub fn requests(&self) -> impl Iterator<Item = (&String, &Quantity)> {
        self.default_requests.iter().flatten()
    }

    /// Limits of a tenant that names none for this resource.
    pub fn resources(&self) -> impl Iterator<Item = (&String, &Quantity)> {
        self.default_resources.iter().flatten()
    }
}

/// Is this key of a quota one of GPUs? As `spec.resources` of the kind judges.
fn is_gpu_key(key: &str) -> bool {
    key.contains("nvidia.com/") || key.contains("gputenancy.io/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_from_the_charts_json() {
        let text = r#"{"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443}]}], "defaultRequests": {"cpu": "100m"}, "defaultResources": {"services.nodeports": "0"}}"#;
        let standard: Standard = text.parse().unwrap();
        assert_eq!(standard.egress[0].ports.as_ref().unwrap()[0].protocol.as_deref(), Some("TCP"));
        assert_eq!((standard.requests().count(), standard.resources().count()), (1, 1));
        let nothing: Standard = r#"{"egress": [], "defaultRequests": null, "defaultResources": null}"#.parse().unwrap();
        assert_eq!(nothing, Standard::default());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let refusal = |text: &str| text.parse::<Standard>().unwrap_err().to_string();
        assert!(refusal(r#"{"defaultRequests": {"memory": "much"}}"#).contains("defaultRequests.memory: \"much\""));
        assert!(refusal(r#"{"defaultResources": {"pods": "few"}}"#).contains("defaultResources.pods: \"few\""));
        let gpu = refusal(r#"{"defaultResources": {"requests.nvidia.com/gpu": "1"}}"#);
        assert!(gpu.contains("spec.gpus of each GpuTenant"), "{gpu}");
        assert!(refusal(r#"{"ingress": []}"#).contains("unknown field `ingress`"));
    }
}
