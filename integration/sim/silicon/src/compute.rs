//! Creating and destroying compute instances.

use std::collections::BTreeSet;

use crate::board::Placement;
use crate::clients::Client;
use crate::code::Code;
use crate::compute_profile::{ComputeProfile, placements, profile};
use crate::machine::{ComputeInstance, Gpu, GpuInstance, Machine};

impl Machine {
    /// Creates a compute instance, at the given start or at the first free one.
    pub fn create_ci(&mut self, gpu: u32, gi: u32, id: u32, start: Option<Placement>) -> Result<ComputeInstance, Code> {
        let on = self.gpu(gpu)?;
        let parent = on.instance(gi)?;
        let gi_profile = on.profile_of(parent)?;
        let ci_profile = profile(&on.board, gi_profile, id).ok_or(Code::INVALID_ARGUMENT)?;
        let allowed = placements(gi_profile, &ci_profile);
        let sm_used: u32 =
            parent.compute.iter().filter_map(|c| profile(&on.board, gi_profile, c.profile)).map(|p| p.sm).sum();
        let fits = |p: &Placement| {
            sm_used + ci_profile.sm <= gi_profile.engines.sm && !parent.compute.iter().any(|c| c.placement.overlaps(*p))
        };
        let placement = match start {
            Some(p) if !allowed.contains(&p) => return Err(Code::INVALID_ARGUMENT),
            Some(p) => Some(p).filter(fits),
            None => allowed.into_iter().find(fits),
        }
        .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let ci_id = lowest_free(parent.compute.iter().map(|c| c.id));
        let mig_index = lowest_free(on.instances.iter().flat_map(|i| &i.compute).map(|c| c.mig_index));
        let made = ComputeInstance { id: ci_id, profile: id, placement, serial: self.take_serial(), mig_index };
        self.gpu_mut(gpu)?.instance_mut(gi)?.compute.push(made.clone());
        Ok(made)
    }

    /// Destroys a compute instance that has no clients.
    pub fn destroy_ci(&mut self, gpu: u32, gi: u32, ci: u32, clients: &[Client]) -> Result<(), Code> {
        let device = self.mig_device(gpu, gi, ci)?;
        if clients.iter().any(|c| device.has(c)) {
            return Err(Code::IN_USE);
        }
        self.gpu_mut(gpu)?.instance_mut(gi)?.compute.retain(|c| c.id != ci);
        Ok(())
    }

    /// How many more compute instances of this profile fit into a GPU instance.
    pub fn remaining_ci(&self, gpu: u32, gi: u32, id: u32) -> Result<u32, Code> {
        let mut trial = self.clone();
        let mut count = 0;
        loop {
            match trial.create_ci(gpu, gi, id, None) {
                Ok(_) => count += 1,
                Err(Code::INSUFFICIENT_RESOURCES) => return Ok(count),
                Err(code) => return Err(code),
            }
        }
    }
}

impl Gpu {
    /// The profile of one of its compute instances.
    pub fn compute_profile(&self, gi: &GpuInstance, ci: &ComputeInstance) -> Result<ComputeProfile, Code> {
        profile(&self.board, self.profile_of(gi)?, ci.profile).ok_or(Code::UNKNOWN)
    }
}

fn lowest_free(taken: impl Iterator<Item = u32>) -> u32 {
    let taken: BTreeSet<u32> = taken.collect();
    taken.iter().zip(0..).find(|(have, free)| *have != free).map_or(u32::try_from(taken.len()).unwrap_or(0), |(_, n)| n)
}
