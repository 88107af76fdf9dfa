//! GPUs that are alike are one form, and with the same devices kept beyond guarantees one kind: whatever is decided, is decided
//! once for a kind.

use std::{collections::HashMap, sync::Arc};

use gputenancy_crds::Layout;

use super::{
    ledger::Ledger,
    lines::{Line, Lines},
    menu::{self, Candidate, Kitchen, Menu, Source},
    model::{Fixed, Gpu, Mode, Standing},
    rig::Rig,
    words::{Role, Words},
};

/// A GPU's number.
pub(super) type GpuId = u32;

type Fast = foldhash::fast::FixedState;

/// What decides a menu, but for who holds the devices.
#[derive(Debug)]
pub(super) struct Form {
    pub rig: usize,
    /// A GPU of this form; the names of its pods mean nothing.
    pub gpu: Gpu,
    /// The layout that it has, as the planner sees it.
    pub base: Option<Arc<Layout>>,
    pub rule: Rule,
    /// Slices that its layout strands: compute and memory.
    pub stranded: (i32, i32),
    /// Profiles in use.
    pub in_use: Vec<Line>,
    /// Forms of one number have equal menus, whatever their pools are.
    look: usize,
    /// Whether it stays as it is without a word: listed, and nobody has to go. With the rank of its changes.
    pub quiet: Option<u8>,
    /// Its kind when no device is kept beyond a guarantee, once that was asked.
    plain: Option<usize>,
}

/// A device in use: whose, and what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// The pod's namespace as a word.
    pub namespace: u32,
    /// The profile, `u32::MAX` where no profile is advertised like that.
    line: u32,
}

impl Use {
    pub fn new(namespace: u32, line: Option<Line>) -> Self {
        Self { namespace, line: line.and_then(|l| u32::try_from(l).ok()).unwrap_or(u32::MAX) }
    }

    pub fn line(self) -> Option<Line> {
        Some(self.line as usize).filter(|_| self.line != u32::MAX)
    }
}

/// What may be done with a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Nothing.
    Keep,
    /// Give it the layout written by hand, by place in the pool's list.
    Fixed(usize),
    /// Follow demand.
    Demand,
}

/// GPUs of one form whose devices in use count alike.
#[derive(Debug)]
pub(super) struct Kind {
    pub form: usize,
    pub kept: Vec<Option<usize>>,
    pub members: Vec<GpuId>,
    /// Devices that it gives as it is, and the weight of pods that would have to go from it all the same.
    pub supply: Vec<(usize, i64)>,
    pub evict: i64,
    /// Counts the changes of its members.
    pub version: u64,
    /// The first member in the order of the fleet, where that is known.
    pub first: Option<GpuId>,
    menu: Option<Arc<Menu>>,
}

/// A layout, with the slices that it strands: compute and memory.
pub(super) type Made = (Arc<Layout>, (i32, i32));

#[derive(Debug, Default)]
pub(super) struct Forms {
    pub rigs: Vec<Rig>,
    pub list: Vec<Form>,
    pub kinds: Vec<Kind>,
    /// Layouts that candidates of kinds stand for, with the slices that they strand.
    layouts: HashMap<(usize, Source), Made, Fast>,
    layout_ids: LayoutIds,
    /// Differences between what layouts give, numbered.
    deltas: HashMap<Vec<(usize, i64)>, u32, Fast>,
    form_ids: HashMap<Vec<u32>, usize, Fast>,
    /// Signatures in which the rig is the first that is like it.
    looks: HashMap<Vec<u32>, usize, Fast>,
    /// By look, and where devices are counted when kept.
    menus: HashMap<(usize, Vec<Option<usize>>), Arc<Menu>, Fast>,
    kind_ids: HashMap<(usize, Vec<Option<usize>>), usize, Fast>,
    signature: Vec<u32>,
}

