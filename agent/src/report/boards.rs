//! Boards as the status describes them, each kind once.

use gputenancy_crds::{Board, BoardProfile, MemoryText};

use crate::gpu::{Inventory, SeenBoard};

/// Kinds of board, in the order in which GPUs show them, and the kind of each GPU.
pub fn boards(inventory: &Inventory) -> (Vec<Board>, Vec<i32>) {
    let mut boards: Vec<Board> = Vec::new();
    let mut kinds = Vec::new();
    for gpu in &inventory.gpus {
        let board = board(&gpu.board);
        let kind = boards.iter().position(|known| *known == board).unwrap_or_else(|| {
            boards.push(board);
            boards.len() - 1
        });
        kinds.push(small(kind));
    }
    (boards, kinds)
}

fn board(seen: &SeenBoard) -> Board {
    let profiles = || seen.profiles.iter();
    let reach =
        |profile: &gputenancy_nvml::InstanceProfile| profile.starts.iter().max().map_or(0, |s| s + profile.size);
    Board {
        product: seen.name.replace(' ', "-"),
        memory: mib(seen.memory_mib),
        reserved: seen.reserved_mib.map(mib),
        slices: small(profiles().map(|profile| profile.slices).max().unwrap_or(0)),
        memory_slices: small(profiles().map(reach).max().unwrap_or(0)),
        mode_needs_reset: seen.mode_needs_reset,
        profiles: profiles().map(profile).collect(),
    }
}

fn profile(seen: &gputenancy_nvml::InstanceProfile) -> BoardProfile {
    let engines = seen.engines;
    BoardProfile {
        id: small(seen.id),
        name: seen.name.clone(),
        slices: small(seen.slices),
        memory: mib(seen.memory_mib),
        size: small(seen.size),
        starts: seen.starts.iter().map(|start| small(*start)).collect(),
        max: small(seen.max),
        engines: [engines.copy, engines.decoder, engines.encoder, engines.jpeg, engines.ofa].map(small).to_vec(),
    }
}

fn mib(mib: u64) -> MemoryText {
    MemoryText::from_mib(i64::try_from(mib).unwrap_or(i64::MAX))
}

/// NVML's numbers as the API writes them.
pub(super) fn small<T: TryInto<i32>>(number: T) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}
