//! Random layouts of a board, each with some instances of the one before.

use gputenancy_crds::{GpuSpec, InstanceSpec};
use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use silicon::{
    Machine,
    board::{Board, Placement, Variant},
};

/// A layout of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    pub mig: bool,
    pub instances: Vec<Wanted>,
}

/// An instance of a layout.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub start: u32,
    pub size: u32,
    pub id: u32,
    pub profile: String,
}

impl Layout {
    /// As a spec.
    pub fn spec(&self, uuid: &str) -> GpuSpec {
        let instance = |w: &Wanted| InstanceSpec {
            start: i32::try_from(w.start).unwrap(),
            profile: w.profile.clone(),
            resource: None,
            replicas: None,
        };
        let instances = self.instances.iter().map(instance).collect();
        GpuSpec { uuid: uuid.to_owned(), mig: self.mig, instances, ..GpuSpec::default() }
    }
}

/// A kind of layout, the instances to keep, and candidates as indices of a profile and of one of its starts.
type Draw = (u8, [bool; 8], Vec<(prop::sample::Index, prop::sample::Index)>);

/// A sequence of layouts from a seed.
pub struct Draws {
    runner: TestRunner,
    draw: BoxedStrategy<Draw>,
    /// A GPU in MIG mode, on which the model places instances.
    empty: Machine,
}

impl Draws {
    pub fn new(seed: u64, board: &Board, variant: Variant) -> Self {
        let mut long = [0; 32];
        long[..8].copy_from_slice(&seed.to_le_bytes());
        let runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &long));
        let candidates = vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..12);
        let mut empty = Machine::power_on("draws", board.clone(), variant, 1, &[]);
        (empty.gpus[0].mig, empty.gpus[0].mig_pending) = (true, true);
        Self { runner, draw: (0_u8..100, any::<[bool; 8]>(), candidates).boxed(), empty }
    }

    /// A whole GPU, an empty one, or some of the instances before and all candidates that fit.
    pub fn after(&mut self, before: &Layout) -> Layout {
        let (kind, keep, candidates) = self.draw.new_tree(&mut self.runner).unwrap().current();
        match kind {
            0..12 => return Layout::default(),
            12..20 => return Layout { mig: true, instances: Vec::new() },
            _ => {}
        }
        let mut machine = self.empty.clone();
        let kept = before.instances.iter().zip(keep).filter(|(_, stays)| *stays);
        for (kept, _) in kept {
            machine.create_gi(0, kept.id, Some(Placement { start: kept.start, size: kept.size })).unwrap();
        }
        for (profile, start) in candidates {
            let profile = profile.get(&self.empty.gpus[0].board.profiles);
            let placement = Placement { start: *start.get(&profile.starts), size: profile.size };
            // a candidate that does not fit is skipped
            let _ = machine.create_gi(0, profile.id, Some(placement));
        }
        let wanted = |gi: &silicon::machine::GpuInstance| Wanted {
            start: gi.placement.start,
            size: gi.placement.size,
            id: gi.profile,
            profile: machine.gpus[0].board.profile(gi.profile).unwrap().name.clone(),
        };
        let mut instances: Vec<Wanted> = machine.gpus[0].instances.iter().map(wanted).collect();
        instances.sort_by_key(|wanted| wanted.start);
        Layout { mig: true, instances }
    }
}
