//! The catalog as data, written by `-o json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::DeviceCounts;

/// What users can request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Catalog {
    /// `gputenancy.io/v1alpha1`.
    pub api_version: String,
    /// `Catalog`.
    pub kind: String,
    /// The profiles, strongest isolation first, then by name.
    pub entries: Vec<CatalogEntry>,
    /// The profiles of each level of trust, least trusted first.
    pub trust: Vec<TrustLevel>,
    /// What the user may not read, in sentences.
    pub not_visible: Vec<String>,
}

/// A profile.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CatalogEntry {
    /// Its name.
    pub profile: String,
    /// What one device is, such as `one of 4 time-slices of a GPU`.
    pub device: String,
    /// Field of `GpuProfile.spec.device`: `whole`, `mig`, `timeSlice`, `mps` or `fraction`.
    pub mode: String,
    /// Extended resource that pods request.
    pub resource_name: String,
    /// Isolation between tenants on one GPU, such as `Hardware`.
    pub isolation: String,
    /// What separates a pod from its neighbours, in sentences.
    pub isolated: Vec<String>,
    /// What does not, in sentences.
    pub not_isolated: Vec<String>,
    /// Least trusted tenant that may use it.
    pub trust: String,
    /// The tenant must acknowledge in `GpuTenant.spec.sharing.acknowledgedBy` what is not isolated.
    pub needs_acknowledgement: bool,
    /// What must be accepted as normal.
    pub expected: String,
    /// What counts as an incident of the platform.
    pub incident: String,
    /// Price of one device; absent if the profile has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<PriceOfDevice>,
    /// Most devices of one pod; absent: as many as the team's budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_pod: Option<i32>,
    /// Boards that offer it; empty: every board that can.
    pub products: Vec<String>,
    /// Pools that offer it; absent where pools are not visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
    /// Devices of the cluster; absent if they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceCounts>,
    /// How far the platform team has tried it with pods that share a GPU, in one sentence; absent for exclusive devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maturity: Option<String>,
    /// A pod to copy, as YAML.
    pub pod_template: String,
    /// How to read a workload that does not start, in sentences.
    pub pending: Vec<String>,
}

/// Price of one device for one hour.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PriceOfDevice {
    /// Decimal number as text, such as `0.51`.
    pub per_hour: String,
    /// Currency code of ISO 4217, such as `USD`.
    pub currency: String,
}

/// What tenants of a level of trust may use.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TrustLevel {
    /// `Untrusted`, `Internal` or `Trusted`.
    pub trust: String,
    /// Names of profiles, in the order of the entries.
    pub profiles: Vec<String>,
}
