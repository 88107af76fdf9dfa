//! The fleet as the search sees it: one slot for every GPU that is supply, with the menu that its pool's rules allow.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use gputenancy_crds::Layout;

use super::{
    board::Board,
    demand::{Demand, Offer},
    menu::{Candidate, Kitchen, Menu},
    model::{Fixed, Gpu, Mode, Node, Pool, Snapshot, Standing},
    name::{GpuKey, PoolName, ProfileName},
    problem::Problem,
    search::Slot,
};

/// A GPU that is supply, and where it is.
pub(super) struct Place<'a> {
    pub key: GpuKey,
    pub pool_name: &'a PoolName,
    pub pool: &'a Pool,
    pub board: &'a Board,
    pub gpu: &'a Gpu,
    pub offers: Rc<Vec<Offer>>,
}

/// A device in use: start, MIG profile, resource, whether a pod has it, and where its holder's excess is counted.
type Use<'a> = (i32, Option<&'a str>, &'a str, bool, Option<usize>);

/// What decides a menu: GPUs that agree in it are alike.
#[derive(PartialEq, Eq, Hash)]
struct Likeness<'a> {
    board: &'a Board,
    pool: &'a PoolName,
    base: Option<&'a Layout>,
    failed: Option<&'a Layout>,
    used: Vec<Use<'a>>,
}

impl<'a> Place<'a> {
    pub fn kitchen<'k>(&'k self, demand: &'k Demand) -> Kitchen<'k> {
        Kitchen::new(self.board, &self.offers, self.gpu, demand)
    }

    fn likeness(&self, demand: &Demand) -> Likeness<'a> {
        let used =
            self.gpu.used.iter().map(|(start, u)| {
                (*start, u.profile.as_deref(), u.resource.as_str(), u.pod.is_some(), demand.kept_at(u))
            });
        Likeness {
            board: self.board,
            pool: self.pool_name,
            base: self.gpu.base.as_ref(),
            failed: match &self.gpu.standing {
                Standing::Failed(layout) => Some(layout),
                _ => None,
            },
            used: used.collect(),
        }
    }

    /// The plan may give it another layout.
    pub fn free(&self) -> bool {
        !self.pool.read_only && matches!(self.gpu.standing, Standing::Free | Standing::Failed(_))
    }
}

/// Every GPU that is supply, in the order of the fleet.
pub(super) fn places<'a>(snapshot: &'a Snapshot, demand: &mut Demand) -> Vec<Place<'a>> {
    let mut offers: HashMap<(&PoolName, &Board), Rc<Vec<Offer>>> = HashMap::new();
    let mut places = Vec::new();
    for (name, node) in &snapshot.nodes {
        let Some(pool) = snapshot.pools.get(&node.pool) else { continue };
        for (uuid, gpu) in in_order(node) {
            let away = matches!(gpu.standing, Standing::Away(_));
            let Some(board) = node.boards.get(gpu.board).filter(|_| !away) else { continue };
            let known = offers.entry((&node.pool, board));
            let offers = known.or_insert_with(|| Rc::new(demand.offers(snapshot, pool, board)));
            places.push(Place {
                key: GpuKey { node: name.clone(), uuid: uuid.clone() },
                pool_name: &node.pool,
                pool,
                board,
                gpu,
                offers: Rc::clone(offers),
            });
            demand.note_holders(gpu);
        }
    }
    demand.weigh_holders();
    places
}

/// GPUs of a node by index, as people count them.
fn in_order(node: &Node) -> Vec<(&super::GpuUuid, &Gpu)> {
    let mut gpus: Vec<_> = node.gpus.iter().collect();
    gpus.sort_by_key(|(uuid, gpu)| (gpu.index, *uuid));
    gpus
}

/// One slot for every place.
pub(super) fn slots(places: &[Place<'_>], demand: &Demand, problems: &mut Vec<Problem>) -> Vec<Slot> {
    let mut menus: HashMap<Likeness<'_>, (usize, Rc<Menu>)> = HashMap::new();
    let mut slots = Vec::new();
    for (kind, place) in places.iter().enumerate() {
        let single = |menu: Menu| Slot { kind, menu: Rc::new(menu), chosen: 0 };
        slots.push(match &place.pool.mode {
            _ if !place.free() => single(place.kitchen(demand).as_it_is()),
            Mode::Fixed(list) => single(fixed(place, list, demand, problems)),
            Mode::Demand => {
                let likeness = menus.entry(place.likeness(demand));
                let (kind, menu) = likeness.or_insert_with(|| (kind, Rc::new(place.kitchen(demand).menu())));
                Slot { kind: *kind, menu: Rc::clone(menu), chosen: 0 }
            }
        });
    }
    slots
}

/// The hand-written layout of a GPU, placed so that it moves the fewest pods.
fn fixed(place: &Place<'_>, list: &[Fixed], demand: &Demand, problems: &mut Vec<Problem>) -> Menu {
    let kitchen = place.kitchen(demand);
    let matching = list.iter().find(|f| f.indices.as_ref().is_none_or(|i| i.contains(&place.gpu.index)));
    let Some(fixed) = matching else { return kitchen.as_it_is() };
    let wanted = |c: &Candidate| c.layout.as_ref().is_some_and(|l| counts(place, l) == by_device(place, demand, fixed));
    let best = kitchen.all().into_iter().filter(wanted).min_by(|a, b| (a.cost, &a.layout).cmp(&(b.cost, &b.layout)));
    if let Some(candidate) = best {
        return Menu { candidates: vec![candidate] };
    }
    let offered = |name: &ProfileName| place.offers.iter().any(|o| demand.line(name) == Some(o.line));
    let foreign: Vec<&str> = fixed.counts.keys().filter(|p| !offered(p)).map(ProfileName::as_str).collect();
    let why = if foreign.is_empty() {
        "these instances do not fit together on this board; write fewer or smaller ones".to_owned()
    } else {
        format!(
            "the board or the pool does not offer {}; list it in spec.profiles, or write another",
            foreign.join(", ")
        )
    };
    let text = fixed.counts.iter().map(|(name, n)| format!("{n} × {name}")).collect::<Vec<_>>();
    problems.push(Problem::FixedDoesNotFit {
        pool: place.pool_name.clone(),
        gpus: fixed.text.clone(),
        layout: text.join(" + "),
        node: place.key.node.clone(),
        index: place.gpu.index,
        product: place.board.product.clone(),
        why,
    });
    kitchen.as_it_is()
}

type Counts = BTreeMap<(Option<String>, Option<String>), u32>;

fn counts(place: &Place<'_>, layout: &Layout) -> Option<Counts> {
    let mut counts = Counts::new();
    if !layout.mig {
        counts.insert((None, layout.resource.clone()), 1);
    }
    for i in &layout.instances {
        place.board.profile(&i.profile)?;
        *counts.entry((Some(i.profile.clone()), i.resource.clone())).or_default() += 1;
    }
    Some(counts)
}

fn by_device(place: &Place<'_>, demand: &Demand, fixed: &Fixed) -> Option<Counts> {
    let mut counts = Counts::new();
    for (name, n) in &fixed.counts {
        let offer = place.offers.iter().find(|o| demand.line(name) == Some(o.line))?;
        let profile = offer.mig.and_then(|mig| place.board.profiles.get(mig)).map(|p| p.name.clone());
        *counts.entry((profile, offer.resource.clone())).or_default() += n;
    }
    Some(counts)
}
