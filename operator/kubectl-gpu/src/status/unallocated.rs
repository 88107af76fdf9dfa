//! Parts of a GPU that no device has, and whether a profile of the pool can use them.

use std::collections::BTreeSet;

use gputenancy_crds::{CONTEXT_MIB, GpuSpec, GpuState, MemoryText, Sharing, SharingMode};
use gputenancy_plan::{
    Snapshot,
    board::{BoardGeometry, Occupancy, Shape, ShareShape, ShareSize},
};

use super::model::Unallocated;

/// What the profiles of a pool are on one board.
pub(super) struct Offers<'a> {
    board: &'a BoardGeometry,
    /// MIG profiles, as indices into the board's list.
    mig: Vec<usize>,
    shares: Vec<ShareShape>,
    /// Resources of equal shares, which fill a GPU.
    equal: BTreeSet<&'a str>,
    whole: bool,
}

/// What the devices of a GPU leave.
#[derive(Default)]
pub(super) struct Rest {
    /// Parts that no device has, those first that a profile can use.
    pub parts: Vec<Unallocated>,
    /// Compute slices that no device has and that no profile can use with the free memory slices.
    pub stranded_compute: i32,
}

impl<'a> Offers<'a> {
    pub fn of(snapshot: &'a Snapshot, profiles: &[String], board: &'a BoardGeometry) -> Self {
        let mut offers = Self { board, mig: Vec::new(), shares: Vec::new(), equal: BTreeSet::new(), whole: false };
        for profile in profiles.iter().filter_map(|name| snapshot.profiles.get(name.as_str())) {
            if !(profile.products.is_empty() || profile.products.contains(&board.product)) {
                continue;
            }
            match &profile.shape {
                Shape::Whole => offers.whole = true,
                Shape::Share(shape) => {
                    offers.shares.push(*shape);
                    if matches!(shape.size, ShareSize::Equal(_)) {
                        offers.equal.insert(&profile.resource);
                    }
                }
                shape @ (Shape::Named(_) | Shape::AtLeast { .. } | Shape::Slice { .. }) => {
                    let name = board.resolve(shape).map(|mig| mig.name.as_str());
                    offers.mig.extend(name.and_then(|name| position(board, name)));
                }
            }
        }
        offers
    }

    /// What no device has, and whether a profile can use it.
    pub fn rest(&self, spec: &GpuSpec, state: &GpuState) -> Rest {
        let mig = state.mig.is_some_and(|m| m.enabled);
        match &spec.sharing {
            Some(sharing) if !mig => {
                Rest { parts: self.after_shares(sharing, state).into_iter().collect(), stranded_compute: 0 }
            }
            None if mig => self.after_instances(state),
            _ => Rest::default(),
        }
    }

    /// Fewest compute slices of a MIG profile; `None` without one.
    pub fn smallest(&self) -> Option<i32> {
        self.mig.iter().filter_map(|mig| self.board.profiles.get(*mig)).map(|profile| profile.slices).min()
    }

    fn after_instances(&self, state: &GpuState) -> Rest {
        let mut gpu = self.board.empty();
        let (mut used, mut compute) = (0, 0);
        for instance in &state.instances {
            let placed = position(self.board, &instance.profile).filter(|mig| gpu.place(*mig, instance.start));
            let Some(profile) = placed.and_then(|mig| self.board.profiles.get(mig)) else {
                // an instance that the board does not list: its size is not known
                return Rest::default();
            };
            used |= slices(instance.start, profile.size);
            compute += profile.slices;
        }
        let free = slices(0, self.board.memory_slices) & !used;
        let left = self.board.slices - compute;
        // without instances it can also become a whole GPU or a shared one
        let other = used == 0 && (self.whole || !self.shares.is_empty());
        let usable = if other { Cover { memory: free, compute: left } } else { self.cover(&gpu, 0) };
        let parts = [(usable.memory, false), (free & !usable.memory, true)];
        let parts = parts.into_iter().filter(|(part, _)| *part != 0);
        Rest {
            parts: parts.map(|(part, stranded)| of_slices(part, stranded)).collect(),
            stranded_compute: (left - usable.compute).max(0),
        }
    }

