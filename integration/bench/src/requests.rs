//! Requests of one program to the API server, reads included, by the API server's count.

use e2e::{Result, World, product};
use serde_json::json;

/// The chart's flow schema, which counts requests for leases.
const LEASES: &str = "gputenancy-leases";

/// Counts the requests of a service account of the product.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Name of the flow schema that counts them.
    pub flow: &'static str,
    /// Name of the account.
    pub account: &'static str,
}

impl Requests {
    /// Gives the account a flow schema of its own, at the priority level of other service accounts.
    pub async fn count(&self, world: &World) -> Result<()> {
        let subject = json!({"kind": "ServiceAccount", "serviceAccount": {"name": self.account, "namespace": product::NAMESPACE}});
        let resources =
            json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]});
        let schema = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": self.flow},
            "spec": {
                "priorityLevelConfiguration": {"name": "workload-low"}, // after the chart's, so that leases keep their priority
                "matchingPrecedence": 250,
                "distinguisherMethod": {"type": "ByUser"},
                "rules": [{
                    "subjects": [subject], "resourceRules": [resources],
                    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                }],
            },
        });
        world.set(&[schema]).await
    }

    /// Requests since the API server's start, with those for leases of all programs of the chart; a watch is one request.
    pub async fn total(&self, world: &World) -> Result<f64> {
        let text = world.lab.apiserver_metrics().await?;
        let labels = [self.flow, LEASES].map(|flow| format!("flow_schema=\"{flow}\""));
        let of = text.lines().filter(|l| {
            let counts = l.starts_with("apiserver_flowcontrol_dispatched_requests_total{");
            counts && labels.iter().any(|label| l.contains(label))
        });
        Ok(of.filter_map(|l| l.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
    }

    /// Removes the flow schema.
    pub async fn remove(&self, world: &World) -> Result<()> {
        world.kubectl(&["delete", "flowschema", self.flow, "--ignore-not-found"]).await.map(drop)
    }
}
