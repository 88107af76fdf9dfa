//! Equal values as one: a picture of a large fleet has each text, layout and board once, and comparing them is cheap.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use gputenancy_crds::Layout;

use super::board::Board;

type Known<T> = HashSet<Arc<T>, foldhash::fast::FixedState>;

/// Every value seen so far. A picture does not depend on it: without, it is only larger, and slower to plan for.
#[derive(Debug, Default)]
pub struct Sharing {
    texts: Known<str>,
    layouts: Known<Layout>,
    boards: Known<Board>,
}

impl Sharing {
    /// The one copy of a name or another text.
    pub fn text<T: From<Arc<str>>>(&mut self, text: &str) -> T {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known).into();
        }
        let new = Arc::<str>::from(text);
        self.texts.insert(Arc::clone(&new));
        new.into()
    }

    /// The copy of a text that `all` have, or else our own, of which they are not told.
    pub(super) fn text_beside<T: From<Arc<str>>>(&mut self, all: &Self, text: &str) -> T {
        all.texts.get(text).map_or_else(|| self.text(text), |known| Arc::clone(known).into())
    }

    /// The one copy of a layout.
    pub fn layout(&mut self, layout: Layout) -> Arc<Layout> {
        one(&mut self.layouts, layout)
    }

    /// The one copy of a board.
    pub fn board(&mut self, board: Board) -> Arc<Board> {
        one(&mut self.boards, board)
    }
}

fn one<T: Eq + Hash>(known: &mut Known<T>, value: T) -> Arc<T> {
    if let Some(known) = known.get(&value) {
        return Arc::clone(known);
    }
    let new = Arc::new(value);
    known.insert(Arc::clone(&new));
    new
}
