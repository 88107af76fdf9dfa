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

/// Separator of the names in a list of boards. Not a comma, at which helm's `--set` splits values.
const SEPARATOR: char = '+';

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

/// Loads the boards of a list, such as `a100-80gb` or `a100-80gb+a100-80gb+h100-80gb`; [`of_gpu`] assigns them to GPUs.
pub fn load_list(list: &str) -> Result<Vec<Board>, Error> {
    list.split(SEPARATOR).map(load).collect()
}

/// The board of the GPU with this index: a list has one for each GPU in order, and the last one is that of all further GPUs. `None` for an empty list.
pub fn of_gpu(boards: &[Board], index: u32) -> Option<&Board> {
    boards.get(index as usize).or(boards.last())
}

/// Number of GPUs of each board, such as `2 x a100-80gb, 4 x h100-80gb`, from the name of each GPU's board.
pub fn summary<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let mut rows: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match rows.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => rows.push((name, 1)),
        }
    }
    rows.iter().map(|(name, count)| format!("{count} x {name}")).collect::<Vec<_>>().join(", ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_a_board_for_each_gpu_and_the_last_one_for_all_others() {
        let boards = load_list("a100-80gb+a100-80gb+h100-80gb").unwrap();
        let keys = (0..6).map(|index| of_gpu(&boards, index).unwrap().key.as_str());
        let found: Vec<&str> = keys.collect();
        assert_eq!(found, ["a100-80gb", "a100-80gb", "h100-80gb", "h100-80gb", "h100-80gb", "h100-80gb"]);
        assert_eq!(summary(found), "2 x a100-80gb, 4 x h100-80gb");
        assert_eq!(of_gpu(&[], 0), None);
    }

    #[test]
    fn unknown_board_of_a_list_is_named() {
        for list in ["rtx-4090", "a100-80gb+rtx-4090", "rtx-4090+a100-80gb"] {
            let refused = load_list(list).unwrap_err().to_string();
            assert!(refused.starts_with("no board \"rtx-4090\"; known boards: a30-24gb, "), "{refused}");
        }
        assert!(matches!(load_list("a100-80gb+"), Err(Error::Unknown(name)) if name.is_empty()));
    }
}
