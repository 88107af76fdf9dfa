//! A board and its MIG profiles, and the instances that are placed on one GPU.

use gputenancy_crds::{Board, BoardProfile};

use super::shape::Shape;

/// A board as the agent discovered it. Names are data: nothing is parsed out of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoardGeometry {
    /// Product name with dashes.
    pub product: String,
    /// Memory, in MiB.
    pub memory: i64,
    /// Part of it that the driver reserves, in MiB.
    pub reserved: i64,
    /// Compute slices of the whole GPU; 0: no MIG.
    pub slices: i32,
    /// Length of the memory axis; 0: no MIG.
    pub memory_slices: i32,
    /// A change of MIG mode needs a reset.
    pub mode_needs_reset: bool,
    /// Its MIG profiles, sorted by name.
    pub profiles: Vec<MigProfile>,
}

/// A MIG profile of a board.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigProfile {
    /// NVIDIA's name.
    pub name: String,
    /// Compute slices.
    pub slices: i32,
    /// Memory, in MiB.
    pub memory: i64,
    /// Memory slices covered.
    pub size: i32,
    /// Memory slices at which an instance may start.
    pub starts: Vec<i32>,
    /// Most instances on one GPU.
    pub max: i32,
    /// Engines of one instance: copy, decoder, encoder, JPEG, OFA.
    pub engines: Vec<i32>,
}

/// Instances placed on one GPU, and what they use.
#[derive(Clone, Debug)]
pub struct Occupancy<'a> {
    board: &'a BoardGeometry,
    limits: &'a [i32],
    /// Memory slices in use, as bits.
    memory: u32,
    slices: i32,
    counts: Vec<i32>,
    engines: Vec<i32>,
}

impl BoardGeometry {
    /// The MIG profile of that name.
    pub fn profile(&self, name: &str) -> Option<&MigProfile> {
        self.profiles.iter().find(|p| p.name == name)
    }

    /// The index of the MIG profile of that name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.profiles.iter().position(|p| p.name == name)
    }

    /// The MIG profile that a shape means on this board. A request by size means the smallest profile that satisfies it, the plain
    /// one before NVIDIA's variants of the same size, which have a suffix.
    pub fn resolve(&self, shape: &Shape) -> Option<&MigProfile> {
        match shape {
            Shape::Whole | Shape::Share(_) => None,
            Shape::Slice { of, .. } => self.resolve(of),
            Shape::Named(name) => self.profile(name),
            Shape::AtLeast { slices, memory } => self
                .profiles
                .iter()
                .filter(|p| p.slices >= *slices && p.memory >= *memory)
                .min_by_key(|p| (p.size, p.slices, p.memory, p.name.len(), &p.name)),
        }
    }

    /// Whether an instance of this MIG profile is what a shape asks for. A larger one than a request by size needs is as well; of a profile that the
    /// board lacks nothing is known.
    pub(crate) fn serves(&self, shape: &Shape, mig: &str) -> bool {
        match shape {
            Shape::Whole | Shape::Share(_) => false,
            Shape::Slice { of, .. } => self.serves(of, mig),
            Shape::Named(name) => name == mig,
            Shape::AtLeast { slices, memory } => {
                self.profile(mig).is_none_or(|p| p.slices >= *slices && p.memory >= *memory)
            }
        }
    }

    /// Engines of the whole GPU: those of the profile that covers the whole axis; empty without such a profile.
    fn engine_limits(&self) -> &[i32] {
        let full = self.profiles.iter().filter(|p| p.size == self.memory_slices && p.slices == self.slices);
        full.min_by_key(|p| (p.name.len(), &p.name)).map_or(&[], |p| &p.engines)
    }

    /// A GPU of this board without instances.
    pub fn empty(&self) -> Occupancy<'_> {
        let limits = self.engine_limits();
        let (counts, engines) = (vec![0; self.profiles.len()], vec![0; limits.len()]);
        Occupancy { board: self, limits, memory: 0, slices: 0, counts, engines }
    }

    /// Whether these instances can exist together at these starts.
    pub fn fits<'i>(&self, instances: impl IntoIterator<Item = (&'i str, i32)>) -> bool {
        let mut gpu = self.empty();
        instances.into_iter().all(|(name, start)| self.position(name).is_some_and(|mig| gpu.place(mig, start)))
    }
}

impl Occupancy<'_> {
    /// Whether one more instance of a profile, by its index on the board, fits at this start.
    pub fn takes(&self, mig: usize, start: i32) -> bool {
        let Some((profile, count)) = self.board.profiles.get(mig).zip(self.counts.get(mig)) else { return false };
        profile.starts.contains(&start)
            && self.memory & bits(start, profile.size) == 0
            && self.slices + profile.slices <= self.board.slices
            && *count < profile.max
            && self.engines.iter().zip(&profile.engines).zip(self.limits).all(|((a, b), limit)| a + b <= *limit)
    }

    /// Places one more instance where it fits.
    pub fn place(&mut self, mig: usize, start: i32) -> bool {
        if !self.takes(mig, start) {
            return false;
        }
        if let (Some(profile), Some(count)) = (self.board.profiles.get(mig), self.counts.get_mut(mig)) {
            *count += 1;
            self.memory |= bits(start, profile.size);
            self.slices += profile.slices;
            self.engines.iter_mut().zip(&profile.engines).for_each(|(sum, more)| *sum += more);
        }
        true
    }
}

