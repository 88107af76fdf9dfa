//! The geometry of one kind of board: which instances may lie where, together.

use gputenancy_crds as crds;
use smallvec::SmallVec;

use super::model::Shape;

/// A kind of board as its node's agent discovered it. Names are data: nothing is read out of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Board {
    /// Product name with dashes.
    pub product: String,
    /// Compute slices of the whole GPU; 0: no MIG.
    pub slices: i32,
    /// Length of the memory axis; 0: no MIG.
    pub memory_slices: i32,
    /// A change of MIG mode needs a reset.
    pub mode_needs_reset: bool,
    /// Its MIG profiles.
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
    /// Where an instance may start.
    pub starts: Vec<i32>,
    /// Most instances on one GPU.
    pub max: i32,
    /// Engines of one instance: copy, decoder, encoder, JPEG, OFA.
    pub engines: Vec<i32>,
}

/// Why instances cannot exist together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The board does not offer the profile.
    #[error("{board} offers no profile {profile}")]
    Unknown {
        /// The board.
        board: String,
        /// The profile.
        profile: String,
    },
    /// The profile may not start there.
    #[error("{profile} may not start at {start}")]
    Start {
        /// The profile.
        profile: String,
        /// Memory slice.
        start: i32,
    },
    /// Two instances cover the same memory slice.
    #[error("two instances cover memory slice {slice}")]
    Overlap {
        /// Memory slice.
        slice: i32,
    },
    /// More instances of a profile than the board allows.
    #[error("more than {max} instances of {profile}")]
    TooMany {
        /// The profile.
        profile: String,
        /// Most on one GPU.
        max: i32,
    },
    /// More compute slices than the board has.
    #[error("more than {slices} compute slices")]
    Compute {
        /// Compute slices of the board.
        slices: i32,
    },
    /// More media or copy engines than the board has.
    #[error("more engines of kind {kind} than the board's {limit}")]
    Engines {
        /// Place in the list of engines.
        kind: usize,
        /// Engines of the whole GPU.
        limit: i32,
    },
}

/// What instances placed so far take up: grows by [`Room::place`], copied by whoever searches.
#[derive(Clone, Debug)]
pub struct Room<'a> {
    board: &'a Board,
    limits: &'a [i32],
    slots: u32,
    slices: i32,
    counts: SmallVec<[i32; 16]>,
    engines: SmallVec<[i32; 8]>,
}

impl Board {
    /// The MIG profile of that name.
    pub fn profile(&self, name: &str) -> Option<&MigProfile> {
        self.profiles.iter().find(|p| p.name == name)
    }

    /// The MIG profile that a shape means on this board: for a request by size the smallest that satisfies it, the plain
    /// one before NVIDIA's variants of the same size (whose names carry a suffix).
    pub fn resolve(&self, shape: &Shape) -> Option<&MigProfile> {
        match shape {
            Shape::Whole | Shape::Shared(_) => None,
            Shape::Named(name) => self.profile(name),
            Shape::AtLeast { slices, memory } => self
                .profiles
                .iter()
                .filter(|p| p.slices >= *slices && p.memory >= *memory)
                .min_by_key(|p| (p.size, p.slices, p.memory, p.name.len(), &p.name)),
        }
    }

    /// Engines of the whole GPU: those of the profile that covers the whole axis; empty where no profile does.
    fn engine_limits(&self) -> &[i32] {
        let full = self.profiles.iter().filter(|p| p.size == self.memory_slices && p.slices == self.slices);
        full.min_by_key(|p| (p.name.len(), &p.name)).map_or(&[], |p| &p.engines)
    }

    /// An empty GPU of this kind.
    pub fn room(&self) -> Room<'_> {
        let limits = self.engine_limits();
        Room {
            board: self,
            limits,
            slots: 0,
            slices: 0,
            counts: SmallVec::from_elem(0, self.profiles.len()),
            engines: SmallVec::from_elem(0, limits.len()),
        }
    }

    /// Can these instances exist together, at these places?
    pub fn check<'i>(&self, instances: impl IntoIterator<Item = (&'i str, i32)>) -> Result<(), Misfit> {
        let mut room = self.room();
        instances.into_iter().try_for_each(|(profile, start)| room.place_named(profile, start))
    }
}

