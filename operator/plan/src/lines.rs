//! The profiles that can be carved, numbered in the order of their names.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use gputenancy_crds::Trust;

use super::{
    model::{Profile, Shape},
    name::ProfileName,
};

/// So many profiles are looked at one after the other before the search by name.
const FEW: usize = 32;

/// A profile's number.
pub(super) type Line = usize;

#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    names: Vec<ProfileName>,
    profiles: Vec<Profile>,
    /// Every profile by name, with its number if it can be carved, and how far a tenant must be trusted.
    all: Vec<(ProfileName, Option<Line>, Trust)>,
    by_resource: HashMap<String, Line, foldhash::fast::FixedState>,
}

impl Lines {
    pub fn of(profiles: &BTreeMap<ProfileName, Profile>) -> Self {
        let mut lines = Self::default();
        for (name, profile) in profiles {
            let line = lines.names.len();
            let carved = !matches!(profile.shape, Shape::Shared(_));
            lines.all.push((name.clone(), carved.then_some(line), profile.trust));
            if !carved {
                continue;
            }
            lines.names.push(name.clone());
            lines.profiles.push(profile.clone());
            lines.by_resource.insert(profile.resource.clone(), line);
        }
        lines
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// A profile's number if it can be carved, and the least trusted tenant that may use it; `None`: there is no such profile.
    pub fn known(&self, profile: &ProfileName) -> Option<(Option<Line>, Trust)> {
        // names of one picture are mostly shared, and there are few
        let same = |(name, ..): &&(ProfileName, _, _)| Arc::ptr_eq(name.shared(), profile.shared());
        let found = self.all.iter().take(FEW).find(same).or_else(|| {
            let at = self.all.binary_search_by(|(name, ..)| name.cmp(profile)).ok()?;
            self.all.get(at)
        });
        found.map(|(_, line, trust)| (*line, *trust))
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