/// Most memory slices of a board. NVIDIA's boards have eight; the number of layouts grows exponentially with it.
const MOST_SLICES: i32 = 12;
/// Longest name of a product that is kept, in characters: it is part of messages.
const LONGEST_PRODUCT: usize = 128;
/// More engines of one kind than any board has.
const MOST_ENGINES: i32 = 1000;

/// More memory than any board has, in MiB.
const MOST_MEMORY: i64 = 1 << 30;

/// Bits of the memory slices that an instance covers.
pub(super) fn bits(start: i32, size: i32) -> u32 {
    let low = |n: i32| 1_u32.checked_shl(n.max(0).cast_unsigned()).map_or(u32::MAX, |bit| bit - 1);
    low(start + size) & !low(start)
}

impl From<&Board> for BoardGeometry {
    /// Leaves out profiles without slices or larger than the board, and starts outside the axis, and bounds all numbers, so that no later
    /// code meets others: they come from an agent, and one agent must not end the operator.
    fn from(board: &Board) -> Self {
        let axis = board.memory_slices.clamp(0, MOST_SLICES);
        let slices = board.slices.clamp(0, axis);
        let exists = |p: &&BoardProfile| (1..=axis).contains(&p.size) && (1..=slices).contains(&p.slices);
        let profiles = board.profiles.iter().filter(exists).map(|p| {
            let mut starts: Vec<i32> = p.starts.iter().copied().filter(|s| (0..=axis - p.size).contains(s)).collect();
            starts.sort_unstable();
            starts.dedup();
            MigProfile {
                name: p.name.clone(),
                slices: p.slices,
                memory: p.memory.mib().unwrap_or(0),
                size: p.size,
                starts,
                max: p.max.clamp(0, axis),
                engines: p.engines.iter().map(|e| e.clamp(&0, &MOST_ENGINES)).copied().collect(),
            }
        });
        let mut profiles: Vec<_> = profiles.collect();
        profiles.sort_by(|a, b| a.name.cmp(&b.name));
        profiles.dedup_by(|a, b| a.name == b.name);
        Self {
            product: board.product.chars().take(LONGEST_PRODUCT).collect(),
            memory: board.memory.mib().unwrap_or(0).min(MOST_MEMORY),
            reserved: board.reserved.as_ref().and_then(|r| r.mib().ok()).unwrap_or(0).min(MOST_MEMORY),
            slices,
            memory_slices: axis,
            mode_needs_reset: board.mode_needs_reset,
            profiles,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_that_no_board_has_are_left_out_or_bounded() {
        let profile = |name: &str, slices: i32, size: i32, starts: &[i32]| {
            json!({"id": 1, "name": name, "slices": slices, "memory": "1Gi", "size": size, "starts": starts,
                "max": i32::MAX, "engines": [i32::MAX]})
        };
        let profiles = [
            profile("huge", 1, i32::MAX, &[1]),
            profile("wide", i32::MAX, 1, &[0]),
            profile("none", 0, -1, &[0]),
            profile("1g", 1, 1, &[i32::MIN, -1, 0, 7, 8, i32::MAX]),
        ];
        let board = json!({"product": "p", "memory": "8Gi", "slices": 7, "memorySlices": 8, "profiles": profiles});
        let board = BoardGeometry::from(&serde_json::from_value::<Board>(board).unwrap());
        let [only] = board.profiles.as_slice() else { panic!("{:?}", board.profiles) };
        assert_eq!((only.name.as_str(), only.starts.as_slice(), only.max), ("1g", &[0, 7][..], 8));
        assert_eq!(only.engines, [MOST_ENGINES]);
        let instances = |count: usize| std::iter::repeat_n(("1g", 0), count);
        assert!(board.fits(instances(1)) && !board.fits(instances(2)));
    }

    #[test]
    fn board_and_product_of_any_size_are_bounded() {
        let product = "\u{fc}".repeat(100_000);
        let starts: Vec<i32> = (0..31).collect();
        let profile = json!({"id": 1, "name": "1g", "slices": 1, "memory": "1Gi", "size": 1, "starts": starts, "max": 31, "engines": []});
        let board =
            json!({"product": product, "memory": "8Gi", "slices": 31, "memorySlices": 31, "profiles": [profile]});
        let board = BoardGeometry::from(&serde_json::from_value::<Board>(board).unwrap());
        assert_eq!(
            (board.memory_slices, board.slices, board.product.chars().count()),
            (MOST_SLICES, MOST_SLICES, LONGEST_PRODUCT)
        );
        assert!(board.profiles.iter().all(|profile| profile.starts.iter().all(|start| *start < MOST_SLICES)));
    }
}
