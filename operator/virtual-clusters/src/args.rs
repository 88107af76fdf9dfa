//! The command line.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{ArgAction, Parser};
use gputenancy_cluster::service::logging::LogArgs;
use serde::Deserialize;
use serde_json::Value;

/// Virtual clusters of tenants: the controller.
#[derive(Parser, Debug, Clone)]
#[command(name = "gputenancy-virtual-clusters", version)]
pub struct Args {
    /// Supported versions of vCluster, in JSON: `[{"version": "0.36.1", "file": "/charts/vcluster-0.36.1.tgz", "sha256": "…"}]`; or with `url`
    /// in place of `file`.
    #[arg(long, env = "CHARTS")]
    pub charts: Charts,
    /// Values of vCluster's chart for every tenant, a JSON object: images, registries, resources.
    #[arg(long, env = "VALUES", default_value = "{}")]
    pub values: Values,
    /// What the operator's chart gives every tenant.
    #[command(flatten)]
    pub standard: Standard,
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

/// What every tenant has alike.
#[derive(clap::Args, Debug, Clone, Default, PartialEq, Eq)]
pub struct Standard {
    /// `RuntimeClasses` that pods of tenants may name, a list in JSON; virtual clusters get them.
    #[arg(long, env = "RUNTIME_CLASSES", default_value = "[]")]
    pub runtime_classes: Classes,
    /// `PriorityClasses` that pods of every tenant may name, a list in JSON; virtual clusters get them and those of the tenant.
    #[arg(long, env = "PRIORITY_CLASSES", default_value = "[]")]
    pub priority_classes: Classes,
    /// The operator writes a `LimitRange` with default requests into namespaces of tenants.
    #[arg(long, env = "LIMIT_RANGE", default_value_t = false, action = ArgAction::Set)]
    pub limit_range: bool,
}

/// A packed chart of vCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// Version of vCluster.
    pub version: String,
    /// The packed chart. With a URL: where it is written to.
    pub file: PathBuf,
    /// Its SHA-256, in lowercase hexadecimal digits.
    pub sha256: String,
    /// Where it is pulled from, unless it is a file of the image or of a volume: `https://…/vcluster-0.36.1.tgz`, or `oci://…/vcluster`.
    pub url: Option<String>,
}

/// Why an argument is refused.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// The charts are no list.
    #[error("not a list of {{version, file or url, sha256}} in JSON (virtualClusters.charts): {0}")]
    Charts(#[source] serde_json::Error),
    /// There is no chart.
    #[error("virtualClusters.charts names no version of vCluster")]
    NoChart,
    /// A chart is not complete.
    #[error("virtualClusters.charts: version {version} {why}")]
    Chart {
        /// Its version.
        version: String,
        /// What it needs.
        why: &'static str,
    },
    /// The values are no JSON.
    #[error("virtualClusters.values: {0}")]
    Values(#[source] serde_json::Error),
    /// The values are no object.
    #[error("virtualClusters.values: not an object")]
    ValuesKind,
    /// The names of classes are no list.
    #[error("not a list of names in JSON (policies.runtimeClassNames, policies.priorityClasses): {0}")]
    Classes(#[source] serde_json::Error),
}

/// An entry of `virtualClusters.charts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    version: String,
    file: Option<PathBuf>,
    url: Option<String>,
    sha256: String,
}

impl TryFrom<Entry> for Chart {
    type Error = ArgsError;

    fn try_from(Entry { version, file, url, sha256 }: Entry) -> Result<Self, ArgsError> {
        let refused = |why: &'static str| ArgsError::Chart { version: version.clone(), why };
        if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(refused("needs the SHA-256 of its file"));
        }
        let file = match (file, &url) {
            (Some(file), None) => file,
            (None, Some(url)) => {
                let place = url.strip_prefix("https://").or_else(|| url.strip_prefix("oci://")).unwrap_or_default();
                if place.is_empty() || place.contains(|c: char| c.is_whitespace() || c == '@') {
                    return Err(refused("needs a url of https://… or oci://…, without credentials"));
                }
                // by digest: a changed entry finds no file of the former one
                std::env::temp_dir().join("charts").join(format!("{}.tgz", sha256.to_lowercase()))
            }
            _ => return Err(refused("needs either file or url")),
        };
        Ok(Self { version, file, sha256, url })
    }
}

