//! The profiles, numbered in the order of their names.

use std::collections::HashMap;

use gputenancy_crds::InstanceSpec;

use crate::{
    board::{BoardGeometry, Shape},
    snapshot::{Profile, Snapshot},
};
use gputenancy_crds::ids::ProfileName;

/// A profile's number.
pub(crate) type ProfileId = usize;

#[derive(Debug)]
pub(crate) struct ProfileIndex<'a> {
    profiles: Vec<(&'a ProfileName, &'a Profile)>,
    by_resource: HashMap<&'a str, ProfileId>,
}

impl<'a> ProfileIndex<'a> {
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let profiles: Vec<_> = snapshot.profiles.iter().collect();
        let by_resource = profiles.iter().enumerate().map(|(id, (_, p))| (p.resource.as_str(), id)).collect();
        Self { profiles, by_resource }
    }

    pub fn len(&self) -> usize {
        self.profiles.len()
    }

    pub fn find(&self, name: &ProfileName) -> Option<ProfileId> {
        self.profiles.binary_search_by_key(&name, |(name, _)| name).ok()
    }

    pub fn name(&self, id: ProfileId) -> ProfileName {
        self.profiles.get(id).map(|(name, _)| (*name).clone()).unwrap_or_default()
    }

    /// The profile that a device belongs to: the one with its resource, if the device has the profile's shape. `mig`: NVIDIA's name of a MIG
    /// instance. Instances of a former size, and whole GPUs where `nvidia.com/gpu` is that of a slice, belong to none.
    pub fn of_device(&self, resource: &str, mig: Option<&str>) -> Option<ProfileId> {
        let id = self.by_resource.get(resource).copied()?;
        let fits = match &self.profiles.get(id)?.1.shape {
            Shape::Named(name) => mig == Some(name.as_str()),
            Shape::AtLeast { .. } => mig.is_some(),
            Shape::Slice { of, .. } => match &**of {
                Shape::Named(name) => mig == Some(name.as_str()),
                _ => mig.is_some(),
            },
            Shape::Whole | Shape::Share(_) => mig.is_none(),
        };
        fits.then_some(id)
    }

    /// Whether an instance has the resource of a profile and not its shape, as after an edit of the profile.
    pub fn is_former(&self, instance: &InstanceSpec, board: &BoardGeometry) -> bool {
        let resource = instance.resource_name();
        let profile = self.by_resource.get(resource.as_str()).and_then(|id| self.profiles.get(*id));
        profile.is_some_and(|(_, profile)| {
            let sliced = profile.shape.replicas().is_some();
            sliced != instance.replicas.is_some() || !board.serves(&profile.shape, &instance.profile)
        })
    }
}
