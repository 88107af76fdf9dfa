//! Layouts as mig-parted reads them: the number of instances by profile and GPU, in PCI order. mig-parted chooses placements.

use std::collections::BTreeMap;

use gputenancy_crds::{GpuState, Layout};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fingerprint::fingerprint;

/// Prefix of the names of our layouts.
const PREFIX: &str = "gputenancy-";
/// Suffix of the second name of a layout.
const TWIN: &str = "-b";
/// The GPU Operator's default layout of nodes without a label: it must exist in every `ConfigMap`.
const ALL_DISABLED: &str = "all-disabled";

/// One GPU as mig-parted compares it: placements do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// MIG mode.
    pub mig: bool,
    /// Instances by profile.
    pub counts: BTreeMap<String, u32>,
}

impl Shape {
    /// The shape of a layout.
    pub fn of(layout: &Layout) -> Self {
        Self { mig: layout.mig, counts: count(layout.instances.iter().map(|i| i.profile.as_str())) }
    }

    /// The shape that NVML shows; a mode that changes at the next reset counts as changed already.
    pub fn seen(state: &GpuState) -> Self {
        let mig = state.mig.is_some_and(|m| m.pending.unwrap_or(m.enabled));
        Self { mig, counts: count(state.instances.iter().map(|i| i.profile.as_str())) }
    }

    /// The shape in messages: `2×1g.10gb 1×3g.40gb`.
    pub fn words(&self) -> String {
        let counts: Vec<String> = self.counts.iter().map(|(profile, n)| format!("{n}×{profile}")).collect();
        match (self.mig, counts.is_empty()) {
            (false, _) => "MIG off".to_owned(),
            (true, true) => "MIG on, no instances".to_owned(),
            (true, false) => counts.join(" "),
        }
    }
}

fn count<'a>(profiles: impl Iterator<Item = &'a str>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for profile in profiles {
        *counts.entry(profile.to_owned()).or_default() += 1;
    }
    counts
}

/// GPUs of one node with the same requested shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct NodeLayoutEntry {
    devices: Devices,
    mig_enabled: bool,
    /// mig-parted refuses the whole file when a GPU with MIG on lacks it, or one without has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mig_devices: Option<BTreeMap<String, u32>>,
}

/// All GPUs, or some by their place in PCI order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Devices {
    All(String),
    Places(Vec<usize>),
}

/// The layout of a whole node. mig-parted refuses a config that omits a GPU of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigConfig(Vec<NodeLayoutEntry>);

impl MigConfig {
    /// The config of a node with these GPUs, in PCI order.
    pub fn new(shapes: &[Shape]) -> Self {
        let mut places: BTreeMap<&Shape, Vec<usize>> = BTreeMap::new();
        for (place, shape) in shapes.iter().enumerate() {
            places.entry(shape).or_default().push(place);
        }
        let entry = |(shape, places): (&Shape, Vec<usize>)| NodeLayoutEntry {
            devices: Devices::Places(places),
            mig_enabled: shape.mig,
            mig_devices: shape.mig.then(|| shape.counts.clone()),
        };
        let mut entries: Vec<NodeLayoutEntry> = places.into_iter().map(entry).collect();
        entries.sort_by_key(|e| match &e.devices {
            Devices::Places(places) => places.first().copied(),
            Devices::All(_) => None,
        });
        Self(entries)
    }

    /// Its name: a hash of the content, the same on every node.
    pub fn name(&self) -> String {
        format!("{PREFIX}{}", fingerprint(self))
    }
}

/// The other name of a layout.
pub fn twin(name: &str) -> String {
    name.strip_suffix(TWIN).map_or_else(|| format!("{name}{TWIN}"), str::to_owned)
}

/// The first of a layout's two names.
pub fn base(name: &str) -> &str {
    name.strip_suffix(TWIN).unwrap_or(name)
}

/// Whether this is the name of one of our layouts.
pub fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The text of the `ConfigMap` cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the layouts for NVIDIA's MIG manager cannot be written: {0}")]
pub struct MigConfigError(#[from] serde_saphyr::ser::Error);

/// All layouts of the `ConfigMap`, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigConfigs {
    layouts: BTreeMap<String, MigConfig>,
    /// Messages about what cannot be read. The operator's own layouts have none, so such a text is always replaced: mig-parted refuses a
    /// whole file for one wrong layout.
    unreadable: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document<T> {
    version: String,
    mig_configs: BTreeMap<String, T>,
}

impl MigConfigs {
    /// Reads what mig-parted reads. A layout that cannot be read does not keep the others from being read.
    pub fn parse(text: &str) -> Self {
        let mut read = Self::default();
        match serde_saphyr::from_str::<Document<Value>>(text) {
            Ok(Document { mig_configs, .. }) => {
                for (name, layout) in mig_configs {
                    match serde_json::from_value(layout) {
                        // rendered with each file
                        Ok(_) if name == ALL_DISABLED => {}
                        Ok(layout) => drop(read.layouts.insert(name, layout)),
                        Err(error) => read.unreadable.push(format!("layout {name}: {error}")),
                    }
                }
            }
            Err(error) => read.unreadable.push(error.without_snippet().to_string()),
        }
        read
    }

    /// Why the text, or layouts in it, cannot be read.
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }

    /// Adds a layout under both of its names.
    pub fn add(&mut self, config: &MigConfig) {
        let name = config.name();
        self.layouts.insert(twin(&name), config.clone());
        self.layouts.insert(name, config.clone());
    }

    /// Copies a layout from others, if they have it.
    pub fn keep(&mut self, from: &Self, name: &str) {
        for name in [base(name).to_owned(), twin(base(name))] {
            if let Some(config) = from.layouts.get(&name) {
                self.layouts.insert(name, config.clone());
            }
        }
    }

    /// Whether there is a layout of this name.
    pub fn has(&self, name: &str) -> bool {
        self.layouts.contains_key(name)
    }

    /// The text of `config.yaml`.
    pub fn render(&self) -> Result<String, MigConfigError> {
        let mut mig_configs = self.layouts.clone();
        let none = NodeLayoutEntry { devices: Devices::All("all".to_owned()), mig_enabled: false, mig_devices: None };
        mig_configs.insert(ALL_DISABLED.to_owned(), MigConfig(vec![none]));
        let text = serde_saphyr::to_string(&Document { version: "v1".to_owned(), mig_configs })?;
        Ok(format!("# Written by gputenancy for NVIDIA's MIG manager; every layout has two names.\n{text}"))
    }
}
