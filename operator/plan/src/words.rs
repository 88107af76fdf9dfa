//! Texts as numbers, so that what is compared often is compared fast.

use std::{collections::HashMap, sync::Arc};

use super::lines::{Line, Lines};

type Fast = foldhash::fast::FixedState;

/// What a text is: neighbours on a GPU tend to have the same.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Profile,
    Resource,
    Namespace,
}

#[derive(Debug, Default)]
pub(super) struct Words {
    ids: HashMap<Arc<str>, u32, Fast>,
    /// The last one asked for, by role.
    profile: (Arc<str>, u32),
    resource: (Arc<str>, u32),
    namespace: (Arc<str>, u32),
    /// By word: the profile that is advertised under it, once that was asked.
    lines: HashMap<u32, Option<Line>, Fast>,
}

impl Words {
    /// The number of a text. 0 stands for no text.
    pub fn id(&mut self, role: Role, text: &str) -> u32 {
        let last = match role {
            Role::Profile => &mut self.profile,
            Role::Resource => &mut self.resource,
            Role::Namespace => &mut self.namespace,
        };
        if *last.0 == *text && last.1 != 0 {
            return last.1;
        }
        *last = if let Some((text, id)) = self.ids.get_key_value(text) {
            (Arc::clone(text), *id)
        } else {
            let (text, id) = (Arc::<str>::from(text), u32::try_from(self.ids.len() + 1).unwrap_or(u32::MAX));
            self.ids.insert(Arc::clone(&text), id);
            (text, id)
        };
        last.1
    }

    /// The profile that is advertised under a resource.
    pub fn line(&mut self, resource: &str, lines: &Lines) -> Option<Line> {
        let word = self.id(Role::Resource, resource);
        *self.lines.entry(word).or_insert_with(|| lines.by_resource(resource))
    }
}
