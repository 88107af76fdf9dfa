//! The profiles that can be carved, numbered in the order of their names.

use std::collections::{BTreeMap, HashMap};

use gputenancy_crds::Trust;

use super::{
    model::{Profile, Shape},
    name::ProfileName,
};

/// A profile's number.
pub(super) type Line = usize;

#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    names: Vec<ProfileName>,
    profiles: Vec<Profile>,
    /// How far a tenant must be trusted, also for profiles that are not carved.
    trust: BTreeMap<ProfileName, Trust>,
    by_resource: HashMap<String, Line, foldhash::fast::FixedState>,
}

impl Lines {
    pub fn of(profiles: &BTreeMap<ProfileName, Profile>) -> Self {
        let trust = profiles.iter().map(|(name, p)| (name.clone(), p.trust)).collect();
        let mut lines = Self { trust, ..Self::default() };
        for (line, (name, profile)) in profiles.iter().filter(|(_, p)| !matches!(p.shape, Shape::Shared(_))).enumerate()
        {
            lines.names.push(name.clone());
            lines.profiles.push(profile.clone());
            lines.by_resource.insert(profile.resource.clone(), line);
        }
        lines
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Least trusted tenant that may use a profile; `None`: there is no such profile.
    pub fn known(&self, profile: &ProfileName) -> Option<Trust> {
        self.trust.get(profile).copied()
    }

    pub fn find(&self, profile: &ProfileName) -> Option<Line> {
        self.names.binary_search(profile).ok()
    }

    pub fn profile(&self, name: &ProfileName) -> Option<(Line, &Profile)> {
        let line = self.find(name)?;
        Some((line, self.profiles.get(line)?))
    }

    pub fn name(&self, line: Line) -> ProfileName {
        self.names.get(line).cloned().unwrap_or_default()
    }

    /// The profile that is advertised under this resource.
    pub fn by_resource(&self, resource: &str) -> Option<Line> {
        self.by_resource.get(resource).copied()
    }
}
