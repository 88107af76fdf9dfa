//! A pool's rules on one kind of board: what is offered there, and every layout that can be carved.

use std::{collections::HashMap, sync::Arc};

use gputenancy_crds::{InstanceSpec, Layout, names};

use super::{
    board::Board,
    lines::{Line, Lines},
    model::{Pool, Shape},
    name::PoolName,
    packing::{Item, Leftover, Leftovers, MOST, Packing, packings},
};

/// What a profile is on one board.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Offer {
    pub line: Line,
    /// Index of the MIG profile on the board; `None`: the whole GPU.
    pub mig: Option<usize>,
    /// Resource as layouts write it: left out where it is the default.
    pub resource: Option<String>,
    /// Share of a GPU of one device, in 840ths, so that thirds, quarters, sevenths and eighths are whole numbers.
    pub share: i64,
}

/// One kind of board in one pool.
#[derive(Debug)]
pub(super) struct Rig {
    pub pool_name: PoolName,
    pub pool: Arc<Pool>,
    pub board: Arc<Board>,
    pub offers: Vec<Offer>,
    /// The first rig with this board and these offers: what one may be given, the other may.
    pub like: usize,
    /// GPUs of it that are supply.
    pub live: usize,
    leftovers: Leftovers,
    books: HashMap<Vec<Item>, Arc<Book>, foldhash::fast::FixedState>,
}

/// Every way to carve a board from some items, with all that does not depend on what is there today.
#[derive(Debug)]
pub(super) struct Book {
    pub items: Vec<Item>,
    /// The profile that each item is a device of.
    lines: Vec<Option<Line>>,
    pub ways: Vec<Way>,
    /// Devices by profile, each combination once.
    pub supplies: Vec<Vec<(Line, i64)>>,
}

/// One way to carve a board.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub packing: Packing,
    /// Index of what it gives among the book's supplies.
    pub supply: usize,
    pub left: Leftover,
}

impl Rig {
    /// One more beside those that are there.
    pub fn new(pool_name: &PoolName, pool: &Arc<Pool>, board: &Arc<Board>, lines: &Lines, there: &[Self]) -> Self {
        let offers = offers(pool, board, lines);
        let like = there.iter().position(|r| r.board == *board && r.offers == offers).unwrap_or(there.len());
        let leftovers = Leftovers::of(board, offers.iter().filter_map(|o| o.mig));
        Self {
            pool_name: pool_name.clone(),
            pool: Arc::clone(pool),
            board: Arc::clone(board),
            offers,
            like,
            live: 0,
            leftovers,
            books: HashMap::default(),
        }
    }

    /// What a layout leaves over that no profile of the pool can use; nothing without MIG.
    pub fn leftover(&mut self, layout: Option<&Layout>) -> Leftover {
        let Some(layout) = layout.filter(|l| l.mig) else { return Leftover::default() };
        let board = Arc::clone(&self.board);
        let shape = |i: &InstanceSpec| board.profile(&i.profile).map(|p| (i.start, p.size, p.slices));
        self.leftovers.after(layout.instances.iter().filter_map(shape))
    }

    /// The ways to carve what the pool offers beside these items, which are there already.
    pub fn book(&mut self, also: impl IntoIterator<Item = Item>, lines: &Lines) -> Arc<Book> {
        let mut items: Vec<Item> = also.into_iter().collect();
        for offer in &self.offers {
            let profile = offer.mig.and_then(|mig| Some((mig, self.board.profiles.get(mig)?)));
            for (mig, start) in profile.into_iter().flat_map(|(mig, p)| p.starts.iter().map(move |s| (mig, *s))) {
                items.push(Item { start, mig, resource: offer.resource.clone() });
            }
        }
        items.sort();
        items.dedup();
        items.truncate(MOST);
        if let Some(known) = self.books.get(&items) {
            return Arc::clone(known);
        }
        let book = Arc::new(self.write(items.clone(), lines));
        self.books.insert(items, Arc::clone(&book));
        book
    }

