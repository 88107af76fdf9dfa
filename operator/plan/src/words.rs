//! Texts as numbers, so that what is compared often is compared fast.

use std::{collections::HashMap, sync::Arc};

#[derive(Debug, Default)]
pub(super) struct Words {
    ids: HashMap<Arc<str>, u32, foldhash::fast::FixedState>,
    /// The last one asked for: neighbours on a GPU tend to be the same.
    last: Option<(Arc<str>, u32)>,
}

impl Words {
    pub fn id(&mut self, text: &str) -> u32 {
        if let Some((_, id)) = self.last.as_ref().filter(|(last, _)| **last == *text) {
            return *id;
        }
        let (text, id) = match self.ids.get_key_value(text) {
            Some((text, id)) => (Arc::clone(text), *id),
            None => {
                // 0 stands for no text
                let (text, id) = (Arc::<str>::from(text), u32::try_from(self.ids.len() + 1).unwrap_or(u32::MAX));
                self.ids.insert(Arc::clone(&text), id);
                (text, id)
            }
        };
        self.last = Some((text, id));
        id
    }
}