impl Forms {
    /// The form of a GPU that is supply.
    pub fn form(&mut self, rig_id: usize, gpu: &Gpu, words: &mut Words, lines: &Lines) -> Option<usize> {
        let rig = self.rigs.get_mut(rig_id)?;
        let fixed = match &rig.pool.mode {
            Mode::Demand => None,
            Mode::Fixed(list) => Some(list.iter().position(|f| covers(f, gpu.index))),
        };
        let rule = match (&gpu.standing, fixed) {
            _ if rig.pool.read_only => Rule::Keep,
            (Standing::Frozen | Standing::Away(_), _) | (_, Some(None)) => Rule::Keep,
            (_, Some(Some(which))) => Rule::Fixed(which),
            (_, None) => Rule::Demand,
        };
        sign(&mut self.signature, (rig_id, &rule), gpu, words, &mut self.layout_ids);
        if let Some(known) = self.form_ids.get(self.signature.as_slice()) {
            return Some(*known);
        }
        let base = menu::base(gpu, rig, lines);
        let left = rig.leftover(base.as_deref());
        let mut in_use: Vec<Line> = gpu.used.iter().filter_map(|u| lines.by_resource(&u.resource)).collect();
        in_use.dedup();
        let stranded = (left.compute, left.memory);
        let quiet = super::show::quiet(gpu, base.as_deref());
        let mut signature = self.signature.clone();
        if let Some(first) = signature.first_mut() {
            *first = number(rig.like);
        }
        let next = self.looks.len();
        let look = *self.looks.entry(signature).or_insert(next);
        self.list.push(Form { rig: rig_id, gpu: gpu.clone(), base, rule, stranded, in_use, look, quiet, plain: None });
        self.form_ids.insert(self.signature.clone(), self.list.len() - 1);
        Some(self.list.len() - 1)
    }

    /// The kind of a form whose devices in use are all within guarantees.
    pub fn plain(&mut self, form: usize, devices: usize, lines: &Lines) -> usize {
        if let Some(known) = self.list.get(form).and_then(|f| f.plain) {
            return known;
        }
        let kind = self.kind(form, vec![None; devices], lines);
        if let Some(form) = self.list.get_mut(form) {
            form.plain = Some(kind);
        }
        kind
    }

    /// The kind of a form with these devices kept.
    pub fn kind(&mut self, form: usize, kept: Vec<Option<usize>>, lines: &Lines) -> usize {
        let key = (form, kept);
        if let Some(known) = self.kind_ids.get(&key) {
            return *known;
        }
        let (supply, evict) = self.list.get(form).map_or_else(Default::default, |f| {
            menu::gives(f.base.as_deref(), &f.gpu, f.base.as_deref(), &key.1, lines)
        });
        let kept = key.1.clone();
        self.kinds.push(Kind { form, kept, members: Vec::new(), supply, evict, version: 0, first: None, menu: None });
        self.kind_ids.insert(key, self.kinds.len() - 1);
        self.kinds.len() - 1
    }

    pub fn of(&self, kind: usize) -> Option<(&Kind, &Form, &Rig)> {
        let kind = self.kinds.get(kind)?;
        let form = self.list.get(kind.form)?;
        Some((kind, form, self.rigs.get(form.rig)?))
    }

