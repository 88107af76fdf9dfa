//! Board models of a node, each listed once.

use gputenancy_crds::{Board, BoardProfile, MemoryText, Vgpu};

use gputenancy_nvml::InstanceProfile;

use crate::{
    gpu::{Inventory, ObservedBoard},
    to_i32,
};

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
        indices.push(to_i32(index));
    }
    (boards, indices)
}

fn board(observed: &ObservedBoard) -> Board {
    let profiles = || observed.profiles.iter();
    let reach = |profile: &InstanceProfile| profile.starts.iter().max().map_or(0, |s| s + profile.size);
    Board {
        product: observed.name.replace(' ', "-"),
        memory: mib(observed.memory_mib),
        reserved: observed.reserved_mib.map(mib),
        slices: to_i32(profiles().map(|profile| profile.slices).max().unwrap_or(0)),
        memory_slices: to_i32(profiles().map(reach).max().unwrap_or(0)),
        vgpu: observed.vgpu.map(|vgpu| match vgpu {
            gputenancy_nvml::Vgpu::Guest => Vgpu::Guest,
            gputenancy_nvml::Vgpu::Host => Vgpu::Host,
        }),
        mode_needs_reset: observed.mode_needs_reset,
        profiles: profiles().map(profile).collect(),
    }
}

fn profile(observed: &InstanceProfile) -> BoardProfile {
    let engines = observed.engines;
    BoardProfile {
        id: to_i32(observed.id),
        name: observed.name.clone(),
        slices: to_i32(observed.slices),
        memory: mib(observed.memory_mib),
        size: to_i32(observed.size),
        starts: observed.starts.iter().map(|start| to_i32(*start)).collect(),
        max: to_i32(observed.max),
        engines: [engines.copy, engines.decoder, engines.encoder, engines.jpeg, engines.ofa].map(to_i32).to_vec(),
    }
}

fn mib(mib: u64) -> MemoryText {
    MemoryText::from_mib(i64::try_from(mib).unwrap_or(i64::MAX))
}