    fn write(&mut self, items: Vec<Item>, lines: &Lines) -> Book {
        let resource = |i: &Item| {
            let name = self.board.profiles.get(i.mig).map(|p| names::mig_resource(&p.name));
            lines.by_resource(&i.resource.clone().or(name)?)
        };
        let of_items: Vec<Option<Line>> = items.iter().map(resource).collect();
        let carves = self.board.memory_slices > 0 && self.offers.iter().any(|o| o.mig.is_some());
        let found = if carves { packings(&self.board, &items) } else { Vec::new() };
        let mut supplies = Vec::new();
        let mut known: HashMap<_, usize, foldhash::fast::FixedState> = HashMap::default();
        let mut ways = Vec::with_capacity(found.len());
        for packing in found {
            let mut supply: Vec<(Line, i64)> = Vec::new();
            for line in chosen(packing, &of_items).flatten() {
                match supply.iter_mut().find(|(l, _)| l == line) {
                    Some((_, n)) => *n += 1,
                    None => supply.push((*line, 1)),
                }
            }
            supply.sort_unstable();
            let index = *known.entry(supply.clone()).or_insert_with(|| {
                supplies.push(supply);
                supplies.len() - 1
            });
            let shape = |i: &Item| self.board.profiles.get(i.mig).map(|p| (i.start, p.size, p.slices));
            let left = self.leftovers.after(chosen(packing, &items).filter_map(shape));
            ways.push(Way { packing, supply: index, left });
        }
        Book { items, lines: of_items, ways, supplies }
    }
}

impl Book {
    /// The bit of an item.
    pub fn bit(&self, start: i32, mig: usize, resource: Option<&str>) -> Packing {
        let same = |i: &Item| i.start == start && i.mig == mig && i.resource.as_deref() == resource;
        self.items.iter().position(same).map_or(0, |bit| 1 << bit)
    }

    /// The layout of a way.
    pub fn layout(&self, packing: Packing, board: &Board) -> Layout {
        let name = |mig: usize| board.profiles.get(mig).map(|p| p.name.clone()).unwrap_or_default();
        let spec = |i: &Item| InstanceSpec { start: i.start, profile: name(i.mig), resource: i.resource.clone() };
        Layout { mig: true, instances: chosen(packing, &self.items).map(spec).collect(), resource: None }
    }

    /// Devices of a profile that a way gives.
    pub fn count(&self, packing: Packing, line: Line) -> usize {
        chosen(packing, &self.lines).filter(|l| **l == Some(line)).count()
    }
}

/// Those whose bit is set.
pub(super) fn chosen<T>(packing: Packing, of: &[T]) -> impl Iterator<Item = &T> {
    of.iter().enumerate().filter(move |(bit, _)| packing & (1 << bit) != 0).map(|(_, item)| item)
}

/// What the pool's profiles are on a board.
fn offers(pool: &Pool, board: &Board, lines: &Lines) -> Vec<Offer> {
    let mut offers = Vec::new();
    for name in &pool.profiles {
        let Some((line, profile)) = lines.profile(name) else { continue };
        if !profile.products.is_empty() && !profile.products.contains(&board.product) {
            continue;
        }
        let (mig, share, default) = if profile.shape == Shape::Whole {
            (None, 840, names::WHOLE_GPU_RESOURCE.to_owned())
        } else {
            let Some(found) = board.resolve(&profile.shape) else { continue };
            let which = board.profiles.iter().position(|p| p.name == found.name);
            let share = i64::from(found.size) * 840 / i64::from(board.memory_slices.max(1));
            (which, share.max(1), names::mig_resource(&found.name))
        };
        let resource = Some(profile.resource.clone()).filter(|r| *r != default);
        offers.push(Offer { line, mig, resource, share });
    }
    offers
}
