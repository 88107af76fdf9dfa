//! What the profiles of a pool are on one board.

use std::sync::Arc;

use gputenancy_crds::names;

use super::profiles::{ProfileId, ProfileIndex};
use crate::{
    board::{BoardGeometry, Shape},
    snapshot::{Pool, Snapshot},
};

/// What a profile is on one board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub profile: ProfileId,
    /// Index of the MIG profile on the board; `None`: the whole GPU.
    pub mig: Option<usize>,
    /// Resource, where it is not NVIDIA's for the device.
    pub resource: Option<String>,
    /// Share of a GPU of one device, in 840ths, so that thirds, quarters, sevenths and eighths are whole numbers.
    pub share: i64,
}

/// A board and what pools offer on it. Pools with the same offers have it in common.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BoardOptions<'a> {
    pub board: &'a Arc<BoardGeometry>,
    pub offers: Vec<Offer>,
}

impl<'a> BoardOptions<'a> {
    pub fn of(snapshot: &Snapshot, profiles: &ProfileIndex<'_>, pool: &Pool, board: &'a Arc<BoardGeometry>) -> Self {
        let mut offers = Vec::new();
        for name in &pool.profiles {
            let Some((id, profile)) = profiles.find(name).zip(snapshot.profiles.get(name)) else { continue };
            if !profile.products.is_empty() && !profile.products.contains(&board.product) {
                continue;
            }
            let (mig, share, default) = if profile.shape == Shape::Whole {
                (None, 840, names::WHOLE_GPU_RESOURCE.to_owned())
            } else {
                let Some(found) = board.resolve(&profile.shape) else { continue };
                let share = i64::from(found.size) * 840 / i64::from(board.memory_slices.max(1));
                (board.position(&found.name), share.max(1), names::mig_resource(&found.name))
            };
            let resource = Some(profile.resource.clone()).filter(|r| *r != default);
            offers.push(Offer { profile: id, mig, resource, share });
        }
        Self { board, offers }
    }

    pub fn offer(&self, profile: ProfileId) -> Option<&Offer> {
        self.offers.iter().find(|o| o.profile == profile)
    }
}