    /// Calls `f` with what a kind's menu is made from.
    pub fn kitchen<T>(&mut self, kind: usize, lines: &Lines, f: impl FnOnce(&mut Kitchen<'_>) -> T) -> Option<T> {
        let kind = self.kinds.get(kind)?;
        let form = self.list.get(kind.form)?;
        let rig = self.rigs.get_mut(form.rig)?;
        Some(f(&mut Kitchen::new(rig, &form.gpu, form.base.as_deref(), &kind.kept, lines)))
    }

    /// Everything that a kind may be given.
    pub fn menu(&mut self, kind: usize, lines: &Lines) -> Option<Arc<Menu>> {
        let (of, form, _) = self.of(kind)?;
        if let Some(menu) = &of.menu {
            return Some(Arc::clone(menu));
        }
        let (key, follows) = ((form.look, of.kept.clone()), form.rule == Rule::Demand);
        let known = self.menus.get(&key).cloned();
        let menu = if let Some(known) = known {
            known
        } else {
            let make = |kitchen: &mut Kitchen<'_>| if follows { kitchen.menu() } else { kitchen.as_it_is() };
            let menu = self.kitchen(kind, lines, make)?;
            let menu = Arc::new(self.numbered(menu));
            self.menus.insert(key, Arc::clone(&menu));
            menu
        };
        self.kinds.get_mut(kind)?.menu = Some(Arc::clone(&menu));
        Some(menu)
    }

    /// Numbers what the candidates give more or less than the first: those of one number give alike.
    fn numbered(&mut self, mut menu: Menu) -> Menu {
        let mut delta: Vec<(usize, i64)> = Vec::new();
        for candidate in &menu.candidates {
            delta.clear();
            delta.extend(menu.candidates.iter().take(1).flat_map(|c| &c.supply).map(|(place, n)| (*place, -n)));
            for (place, n) in &candidate.supply {
                match delta.iter_mut().find(|(p, _)| p == place) {
                    Some((_, sum)) => *sum += n,
                    None => delta.push((*place, *n)),
                }
            }
            delta.retain(|(_, n)| *n != 0);
            delta.sort_unstable();
            let known = self.deltas.get(delta.as_slice()).copied();
            let number = known.unwrap_or_else(|| {
                let next = u32::try_from(self.deltas.len()).unwrap_or(u32::MAX);
                self.deltas.insert(delta.clone(), next);
                next
            });
            menu.deltas.push(number);
        }
        menu
    }

    /// How many differences have a number.
    pub fn deltas(&self) -> usize {
        self.deltas.len()
    }

    /// The layout that a candidate stands for, with the slices that it strands.
    pub fn layout(&mut self, kind: usize, candidate: &Candidate, lines: &Lines) -> Option<Made> {
        if let Some(known) = self.layouts.get(&(kind, candidate.source)) {
            return Some(known.clone());
        }
        let layout = self.made(kind, candidate, lines)?;
        let form = self.kinds.get(kind)?.form;
        let left = self.rigs.get_mut(self.list.get(form)?.rig)?.leftover(Some(&layout));
        let made = (layout, (left.compute, left.memory));
        self.layouts.insert((kind, candidate.source), made.clone());
        Some(made)
    }

    fn made(&mut self, kind: usize, candidate: &Candidate, lines: &Lines) -> Option<Arc<Layout>> {
        match candidate.source {
            Source::Present => self.of(kind)?.1.base.clone(),
            Source::Whole(offer) => {
                let resource = self.of(kind)?.2.offers.get(offer)?.resource.clone();
                Some(Arc::new(Layout { mig: false, instances: vec![], resource }))
            }
            Source::Carved(packing) => {
                let book = self.kitchen(kind, lines, |kitchen| Arc::clone(&kitchen.book))?;
                Some(Arc::new(book.layout(packing, &self.of(kind)?.2.board)))
            }
        }
    }
}

/// Where the devices in use of a GPU are counted when kept.
pub(super) fn kept(uses: &[Use], ledger: &Ledger) -> Vec<Option<usize>> {
    uses.iter().map(|u| ledger.kept_at(ledger.owner(u.namespace), u.line()?)).collect()
}

fn covers(fixed: &Fixed, index: i32) -> bool {
    fixed.indices.as_ref().is_none_or(|i| i.contains(&index))
}

/// Layouts as numbers.
#[derive(Debug, Default)]
struct LayoutIds {
    by_content: HashMap<Arc<Layout>, u32, Fast>,
    /// By address, so that a layout that many GPUs share is read once. The copy keeps the address taken.
    by_address: HashMap<usize, (Arc<Layout>, u32), Fast>,
}

impl LayoutIds {
    /// So many addresses are remembered: in a long life they come and go.
    const MOST: usize = 4_096;

    /// 0 stands for no layout.
    fn of(&mut self, layout: Option<&Arc<Layout>>) -> u32 {
        let Some(layout) = layout else { return 0 };
        let address = Arc::as_ptr(layout).addr();
        if let Some((_, id)) = self.by_address.get(&address) {
            return *id;
        }
        let next = u32::try_from(self.by_content.len() + 1).unwrap_or(u32::MAX);
        let id = *self.by_content.entry(Arc::clone(layout)).or_insert(next);
        if self.by_address.len() >= Self::MOST {
            self.by_address.clear();
        }
        self.by_address.insert(address, (Arc::clone(layout), id));
        id
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// What makes GPUs alike, as numbers.
fn sign(signature: &mut Vec<u32>, (rig, rule): (usize, &Rule), gpu: &Gpu, words: &mut Words, layouts: &mut LayoutIds) {
    signature.clear();
    signature.push(number(rig));
    signature.push(match rule {
        Rule::Keep => 0,
        Rule::Demand => 1,
        Rule::Fixed(which) => 2 + number(*which),
    });
    signature.push(u32::from(gpu.moving));
    signature.push(layouts.of(gpu.base.as_ref()));
    signature.push(layouts.of(if let Standing::Failed(failed) = &gpu.standing { Some(failed) } else { None }));
    for used in &gpu.used {
        signature.push(used.start.cast_unsigned());
        signature.push(used.profile.as_ref().map_or(0, |p| words.id(Role::Profile, p)));
        signature.push(words.id(Role::Resource, &used.resource));
        signature.push(u32::from(used.pod.is_some()));
        signature.push(used.priority.cast_unsigned());
    }
}
