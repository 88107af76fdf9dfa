//! Texts as numbers, so that what is compared often is compared fast.

use std::{collections::HashMap, sync::Arc};

use super::{
    lines::{Line, Lines},
    name::Text,
};

type Fast = foldhash::fast::FixedState;

/// So many addresses are remembered: in a long life they come and go.
const MOST: usize = 1 << 16;

/// What a text is: neighbours on a GPU tend to have the same.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Profile,
    Resource,
    Namespace,
}

/// Whether a word was looked for among the resources, and what was found.
#[derive(Clone, Copy, Debug, Default)]
enum Asked {
    #[default]
    NotYet,
    Found(Option<Line>),
}

#[derive(Debug, Default)]
pub(super) struct Words {
    ids: HashMap<Arc<str>, u32, Fast>,
    /// By address, so that a text that many objects share is read once. The copy keeps the address taken.
    by_address: HashMap<usize, (Arc<str>, u32), Fast>,
    /// Address and number of the last one asked for, by role.
    last: [(usize, u32); 3],
    /// By word: the profile that is advertised under it.
    lines: Vec<Asked>,
}

impl Words {
    /// The number of a text. 0 stands for no text.
    pub fn id(&mut self, role: Role, text: &Text) -> u32 {
        let text = text.shared();
        let address = Arc::as_ptr(text).addr();
        let last = self.last.get(role as usize).filter(|(known, _)| *known == address);
        if let Some((_, id)) = last {
            return *id;
        }
        let id = self.find(address, text);
        if let Some(last) = self.last.get_mut(role as usize) {
            *last = (address, id);
        }
        id
    }

    /// As [`Words::id`], of a text that hardly anything shares: its address is not worth remembering.
    pub fn rare(&mut self, text: &Text) -> u32 {
        self.by_text(text.shared())
    }

    /// How many texts have a number.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// How many addresses are remembered.
    #[cfg(test)]
    pub fn addresses(&self) -> usize {
        self.by_address.len()
    }

    fn by_text(&mut self, text: &Arc<str>) -> u32 {
        let next = u32::try_from(self.ids.len() + 1).unwrap_or(u32::MAX);
        *self.ids.entry(Arc::clone(text)).or_insert(next)
    }

    fn find(&mut self, address: usize, text: &Arc<str>) -> u32 {
        if let Some((_, id)) = self.by_address.get(&address) {
            return *id;
        }
        let id = self.by_text(text);
        if self.by_address.len() >= MOST {
            self.by_address.clear();
            self.last = Default::default();
        }
        self.by_address.insert(address, (Arc::clone(text), id));
        id
    }

    /// The profile that is advertised under a resource.
    pub fn line(&mut self, resource: &Text, lines: &Lines) -> Option<Line> {
        let word = self.id(Role::Resource, resource) as usize;
        if self.lines.len() <= word {
            self.lines.resize(word + 1, Asked::NotYet);
        }
        if let Some(Asked::Found(line)) = self.lines.get(word) {
            return *line;
        }
        let line = lines.by_resource(resource);
        if let Some(asked) = self.lines.get_mut(word) {
            *asked = Asked::Found(line);
        }
        line
    }
}
