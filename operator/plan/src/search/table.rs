//! Layout tables: every layout of a board with a pool's profiles, with all that does not depend on the present layout.

use std::collections::HashMap;

use gputenancy_crds::{InstanceSpec, Layout, SharingMode, names, slice_of};

use crate::{
    board::{BoardGeometry, Item, Leftover, Leftovers, Packing, chosen, packings},
    fleet::{BoardOptions, Devices, ProfileId, ProfileIndex, add_one},
    snapshot::InUse,
};

#[derive(Debug)]
pub(super) struct LayoutTable {
    pub items: Vec<Item>,
    /// By item: the profile that it is a device of.
    profiles: Vec<Option<ProfileId>>,
    pub rows: Vec<Row>,
    /// Devices by profile, each combination once.
    pub supplies: Vec<Devices>,
}

/// One layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub packing: Packing,
    /// Index of its devices among the table's supplies.
    pub supply: usize,
    pub left: Leftover,
}

impl LayoutTable {
    pub fn of(
        items: Vec<Item>,
        options: &BoardOptions<'_>,
        profiles: &ProfileIndex<'_>,
        leftovers: &mut Leftovers,
    ) -> Self {
        let board = options.board;
        let profile = |i: &Item| {
            let mig = &board.profiles.get(i.mig)?.name;
            let resource = i.resource.clone().unwrap_or_else(|| names::mig_resource(mig));
            profiles.of_device(&resource, Some(mig))
        };
        let profiles: Vec<Option<ProfileId>> = items.iter().map(profile).collect();
        let has_mig = board.memory_slices > 0 && options.offers.iter().any(|o| o.mig.is_some());
        let found = if has_mig { packings(board, &items) } else { Vec::new() };
        let mut supplies = Vec::new();
        let mut known: HashMap<Devices, usize> = HashMap::new();
        let mut rows = Vec::with_capacity(found.len());
        for packing in found {
            let mut supply = Devices::new();
            for (item, profile) in chosen(packing, &items).zip(chosen(packing, &profiles)) {
                let Some(profile) = profile else { continue };
                if item.replicas.is_some() && options.closed.contains(&SharingMode::TimeSlice) {
                    continue;
                }
                (0..item.devices()).for_each(|_| add_one(&mut supply, *profile));
            }
            let supply = *known.entry(supply).or_insert_with_key(|supply| {
                supplies.push(supply.clone());
                supplies.len() - 1
            });
            let shape = |i: &Item| board.profiles.get(i.mig).map(|p| (i.start, p.size, p.slices));
            let left = leftovers.after(chosen(packing, &items).filter_map(shape));
            rows.push(Row { packing, supply, left });
        }
        Self { items, profiles, rows, supplies }
    }

    /// The bit of an item; none if the table lacks it.
    pub fn bit(&self, item: &Item) -> Packing {
        self.items.iter().position(|i| i == item).map_or(0, |bit| 1 << bit)
    }

    /// The bits of instances that have this time-slice.
    pub fn with_slice(&self, used: &InUse, board: &BoardGeometry) -> Packing {
        let (start, slice) = slice_of(used.start);
        let Some(profile) = &used.profile else { return 0 };
        let resource = Some(&*used.resource).filter(|r| **r != names::mig_resource(profile));
        let mig = board.position(profile);
        let has = |i: &Item| {
            i.start == start
                && Some(i.mig) == mig
                && i.resource.as_deref() == resource
                && i.replicas.is_some_and(|replicas| slice < replicas)
        };
        let bits = self.items.iter().enumerate().filter(|(_, item)| has(item)).map(|(bit, _)| 1 << bit);
        bits.fold(0, |all, bit: Packing| all | bit)
    }

    pub fn layout(&self, packing: Packing, board: &BoardGeometry) -> Layout {
        let name = |mig: usize| board.profiles.get(mig).map(|p| p.name.clone()).unwrap_or_default();
        let spec = |i: &Item| InstanceSpec {
            start: i.start,
            profile: name(i.mig),
            resource: i.resource.clone(),
            replicas: i.replicas,
        };
        Layout { mig: true, instances: chosen(packing, &self.items).map(spec).collect(), ..Layout::default() }
    }

    /// Instances with devices of a profile in a layout.
    pub fn instances(&self, packing: Packing, profile: ProfileId) -> usize {
        chosen(packing, &self.profiles).filter(|p| **p == Some(profile)).count()
    }

    /// Devices of a profile in a layout.
    pub fn count(&self, packing: Packing, profile: ProfileId) -> i64 {
        let both = chosen(packing, &self.items).zip(chosen(packing, &self.profiles));
        both.filter(|(_, p)| **p == Some(profile)).map(|(item, _)| i64::from(item.devices())).sum()
    }
}