/// The supported versions, by version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Charts(pub BTreeMap<String, Chart>);

impl FromStr for Charts {
    type Err = ArgsError;

    fn from_str(text: &str) -> Result<Self, ArgsError> {
        let entries: Vec<Entry> = serde_json::from_str(text).map_err(ArgsError::Charts)?;
        if entries.is_empty() {
            return Err(ArgsError::NoChart);
        }
        let named = |chart: Chart| (chart.version.clone(), chart);
        entries.into_iter().map(|entry| Chart::try_from(entry).map(named)).collect::<Result<_, _>>().map(Self)
    }
}

/// Values of the platform for every virtual cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Values(pub Value);

impl FromStr for Values {
    type Err = ArgsError;

    fn from_str(text: &str) -> Result<Self, ArgsError> {
        let value: Value = serde_json::from_str(text).map_err(ArgsError::Values)?;
        if value.is_object() { Ok(Self(value)) } else { Err(ArgsError::ValuesKind) }
    }
}

/// Sorted names of classes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classes(pub Vec<String>);

impl FromStr for Classes {
    type Err = ArgsError;

    fn from_str(text: &str) -> Result<Self, ArgsError> {
        let mut names: Vec<String> = serde_json::from_str(text).map_err(ArgsError::Classes)?;
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
    fn classes_are_a_sorted_list_of_names() {
        let names: Classes = r#"["nvidia", "", "kata", "nvidia"]"#.parse().unwrap();
        assert_eq!(names.0, ["kata", "nvidia"]);
        assert!("nvidia".parse::<Classes>().unwrap_err().to_string().contains("policies.runtimeClassNames"));
    }

    #[test]
    fn charts_need_a_digest_and_at_least_one_version() {
        let digest = "a".repeat(64);
        let charts: Charts =
            format!(r#"[{{"version": "0.36.1", "file": "/c.tgz", "sha256": "{digest}"}}]"#).parse().unwrap();
        assert_eq!(charts.0["0.36.1"].file, PathBuf::from("/c.tgz"));
        assert!("[]".parse::<Charts>().unwrap_err().to_string().contains("names no version"));
        let short = r#"[{"version": "0.36.1", "file": "/c.tgz", "sha256": "abc"}]"#.parse::<Charts>();
        assert!(short.unwrap_err().to_string().contains("version 0.36.1 needs the SHA-256"));
        let read = |place: &str| {
            let text = format!(r#"[{{"version": "0.36.1", {place} "sha256": "{digest}"}}]"#);
            text.parse::<Charts>().map(|charts| charts.0["0.36.1"].clone())
        };
        let pulled = read(r#""url": "oci://registry.example/charts/vcluster","#).unwrap();
        assert_eq!(pulled.url.as_deref(), Some("oci://registry.example/charts/vcluster"));
        assert!(pulled.file.ends_with(format!("charts/{digest}.tgz")), "{pulled:?}");
        for wrong in ["", r#""url": "https://a/c.tgz", "file": "/c.tgz","#] {
            assert!(read(wrong).unwrap_err().to_string().ends_with("needs either file or url"));
        }
        for wrong in ["http://a/c.tgz", "https://", "https://user:secret@host/c.tgz"] {
            assert!(
                read(&format!(r#""url": "{wrong}","#)).unwrap_err().to_string().contains("without credentials"),
                "{wrong}"
            );
        }
        assert!("[1]".parse::<Values>().unwrap_err().to_string().contains("not an object"));
    }
}