    /// The most memory slices, from this one on, that further instances can cover together; among equal covers that with the most compute
    /// slices, as the planner counts them.
    fn cover(&self, gpu: &Occupancy<'_>, at: i32) -> Cover {
        if at >= self.board.memory_slices {
            return Cover::default();
        }
        let mut best = self.cover(gpu, at + 1);
        for mig in self.mig.iter().copied().filter(|mig| gpu.takes(*mig, at)) {
            let Some(profile) = self.board.profiles.get(mig) else { continue };
            let mut next = gpu.clone();
            next.place(mig, at);
            let size = profile.size.max(1);
            let further = self.cover(&next, at + size);
            let memory = slices(at, size) | further.memory;
            let covered = Cover { memory, compute: profile.slices + further.compute };
            if covered.rank() > best.rank() {
                best = covered;
            }
        }
        best
    }

    fn after_shares(&self, sharing: &Sharing, state: &GpuState) -> Option<Unallocated> {
        let equal = sharing.shares.iter().any(|g| self.equal.contains(g.resource.as_str()));
        if equal || sharing.mode == SharingMode::TimeSlice {
            return None;
        }
        let (mut memory, mut compute) = (self.board.usable_memory(), 100);
        for group in &sharing.shares {
            let count = i64::try_from(group.numbers.len()).ok()?;
            let of_one = group.memory.as_ref().map_or(Ok(0), MemoryText::mib).ok()?;
            memory -= count * (of_one + CONTEXT_MIB);
            compute -= i32::try_from(count).ok()? * group.compute.unwrap_or(0);
            // a pod that holds more than a smaller size keeps its former memory
            let here = state.shares.iter().filter(|share| group.numbers.contains(&share.number));
            let kept = here.filter_map(|share| share.memory.as_ref()?.mib().ok());
            memory -= kept.map(|kept| kept.saturating_sub(of_one).max(0)).sum::<i64>();
        }
        let fits = |shape: &ShareShape| match shape.size {
            ShareSize::Part { memory: more, compute: part } if shape.mode == sharing.mode => {
                more + CONTEXT_MIB <= memory && part <= compute
            }
            _ => false,
        };
        let (memory, compute) = (memory.max(0), compute.max(0));
        Some(Unallocated {
            part: format!("rest: {memory}Mi, {compute} %"),
            memory_slices: Vec::new(),
            memory_mib: Some(memory),
            compute_percent: Some(compute),
            stranded: !self.shares.iter().any(fits),
        })
    }
}

/// Slices that further instances can cover together.
#[derive(Clone, Copy, Default)]
struct Cover {
    /// Memory slices, as bits.
    memory: u32,
    /// Number of compute slices.
    compute: i32,
}

impl Cover {
    fn rank(self) -> (u32, i32) {
        (self.memory.count_ones(), self.compute)
    }
}

fn position(board: &BoardGeometry, name: &str) -> Option<usize> {
    board.profiles.iter().position(|p| p.name == name)
}

/// Memory slices as bits.
fn slices(start: i32, size: i32) -> u32 {
    (start..start + size).filter_map(|slice| 1_u32.checked_shl(slice.cast_unsigned())).sum()
}

fn of_slices(part: u32, stranded: bool) -> Unallocated {
    let memory_slices: Vec<i32> = (0..32).filter(|slice| part & slices(*slice, 1) != 0).collect();
    let word = if memory_slices.len() == 1 { "memory slice" } else { "memory slices" };
    Unallocated {
        part: format!("{word} {}", ranges(&memory_slices)),
        memory_slices,
        memory_mib: None,
        compute_percent: None,
        stranded,
    }
}

/// Sorted numbers with neighbours joined: `0, 4-6`.
fn ranges(numbers: &[i32]) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for n in numbers {
        match ranges.last_mut() {
            Some((_, end)) if *end + 1 == *n => *end = *n,
            _ => ranges.push((*n, *n)),
        }
    }
    let one = |(start, end): &(i32, i32)| if start == end { start.to_string() } else { format!("{start}-{end}") };
    ranges.iter().map(one).collect::<Vec<_>>().join(", ")
}
