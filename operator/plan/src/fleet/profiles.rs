//! The profiles, numbered in the order of their names.

use std::collections::HashMap;

use crate::{
    names::ProfileName,
    snapshot::{Profile, Snapshot},
};

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

    /// The profile with this resource.
    pub fn by_resource(&self, resource: &str) -> Option<ProfileId> {
        self.by_resource.get(resource).copied()
    }
}
