//! Creating and destroying GPU instances.

use crate::board::{Board, Engines, Placement, Profile};
use crate::clients::Client;
use crate::code::Code;
use crate::machine::{Gpu, GpuInstance, Machine};

impl Machine {
    /// Creates a GPU instance; without a placement at the first free start in the driver's order.
    pub fn create_gi(&mut self, gpu: u32, profile: u32, wanted: Option<Placement>) -> Result<GpuInstance, Code> {
        let on = self.gpu(gpu)?;
        let board = &on.board;
        if !on.mig {
            return Err(Code::NOT_SUPPORTED);
        }
        let geometry = board.geometry.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        let profile = board.profile(profile).ok_or(Code::INVALID_ARGUMENT)?;
        let placement = match wanted {
            Some(p) if p.size != profile.size || !profile.starts.contains(&p.start) => {
                return Err(Code::INVALID_ARGUMENT);
            }
            Some(p) => fits(board, on, profile, p).then_some(p),
            None => preferred(board, profile).into_iter().find(|p| fits(board, on, profile, *p)),
        }
        .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let id = geometry.gi_id(self.variant, placement).ok_or(Code::UNKNOWN)?;
        let profile = profile.id;
        let serial = self.take_serial();
        let made = GpuInstance { id, profile, placement, serial, compute: Vec::new() };
        self.gpu_mut(gpu)?.instances.push(made.clone());
        Ok(made)
    }

    /// Destroys a GPU instance that has neither compute instances nor clients.
    pub fn destroy_gi(&mut self, gpu: u32, gi: u32, clients: &[Client]) -> Result<(), Code> {
        let on = self.gpu_mut(gpu)?;
        let held = clients.iter().any(|c| c.gpu == gpu && c.instance.is_some_and(|(id, _)| id == gi));
        if held || !on.instance(gi)?.compute.is_empty() {
            return Err(Code::IN_USE);
        }
        on.instances.retain(|i| i.id != gi);
        Ok(())
    }

    /// How many more instances of this profile fit next to the existing ones.
    pub fn remaining(&self, gpu: u32, profile: u32) -> Result<u32, Code> {
        let mut trial = self.clone();
        let mut count = 0;
        loop {
            match trial.create_gi(gpu, profile, None) {
                Ok(_) => count += 1,
                Err(Code::INSUFFICIENT_RESOURCES) => return Ok(count),
                Err(code) => return Err(code),
            }
        }
    }
}

/// Placements of a profile in the order in which the driver tries them.
fn preferred(board: &Board, profile: &Profile) -> Vec<Placement> {
    let order = board.geometry.as_ref().and_then(|g| g.create_preference.get(&profile.size));
    let order = order.unwrap_or(&profile.starts);
    let allowed = order.iter().filter(|s| profile.starts.contains(s));
    allowed.map(|&start| Placement { start, size: profile.size }).collect()
}

/// Whether an instance of this profile may be placed here: free slices, engines and the profile's maximum.
fn fits(board: &Board, gpu: &Gpu, profile: &Profile, placement: Placement) -> bool {
    let of_profile = gpu.instances.iter().filter(|i| i.profile == profile.id).count();
    let profiles = || gpu.instances.iter().filter_map(|i| board.profile(i.profile));
    let slices: u32 = profiles().map(|p| p.slices).sum();
    let engines = profiles().map(|p| p.engines).fold(profile.engines, Engines::plus);
    let compute_slices = board.geometry.as_ref().map_or(0, |g| g.compute_slices);
    of_profile < profile.max_instances as usize
        && !gpu.instances.iter().any(|i| i.placement.overlaps(placement))
        && slices + profile.slices <= compute_slices
        && engines.within(board.engines())
}
