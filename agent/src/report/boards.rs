//! Board models of a node, each listed once.

use gputenancy_crds::{Board, BoardProfile, MemoryText};

use crate::gpu::{Inventory, ObservedBoard};

/// The board models in the order of GPUs, and the index of each GPU's model.
pub fn boards(inventory: &Inventory) -> (Vec<Board>, Vec<i32>) {
    let mut boards: Vec<Board> = Vec::new();
    let mut indices = Vec::new();
    for gpu in &inventory.gpus {
        let board = board(&gpu.board);
        let index = boards.iter().position(|known| *known == board).unwrap_or_else(|| {
            boards.push(board);
            boards.len() - 1
        });
        indices.push(small(index));
    }
    (boards, indices)
}

fn board(observed: &ObservedBoard) -> Board {
    let profiles = || observed.profiles.iter();
    let reach =
        |profile: &gputenancy_nvml::InstanceProfile| profile.starts.iter().max().map_or(0, |s| s + profile.size);
    Board {
        product: observed.name.replace(' ', "-"),
        memory: mib(observed.memory_mib),
        reserved: observed.reserved_mib.map(mib),
        slices: small(profiles().map(|profile| profile.slices).max().unwrap_or(0)),
        memory_slices: small(profiles().map(reach).max().unwrap_or(0)),
        mode_needs_reset: observed.mode_needs_reset,
        profiles: profiles().map(profile).collect(),
    }
}

fn profile(observed: &gputenancy_nvml::InstanceProfile) -> BoardProfile {
    let engines = observed.engines;
    BoardProfile {
        id: small(observed.id),
        name: observed.name.clone(),
        slices: small(observed.slices),
        memory: mib(observed.memory_mib),
        size: small(observed.size),
        starts: observed.starts.iter().map(|start| small(*start)).collect(),
        max: small(observed.max),
        engines: [engines.copy, engines.decoder, engines.encoder, engines.jpeg, engines.ofa].map(small).to_vec(),
    }
}

fn mib(mib: u64) -> MemoryText {
    MemoryText::from_mib(i64::try_from(mib).unwrap_or(i64::MAX))
}

/// A number of NVML as the API writes it.
pub(super) fn small<T: TryInto<i32>>(number: T) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}
