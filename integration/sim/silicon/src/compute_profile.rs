//! The compute-instance profiles that a GPU instance offers, and where their instances may start.

use crate::board::{Board, Engines, Placement, Profile};

/// Compute slices of the NVML compute-instance profile enums 0 to 7; the id on the device is the enum.
const WIDTHS: [(u32, u32); 7] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 7), (5, 8), (6, 6)];
/// The single-slice profile with all SMs of a double-memory instance.
const REV1: u32 = 7;

/// A compute-instance profile of a GPU-instance profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeProfile {
    /// Id on the device and NVML enum.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Most instances at once.
    pub max_instances: u32,
    /// SMs of its own.
    pub sm: u32,
    /// Engines that it shares with its siblings.
    pub shared: Engines,
}

/// The compute-instance profiles of a GPU-instance profile.
pub fn profiles(board: &Board, gi: &Profile) -> Vec<ComputeProfile> {
    let sm_of_slice = slice_sm(board);
    let regular = WIDTHS.into_iter().filter(|&(_, slices)| offered(gi.slices, slices)).map(|(id, slices)| {
        let full = slices == gi.slices;
        let sm = if full && slices > 1 { gi.engines.sm } else { (sm_of_slice * slices).min(gi.engines.sm) };
        let max_instances = starts(gi.slices, slices).len().try_into().unwrap_or(0);
        ComputeProfile { id, slices, max_instances, sm, shared: gi.engines }
    });
    let rev1 = (gi.slices == 1 && gi.engines.sm > sm_of_slice).then_some(ComputeProfile {
        id: REV1,
        slices: 1,
        max_instances: 1,
        sm: gi.engines.sm,
        shared: gi.engines,
    });
    regular.chain(rev1).collect()
}

/// The compute-instance profile with this id.
pub fn profile(board: &Board, gi: &Profile, id: u32) -> Option<ComputeProfile> {
    profiles(board, gi).into_iter().find(|p| p.id == id)
}

/// Placements of a compute-instance profile on its GPU instance's compute slices.
pub fn placements(gi: &Profile, ci: &ComputeProfile) -> Vec<Placement> {
    starts(gi.slices, ci.slices).into_iter().map(|start| Placement { start, size: ci.slices }).collect()
}

/// Name of a MIG device: its GPU instance's profile, with the compute slices in front when it has not all of them.
pub fn device_name(board: &Board, gi: &Profile, ci: u32) -> String {
    match profile(board, gi, ci) {
        Some(ci) if ci.slices < gi.slices => format!("{}c.{}", ci.slices, gi.name),
        _ => gi.name.clone(),
    }
}

/// SMs of one compute slice: those of the smallest profile.
fn slice_sm(board: &Board) -> u32 {
    board.profile_by_enum(0).map_or(1, |p| p.engines.sm)
}

/// Whether an instance of `gi` slices offers compute instances of `ci` slices.
fn offered(gi: u32, ci: u32) -> bool {
    ci == gi || (ci < gi && !(gi == 4 && ci == 3))
}

/// Where compute instances may start: each width on multiples of its rounded-up power of two.
fn starts(gi: u32, ci: u32) -> Vec<u32> {
    (0..gi).step_by(ci.next_power_of_two() as usize).filter(|start| start + ci <= gi).collect()
}
