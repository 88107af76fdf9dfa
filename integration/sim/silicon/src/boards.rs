//! The catalogue of boards, from the data files in `boards/`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::board::{Arch, Board, Geometry, Profile};

const GEOMETRIES: &str = include_str!("../boards/geometries.yaml");
const BOARDS: &[(&str, &str)] = &[
    ("a30-24gb", include_str!("../boards/a30-24gb.yaml")),
    ("a100-40gb", include_str!("../boards/a100-40gb.yaml")),
    ("a100-80gb", include_str!("../boards/a100-80gb.yaml")),
    ("h100-80gb", include_str!("../boards/h100-80gb.yaml")),
    ("h100-94gb", include_str!("../boards/h100-94gb.yaml")),
    ("h200-141gb", include_str!("../boards/h200-141gb.yaml")),
    ("gh200-96gb", include_str!("../boards/gh200-96gb.yaml")),
    ("gh200-144gb", include_str!("../boards/gh200-144gb.yaml")),
    ("b200-180gb", include_str!("../boards/b200-180gb.yaml")),
    ("gb200-186gb", include_str!("../boards/gb200-186gb.yaml")),
    ("b300-269gb", include_str!("../boards/b300-269gb.yaml")),
    ("gb300-278gb", include_str!("../boards/gb300-278gb.yaml")),
    ("rtx-pro-6000-96gb", include_str!("../boards/rtx-pro-6000-96gb.yaml")),
    ("t4-16gb", include_str!("../boards/t4-16gb.yaml")),
];

/// Why a board cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No data file of this name.
    #[error("no board {0:?}; known boards: {known}", known = keys().join(", "))]
    Unknown(String),
    /// A data file is invalid.
    #[error("board data {0}: {1}")]
    Data(String, String),
}

/// A data file: a board that names its geometry.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    key: String,
    name: String,
    arch: Arch,
    compute_capability: (i32, i32),
    pci_device_id: u32,
    memory_mib: u64,
    max_mig_devices: u32,
    geometry: Option<String>,
    profiles: Vec<Profile>,
}

/// Names of all boards.
pub fn keys() -> Vec<&'static str> {
    BOARDS.iter().map(|(key, _)| *key).collect()
}

/// Names of the boards with MIG.
pub fn mig_keys() -> Vec<&'static str> {
    keys().into_iter().filter(|key| load(key).is_ok_and(|b| b.has_mig())).collect()
}

/// Loads one board.
pub fn load(key: &str) -> Result<Board, Error> {
    let text = BOARDS.iter().find(|(k, _)| *k == key).ok_or_else(|| Error::Unknown(key.into()))?.1;
    let broken = |why: String| Error::Data(key.into(), why);
    let file: File = serde_saphyr::from_str(text).map_err(|e| broken(e.to_string()))?;
    let geometry = file
        .geometry
        .map(|name| {
            let mut all: BTreeMap<String, Geometry> =
                serde_saphyr::from_str(GEOMETRIES).map_err(|e| broken(e.to_string()))?;
            all.remove(&name).ok_or_else(|| broken(format!("no geometry {name:?}")))
        })
        .transpose()?;
    Ok(Board {
        key: file.key,
        name: file.name,
        arch: file.arch,
        compute_capability: file.compute_capability,
        pci_device_id: file.pci_device_id,
        memory_mib: file.memory_mib,
        max_mig_devices: file.max_mig_devices,
        geometry,
        profiles: file.profiles,
    })
}
