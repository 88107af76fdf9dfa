//! The command line.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, str::FromStr};

use clap::Parser;
use gputenancy_service::logging::LogArgs;
use serde::Deserialize;
use serde_json::Value;

use crate::offer::Offer;

/// Virtual clusters of tenants: the controller.
#[derive(Parser, Debug, Clone)]
#[command(name = "gputenancy-virtual-clusters", version)]
pub struct Args {
    /// Supported versions of vCluster, in JSON: `[{"version": "0.36.1", "file": "/charts/vcluster-0.36.1.tgz", "sha256": "…"}]`.
    #[arg(long, env = "CHARTS")]
    pub charts: Charts,
    /// Values of vCluster's chart for every tenant, a JSON object: images, registries, resources.
    #[arg(long, env = "VALUES", default_value = "{}")]
    pub values: Values,
    /// `RuntimeClasses` that pods of tenants may name, a list in JSON; virtual clusters get them.
    #[arg(long, env = "RUNTIME_CLASSES", default_value = "[]")]
    pub runtime_classes: RuntimeClasses,
    /// Flags of the backends.
    #[command(flatten)]
    pub offer: Offer,
    /// The program `helm`.
    #[arg(long, env = "HELM", default_value = "/usr/bin/helm")]
    pub helm: PathBuf,
    /// Virtual clusters reconciled at once.
    #[arg(long, default_value = "8")]
    pub concurrency: u16,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Name of this replica in events.
    #[arg(long, env = "POD_NAME", default_value = "gputenancy-virtual-clusters")]
    pub identity: String,
    /// Flags of the log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// A packed chart of vCluster.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chart {
    /// Version of vCluster.
    pub version: String,
    /// The packed chart.
    pub file: PathBuf,
    /// Its SHA-256, in lowercase hexadecimal digits.
    pub sha256: String,
}

/// The supported versions, by version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Charts(pub BTreeMap<String, Chart>);

impl FromStr for Charts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let charts: Vec<Chart> = serde_json::from_str(text)
            .map_err(|e| format!("not a list of {{version, file, sha256}} in JSON (virtualClusters.charts): {e}"))?;
        if charts.is_empty() {
            return Err("virtualClusters.charts names no version of vCluster".into());
        }
        let digest = |c: &Chart| c.sha256.len() == 64 && c.sha256.bytes().all(|b| b.is_ascii_hexdigit());
        if let Some(chart) = charts.iter().find(|c| !digest(c)) {
            return Err(format!("virtualClusters.charts: version {} needs the SHA-256 of its file", chart.version));
        }
        Ok(Self(charts.into_iter().map(|c| (c.version.clone(), c)).collect()))
    }
}

/// Values of the platform for every virtual cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Values(pub Value);

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| format!("virtualClusters.values: {e}"))?;
        if value.is_object() { Ok(Self(value)) } else { Err("virtualClusters.values: not an object".into()) }
    }
}

/// Names of `RuntimeClasses`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeClasses(pub Vec<String>);

impl FromStr for RuntimeClasses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut names: Vec<String> = serde_json::from_str(text)
            .map_err(|e| format!("not a list of names in JSON (policies.runtimeClassNames): {e}"))?;
        // the empty name is a pod without a class
        names.retain(|name| !name.is_empty());
        names.sort();
        names.dedup();
        Ok(Self(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_classes_are_a_sorted_list_of_names() {
        let names: RuntimeClasses = r#"["nvidia", "", "kata", "nvidia"]"#.parse().unwrap();
        assert_eq!(names.0, ["kata", "nvidia"]);
        assert!("nvidia".parse::<RuntimeClasses>().unwrap_err().contains("policies.runtimeClassNames"));
    }

    #[test]
    fn charts_need_a_digest_and_at_least_one_version() {
        let digest = "a".repeat(64);
        let charts: Charts =
            format!(r#"[{{"version": "0.36.1", "file": "/c.tgz", "sha256": "{digest}"}}]"#).parse().unwrap();
        assert_eq!(charts.0["0.36.1"].file, PathBuf::from("/c.tgz"));
        assert!("[]".parse::<Charts>().unwrap_err().contains("names no version"));
        let short = r#"[{"version": "0.36.1", "file": "/c.tgz", "sha256": "abc"}]"#.parse::<Charts>();
        assert!(short.unwrap_err().contains("version 0.36.1 needs the SHA-256"));
        assert!("[1]".parse::<Values>().unwrap_err().contains("not an object"));
    }
}