impl Room<'_> {
    /// Takes up the room of one more instance, or says why there is none and stays as it was.
    pub fn place_named(&mut self, profile: &str, start: i32) -> Result<(), Misfit> {
        let unknown = || Misfit::Unknown { board: self.board.product.clone(), profile: profile.to_owned() };
        let which = self.board.profiles.iter().position(|p| p.name == profile).ok_or_else(unknown)?;
        self.place(which, start)
    }

    /// Is there room for one more instance at this start? As [`Room::place`], without the reason.
    pub fn takes(&self, which: usize, start: i32) -> bool {
        let Some((profile, count)) = self.board.profiles.get(which).zip(self.counts.get(which)) else { return false };
        profile.starts.contains(&start)
            && self.slots & mask(start, profile.size) == 0
            && self.slices + profile.slices <= self.board.slices
            && *count < profile.max
            && self.engines.iter().zip(&profile.engines).zip(self.limits).all(|((a, b), limit)| a + b <= *limit)
    }

    /// As [`Room::place_named`], by the profile's index on the board.
    pub fn place(&mut self, which: usize, start: i32) -> Result<(), Misfit> {
        let Some(profile) = self.board.profiles.get(which) else {
            return Err(Misfit::Unknown { board: self.board.product.clone(), profile: format!("#{which}") });
        };
        if !profile.starts.contains(&start) {
            return Err(Misfit::Start { profile: profile.name.clone(), start });
        }
        let mask = mask(start, profile.size);
        if self.slots & mask != 0 {
            return Err(Misfit::Overlap { slice: (self.slots & mask).trailing_zeros().cast_signed() });
        }
        if self.slices + profile.slices > self.board.slices {
            return Err(Misfit::Compute { slices: self.board.slices });
        }
        let Some(count) = self.counts.get_mut(which) else {
            return Err(Misfit::Unknown { board: self.board.product.clone(), profile: profile.name.clone() });
        };
        if *count >= profile.max {
            return Err(Misfit::TooMany { profile: profile.name.clone(), max: profile.max });
        }
        let over =
            self.engines.iter().zip(&profile.engines).zip(self.limits).position(|((a, b), limit)| a + b > *limit);
        if let Some(kind) = over {
            return Err(Misfit::Engines { kind, limit: self.limits.get(kind).copied().unwrap_or(0) });
        }
        *count += 1;
        self.slots |= mask;
        self.slices += profile.slices;
        self.engines.iter_mut().zip(&profile.engines).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    /// Memory slices that nothing covers.
    pub fn free_memory(&self) -> i32 {
        self.board.memory_slices - self.slots.count_ones().cast_signed()
    }

    /// Compute slices that nothing uses.
    pub fn free_compute(&self) -> i32 {
        self.board.slices - self.slices
    }
}

/// Bits of the memory slices that an instance covers.
fn mask(start: i32, size: i32) -> u32 {
    let bits = |n: i32| u32::try_from(n).ok().filter(|n| *n < 32);
    match (bits(start), bits(size)) {
        (Some(start), Some(size)) => ((1_u32 << size) - 1) << start,
        _ => u32::MAX,
    }
}

impl From<&crds::Board> for Board {
    /// Takes what makes sense: starts outside the axis are left out, so that no later step meets them.
    fn from(board: &crds::Board) -> Self {
        let axis = board.memory_slices.clamp(0, 31);
        let profiles = board.profiles.iter().filter(|p| p.size > 0 && p.slices > 0).map(|p| {
            let mut starts: Vec<i32> = p.starts.iter().copied().filter(|s| *s >= 0 && s + p.size <= axis).collect();
            starts.sort_unstable();
            starts.dedup();
            MigProfile {
                name: p.name.clone(),
                slices: p.slices,
                memory: p.memory.mib().unwrap_or(0),
                size: p.size,
                starts,
                max: p.max,
                engines: p.engines.clone(),
            }
        });
        let mut profiles: Vec<_> = profiles.collect();
        profiles.sort_by(|a, b| a.name.cmp(&b.name));
        profiles.dedup_by(|a, b| a.name == b.name);
        Self {
            product: board.product.clone(),
            slices: board.slices,
            memory_slices: axis,
            mode_needs_reset: board.mode_needs_reset,
            profiles,
        }
    }
}
