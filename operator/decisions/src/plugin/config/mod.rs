//! Configs of NVIDIA's device plugin, format `v1`: one for a whole node, rendered from the spec of its `GpuNode`.
//!
//! The plugin replicates all devices of a resource alike and has one sharing mode. It ignores `devices` and `rename` of a resource, and
//! does not notice that a config has changed under its name: so the name contains a hash of the content.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuNode, GpuSpec, Health, Layout, SharingMode, names};

use crate::fingerprint::fingerprint;

/// Name of the config of nodes without the label: GPUs are not shared.
const DEFAULT: &str = "default";
/// Length of [`fingerprint`].
const HASH: usize = 16;
/// Most bytes of the pool's name in a key, so that key and hash are a valid label value.
const NAME: usize = 63 - HASH - 1;

/// How NVIDIA's plugin advertises the GPUs of a node that are not partitioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginConfig {
    /// Each GPU is one device.
    Exclusive,
    /// Each GPU is so many devices in turn.
    TimeSliced {
        /// At least 2: the plugin refuses 1.
        replicas: usize,
    },
}

/// Layouts of a node that the plugin's config cannot express.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inexpressible {
    /// Another mode than time-slices.
    #[error("GPU {gpu} has {mode} shares, and NVIDIA's device plugin is configured for timeSlice only: {REMEDY}")]
    Mode {
        /// UUID of the GPU.
        gpu: String,
        /// Field of the profile's device.
        mode: &'static str,
    },
    /// Shares of several resources, or under another name than the plugin's.
    #[error(
        "GPU {gpu} has shares as {resources}, and NVIDIA's device plugin serves all of them as {}: {REMEDY}",
        names::SHARED_GPU_RESOURCE
    )]
    Resource {
        /// UUID of the GPU.
        gpu: String,
        /// The resources, between commas.
        resources: String,
    },
    /// The numbers of the shares are not 0, 1, 2, …
    #[error(
        "GPU {gpu} has shares with the numbers {numbers:?}, and NVIDIA's device plugin numbers two or more from 0: {REMEDY}"
    )]
    Numbers {
        /// UUID of the GPU.
        gpu: String,
        /// The numbers.
        numbers: Vec<i32>,
    },
    /// GPUs of the node differ.
    #[error(
        "GPU {gpu} has {shares} shares and GPU {other} has {others}, and NVIDIA's device plugin has one number for all GPUs of a node that are not partitioned: {REMEDY}"
    )]
    Unequal {
        /// UUID of a GPU.
        gpu: String,
        /// Its shares; 0: it is whole.
        shares: usize,
        /// UUID of another GPU.
        other: String,
        /// Its shares.
        others: usize,
    },
}

const REMEDY: &str = "list one timeSlice profile and no other profile of whole GPUs or shares in the pool (profiles of MIG instances may stay), or set spec.advertiser of the pool to Agent";

impl PluginConfig {
    /// The config for the specs of a node.
    ///
    /// # Errors
    /// What the plugin cannot express.
    pub fn of(node: &GpuNode) -> Result<Self, Inexpressible> {
        Self::with(node, GpuSpec::layout)
    }

    /// The config for other layouts of the node's GPUs. GPUs that the driver has lost or reports as unhealthy do not count: they stay as
    /// they are, and the plugin withdraws their devices. Without a healthy one all count.
    ///
    /// # Errors
    /// What the plugin cannot express.
    pub fn with(node: &GpuNode, layout: impl Fn(&GpuSpec) -> Layout) -> Result<Self, Inexpressible> {
        let states = node.status.as_ref().map(|s| s.gpus.as_slice()).unwrap_or_default();
        let works = |gpu: &&GpuSpec| !states.iter().any(|s| s.uuid == gpu.uuid && s.health != Health::Healthy);
        let mig_off = |gpu: &&GpuSpec| !layout(gpu).mig;
        // if none works, what they had: a plugin that is restarted does not know that they failed
        let any_works = node.spec.gpus.iter().filter(mig_off).any(|gpu| works(&gpu));
        let mut first: Option<(&str, usize)> = None;
        for gpu in node.spec.gpus.iter().filter(|gpu| !any_works || works(gpu)) {
            let layout = layout(gpu);
            if layout.mig {
                continue;
            }
            let shares = shares(&gpu.uuid, &layout)?;
            let (other, others) = *first.get_or_insert((gpu.uuid.as_str(), shares));
            if shares != others {
                let (gpu, other) = (gpu.uuid.clone(), other.to_owned());
                return Err(Inexpressible::Unequal { gpu, shares, other, others });
            }
        }
        Ok(match first {
            None | Some((_, 0)) => Self::Exclusive,
            Some((_, replicas)) => Self::TimeSliced { replicas },
        })
    }

