//! GPUs that are alike are one form, and with the same devices kept beyond guarantees one kind: whatever is decided, is decided
//! once for a kind.

use std::{collections::HashMap, sync::Arc};

use gputenancy_crds::Layout;

use super::{
    ledger::Ledger,
    lines::{Line, Lines},
    menu::{self, Candidate, Kitchen, Menu, Source},
    model::{Fixed, Gpu, Mode, Standing},
    rig::{Book, Rig},
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
    menu: Option<(Arc<Menu>, Arc<Book>)>,
}

#[derive(Debug, Default)]
pub(super) struct Forms {
    pub rigs: Vec<Rig>,
    pub list: Vec<Form>,
    pub kinds: Vec<Kind>,
    form_ids: HashMap<Vec<u32>, usize, Fast>,
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
        sign(&mut self.signature, rig_id, &rule, gpu, words);
        if let Some(known) = self.form_ids.get(self.signature.as_slice()) {
            return Some(*known);
        }
        let base = menu::base(gpu, rig, lines);
        let left = rig.leftover(base.as_ref());
        let mut in_use: Vec<Line> = gpu.used.values().filter_map(|u| lines.by_resource(&u.resource)).collect();
        in_use.dedup();
        let base = base.map(Arc::new);
        let stranded = (left.compute, left.memory);
        let quiet = super::sentence::quiet(gpu, base.as_deref());
        self.list.push(Form { rig: rig_id, gpu: gpu.clone(), base, rule, stranded, in_use, quiet, plain: None });
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
        self.kinds.push(Kind { form, kept, members: Vec::new(), supply, evict, menu: None });
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
        if let Some((menu, _)) = self.kinds.get(kind)?.menu.as_ref() {
            return Some(Arc::clone(menu));
        }
        let follows = self.of(kind)?.1.rule == Rule::Demand;
        let (menu, book) = self.kitchen(kind, lines, |kitchen| {
            let menu = if follows { kitchen.menu() } else { kitchen.as_it_is() };
            (Arc::new(menu), Arc::clone(&kitchen.book))
        })?;
        self.kinds.get_mut(kind)?.menu = Some((Arc::clone(&menu), book));
        Some(menu)
    }

    /// The layout that a candidate stands for.
    pub fn layout(&mut self, kind: usize, candidate: &Candidate, lines: &Lines) -> Option<Arc<Layout>> {
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

/// What makes GPUs alike, as numbers.
fn sign(signature: &mut Vec<u32>, rig: usize, rule: &Rule, gpu: &Gpu, words: &mut Words) {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    signature.clear();
    signature.push(number(rig));
    signature.push(match rule {
        Rule::Keep => 0,
        Rule::Demand => 1,
        Rule::Fixed(which) => 2 + number(*which),
    });
    signature.push(u32::from(gpu.moving));
    let mut layout = |signature: &mut Vec<u32>, layout: Option<&Layout>| {
        let Some(layout) = layout else { return signature.push(0) };
        signature.push(1 + u32::from(layout.mig));
        signature.push(layout.resource.as_deref().map_or(0, |r| words.id(Role::Resource, r)));
        signature.push(number(layout.instances.len()));
        for i in &layout.instances {
            signature.push(i.start.cast_unsigned());
            signature.push(words.id(Role::Profile, &i.profile));
            signature.push(i.resource.as_deref().map_or(0, |r| words.id(Role::Resource, r)));
        }
    };
    layout(signature, gpu.base.as_ref());
    layout(signature, if let Standing::Failed(failed) = &gpu.standing { Some(failed) } else { None });
    for (start, used) in &gpu.used {
        signature.push(start.cast_unsigned());
        signature.push(used.profile.as_deref().map_or(0, |p| words.id(Role::Profile, p)));
        signature.push(words.id(Role::Resource, &used.resource));
        signature.push(u32::from(used.pod.is_some()));
        signature.push(used.priority.cast_unsigned());
    }
}
