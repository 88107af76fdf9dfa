//! Equal values as one: the snapshot of a large fleet has each text, layout and board once.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use gputenancy_crds::{GpuSpec, Layout};

use super::layout::{has_layout, plain};
use crate::board::BoardGeometry;

/// Every value so far.
#[derive(Debug, Default)]
pub struct Interner {
    texts: HashSet<Arc<str>>,
    layouts: HashSet<Arc<Layout>>,
    /// The layout of the last spec: the GPUs of a node mostly have the same.
    last: Option<Arc<Layout>>,
    boards: HashSet<Arc<BoardGeometry>>,
}

impl Interner {
    /// The one copy of a name or another text.
    pub fn text<T: From<Arc<str>>>(&mut self, text: &str) -> T {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known).into();
        }
        let new = Arc::<str>::from(text);
        self.texts.insert(Arc::clone(&new));
        new.into()
    }

    /// The one copy of a layout.
    pub fn layout(&mut self, layout: Layout) -> Arc<Layout> {
        one(&mut self.layouts, layout)
    }

    /// The one copy of a spec's layout, in canonical form.
    pub fn layout_of(&mut self, spec: &GpuSpec) -> Arc<Layout> {
        if let Some(last) = self.last.as_ref().filter(|last| has_layout(spec, last)) {
            return Arc::clone(last);
        }
        let layout = self.layout(plain(spec.layout()));
        self.last = Some(Arc::clone(&layout));
        layout
    }

    /// The one copy of a board.
    pub fn board(&mut self, board: BoardGeometry) -> Arc<BoardGeometry> {
        one(&mut self.boards, board)
    }

    /// Drops values that nothing else has.
    pub fn forget_unused(&mut self) {
        self.last = None;
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.layouts.retain(|layout| Arc::strong_count(layout) > 1);
        self.boards.retain(|board| Arc::strong_count(board) > 1);
    }
}

fn one<T: Eq + Hash>(known: &mut HashSet<Arc<T>>, value: T) -> Arc<T> {
    if let Some(known) = known.get(&value) {
        return Arc::clone(known);
    }
    let new = Arc::new(value);
    known.insert(Arc::clone(&new));
    new
}
