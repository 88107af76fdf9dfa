//! The devices of the profiles of a pool on one board.

use std::{collections::BTreeSet, sync::Arc};

use gputenancy_crds::{CONTEXT_MIB, Isolation, SharingMode, names};

use super::profiles::{ProfileId, ProfileIndex};
use crate::{
    board::{BoardGeometry, PARTS, Shape, ShareOffer},
    plugin_shares,
    snapshot::{Pool, SLICES, Snapshot, Unlimited},
    strategy,
};

/// The device of a profile on one board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub profile: ProfileId,
    /// Index of the MIG profile on the board; `None`: the whole GPU, or a share of it.
    pub mig: Option<usize>,
    /// Time-slices of one instance, where it is shared.
    pub replicas: Option<i32>,
    /// The size of a share on the board.
    pub shares: Option<ShareOffer>,
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
    /// Kinds of shares that are not offered, because their node cannot limit them as the pool demands: idle ones are no supply.
    pub closed: BTreeSet<SharingMode>,
}

impl<'a> BoardOptions<'a> {
    pub fn of(
        snapshot: &Snapshot,
        profiles: &ProfileIndex<'_>,
        pool: &Pool,
        board: &'a Arc<BoardGeometry>,
        unlimited: &Unlimited,
    ) -> Self {
        let mut offers = Vec::new();
        for name in &pool.profiles {
            let Some((id, profile)) = profiles.find(name).zip(snapshot.profiles.get(name)) else { continue };
            if !profile.products.is_empty() && !profile.products.contains(&board.product) {
                continue;
            }
            if strategy::refusal(pool, profile).is_some() {
                continue;
            }
            if profile.shape.sharing_mode().is_some_and(|mode| unlimited.modes.contains_key(&mode)) {
                continue;
            }
            let (mig, shares, share, default) = match &profile.shape {
                Shape::Whole => (None, None, PARTS, Some(names::WHOLE_GPU_RESOURCE.to_owned())),
                Shape::Share(_) | Shape::Slice { .. } if plugin_shares::refusal(snapshot, pool, name).is_some() => {
                    continue;
                }
                Shape::Share(shape) => {
                    let Some(offer) =
                        board.share(shape).filter(|o| pool.minimum == Isolation::None || board.can_limit(o))
                    else {
                        continue;
                    };
                    (None, Some(offer), board.weight(&offer), None)
                }
                Shape::Named(_) | Shape::AtLeast { .. } | Shape::Slice { .. } => {
                    let Some(found) = board.resolve(&profile.shape) else { continue };
                    let slices = i64::from(profile.shape.replicas().unwrap_or(1));
                    let too_small = pool.minimum != Isolation::None && found.memory / slices <= CONTEXT_MIB;
                    if slices > 1 && (too_small || !SLICES.is_at_least(pool.minimum)) {
                        continue;
                    }
                    let parts =
                        i64::from(board.memory_slices.max(1)) * i64::from(profile.shape.replicas().unwrap_or(1));
                    let share = i64::from(found.size) * PARTS / parts;
                    (board.position(&found.name), None, share.max(1), Some(names::mig_resource(&found.name)))
                }
            };
            let resource = Some(profile.resource.clone()).filter(|r| Some(r) != default.as_ref());
            let replicas = profile.shape.replicas();
            offers.push(Offer { profile: id, mig, replicas, shares, resource, share });
        }
        Self { board, offers, closed: unlimited.modes.keys().copied().collect() }
    }

    /// Offers of the whole GPU, each with its index.
    pub fn wholes(&self) -> impl Iterator<Item = (usize, &Offer)> {
        self.offers.iter().enumerate().filter(|(_, o)| o.mig.is_none() && o.shares.is_none())
    }

    /// Offers of shares.
    pub fn shares(&self) -> impl Iterator<Item = (&Offer, &ShareOffer)> {
        self.offers.iter().filter_map(|o| Some((o, o.shares.as_ref()?)))
    }

    pub fn offer(&self, profile: ProfileId) -> Option<&Offer> {
        self.offers.iter().find(|o| o.profile == profile)
    }
}
