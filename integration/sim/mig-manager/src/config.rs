//! mig-parted's config file, and the entry for each GPU.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

/// Why a config cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file cannot be parsed.
    #[error("reading the config: {0}")]
    Text(#[from] serde_saphyr::Error),
    /// The file has no config of this name.
    #[error("no config is named {0}")]
    Unknown(String),
    /// An entry has only one of MIG mode and devices: mig-parted refuses the whole file.
    #[error("a config has mig-enabled without mig-devices, or mig-devices without mig-enabled")]
    Devices,
    /// No entry matches a GPU of the node.
    #[error("no entry of the config matches GPU {0}")]
    LeftOut(usize),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    mig_configs: BTreeMap<String, Vec<Entry>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    devices: Devices,
    mig_enabled: bool,
    mig_devices: Option<BTreeMap<String, u32>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Devices {
    Word(String),
    Places(Vec<usize>),
}

/// Desired state of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// MIG mode.
    pub mig: bool,
    /// Instances by profile.
    pub counts: BTreeMap<String, u32>,
}

/// A config of the file.
#[derive(Clone, Debug)]
pub struct Selected(Vec<Entry>);

impl Selected {
    /// Reads the file again and picks a config.
    pub fn read(path: &Path, name: &str) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| ConfigError::File { path: path.display().to_string(), source })?;
        Self::pick(&text, name)
    }

    fn pick(text: &str, name: &str) -> Result<Self, ConfigError> {
        let File { mut mig_configs } = serde_saphyr::from_str(text)?;
        let odd = |e: &Entry| e.mig_enabled == e.mig_devices.is_none();
        if mig_configs.values().flatten().any(odd) {
            return Err(ConfigError::Devices);
        }
        mig_configs.remove(name).map(Self).ok_or_else(|| ConfigError::Unknown(name.to_owned()))
    }

    /// Desired state of each GPU, in PCI order; a later entry overrides an earlier one.
    pub fn wanted(&self, gpus: usize) -> Result<Vec<Wanted>, ConfigError> {
        let matches = |entry: &&Entry, gpu: usize| match &entry.devices {
            Devices::Word(word) => word == "all",
            Devices::Places(places) => places.contains(&gpu),
        };
        let wanted = |gpu| {
            let entry = self.0.iter().rfind(|entry| matches(entry, gpu)).ok_or(ConfigError::LeftOut(gpu))?;
            Ok(Wanted { mig: entry.mig_enabled, counts: entry.mig_devices.clone().unwrap_or_default() })
        };
        (0..gpus).map(wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "version: v1\nmig-configs:\n  off:\n  - devices: all\n    mig-enabled: false\n  half:\n  - devices: [1]\n    \
                        mig-enabled: true\n    mig-devices:\n      1g.10gb: 2\n";

    #[test]
    fn config_selects_layout_per_gpu() {
        let off = Selected::pick(FILE, "off").unwrap().wanted(2).unwrap();
        assert_eq!(off, [Wanted::default(), Wanted::default()]);
        let half = Selected::pick(FILE, "half").unwrap();
        assert!(matches!(half.wanted(2), Err(ConfigError::LeftOut(0))));
        let bare = FILE.replace("    mig-devices:\n      1g.10gb: 2\n", "");
        assert!(matches!(Selected::pick(&bare, "off"), Err(ConfigError::Devices)), "{bare}");
        assert!(matches!(Selected::pick(FILE, "other"), Err(ConfigError::Unknown(name)) if name == "other"));
    }
}