    /// The text that the plugin reads.
    pub fn render(self) -> String {
        let head = "version: v1\nflags:\n  migStrategy: mixed\n";
        match self {
            Self::Exclusive => head.to_owned(),
            Self::TimeSliced { replicas } => format!(
                "{head}sharing:\n  timeSlicing:\n    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    \
                 resources:\n      - name: {}\n        replicas: {replicas}\n",
                names::WHOLE_GPU_RESOURCE
            ),
        }
    }

    /// Its key in the `ConfigMap` and value of the node label, `<pool>-<hash of the text>`; `None`: nodes without the label have it.
    pub fn key(self, pool: &str) -> Option<String> {
        let short = pool.get(..NAME).unwrap_or(pool);
        (self != Self::Exclusive).then(|| format!("{short}-{}", fingerprint(&self.render())))
    }

    /// Whether a node with this value of the label `nvidia.com/device-plugin.config` has this config.
    pub fn is_selected(self, label: Option<&str>) -> bool {
        match self {
            // a value of an administrator may be anything
            Self::Exclusive => !label.is_some_and(is_key),
            Self::TimeSliced { .. } => label.is_some_and(|l| hash_of(l) == Some(fingerprint(&self.render()).as_str())),
        }
    }
}

/// Whether a value of the node label is the key of a config of ours.
pub fn is_key(value: &str) -> bool {
    hash_of(value).is_some()
}

fn hash_of(key: &str) -> Option<&str> {
    let (_, hash) = key.rsplit_once('-')?;
    (hash.len() == HASH && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))).then_some(hash)
}

fn shares(gpu: &str, layout: &Layout) -> Result<usize, Inexpressible> {
    let Some(sharing) = &layout.sharing else { return Ok(0) };
    let gpu = gpu.to_owned();
    if sharing.mode != SharingMode::TimeSlice {
        return Err(Inexpressible::Mode { gpu, mode: sharing.mode.field() });
    }
    let resources: BTreeSet<&str> = sharing.shares.iter().map(|group| group.resource.as_str()).collect();
    if resources != [names::SHARED_GPU_RESOURCE].into() {
        let resources = resources.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Inexpressible::Resource { gpu, resources });
    }
    let numbers = sharing.numbers();
    if numbers.len() < 2 || !numbers.iter().copied().eq((0..).take(numbers.len())) {
        return Err(Inexpressible::Numbers { gpu, numbers });
    }
    Ok(numbers.len())
}

/// The configs in the `ConfigMap`, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginConfigs {
    configs: BTreeMap<String, String>,
    /// Keys whose text is not what their hash says: another client has changed it.
    altered: BTreeSet<String>,
}

impl PluginConfigs {
    /// Reads the data of the `ConfigMap`. Keys of other clients are left out.
    pub fn parse(data: &BTreeMap<String, String>) -> Self {
        let mut read = Self::default();
        for (key, text) in data {
            let intact = match hash_of(key) {
                Some(hash) => hash == fingerprint(text),
                None if key == DEFAULT => *text == PluginConfig::Exclusive.render(),
                None => continue,
            };
            if intact {
                read.configs.insert(key.clone(), text.clone());
            } else {
                read.altered.insert(key.clone());
            }
        }
        read
    }

    /// Adds a config for nodes of a pool.
    pub fn add(&mut self, pool: &str, config: PluginConfig) {
        self.configs.insert(config.key(pool).unwrap_or_else(|| DEFAULT.to_owned()), config.render());
    }

    /// Copies a config from others, if they have it.
    pub fn keep(&mut self, from: &Self, key: &str) {
        if let Some((key, text)) = from.configs.get_key_value(key) {
            self.configs.insert(key.clone(), text.clone());
        }
    }

    /// Whether there is a config under this key.
    pub fn has(&self, key: &str) -> bool {
        self.configs.contains_key(key)
    }

    /// Whether none was ever written.
    pub fn is_empty(&self) -> bool {
        self.configs.is_empty() && self.altered.is_empty()
    }

    /// Whether all of these configs are among the published ones.
    pub fn is_published(&self, published: &Self) -> bool {
        self.configs.iter().all(|(key, text)| published.configs.get(key) == Some(text))
    }

    /// Keys of these configs whose published text another client has changed.
    pub fn altered_in(&self, published: &Self) -> Vec<String> {
        self.configs.keys().filter(|key| published.altered.contains(*key)).cloned().collect()
    }

    /// The data of the `ConfigMap`.
    pub fn data(&self) -> &BTreeMap<String, String> {
        &self.configs
    }
}

#[cfg(test)]
mod tests;
