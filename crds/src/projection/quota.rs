//! Quotas.

use k8s_openapi::api::core::v1::{ResourceQuota, ScopeSelector};
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Serialize};

use super::Amounts;

/// Projection of a `ResourceQuota`.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = ResourceQuota)]
pub struct SlimQuota {
    /// Name, namespace, labels.
    #[serde(deserialize_with = "crate::metadata::read")]
    pub metadata: ObjectMeta,
    /// Requested limits.
    #[serde(default)]
    pub spec: SlimQuotaSpec,
    /// Limits that admission compares with, and their use.
    #[serde(default)]
    pub status: SlimQuotaStatus,
}

/// Spec of a quota.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimQuotaSpec {
    /// Limits by resource.
    #[serde(default)]
    pub hard: Amounts,
    /// Which pods count; `None`: all.
    #[serde(default, rename = "scopeSelector", skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeSelector>,
}

/// Status of a quota.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimQuotaStatus {
    /// Enforced limits.
    #[serde(default)]
    pub hard: Amounts,
    /// Granted to pods.
    #[serde(default)]
    pub used: Amounts,
}
