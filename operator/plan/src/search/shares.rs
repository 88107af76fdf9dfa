//! Layouts in shares: the sets of shares that fit on one GPU, placed so that devices in use stay where they are.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{Interval, Layout, MAX_SHARES, MemoryText, ShareGroup, Sharing, SharingMode};

use crate::{
    board::{ShareCapacity, ShareOffer},
    fleet::{BoardOptions, GpuClass, ProfileId},
};

/// Most sets of shares that are considered for one GPU.
const MAX_SETS: usize = 1000;
/// Most choices of the shares in use that stay, for one set.
const MAX_CHOICES: usize = 32;

/// Equal shares that a GPU may have.
struct ShareKind {
    offer: ShareOffer,
    resource: String,
    /// Most of them: all that fit, or those in use where the pool no longer offers them.
    most: i64,
    /// So many at most are in use or guaranteed anywhere: more are spare.
    useful: i64,
    /// Devices in use.
    used: Vec<InUse>,
}

/// A share in use.
#[derive(Clone, Copy)]
struct InUse {
    number: i32,
    /// Weight of its pod when it is evicted.
    weight: i64,
    /// The slot that counts it when kept: devices that count in the same way are alike.
    slot: Option<usize>,
    /// MiB that its pod keeps beyond those of its kind.
    retained: i64,
}

/// How many of each kind, by its index.
type Counts = Vec<(usize, i64)>;

/// How many shares a layout may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// No more of a profile than are guaranteed or in use.
    Useful,
    /// As many as fit, which policies for spare GPUs and fixed layouts choose from. These come after all that are useful.
    Spare,
}

/// The layouts in shares that GPUs of a class may be given, each once, in a fixed order. `weights` are those of the devices in use, `wanted`
/// the guaranteed devices of a profile.
pub(super) fn layouts(
    class: &GpuClass<'_>,
    options: &BoardOptions<'_>,
    weights: &[i64],
    wanted: impl Fn(ProfileId) -> i64,
    extent: Extent,
) -> Vec<Layout> {
    let present = class.base.as_ref().and_then(|l| l.sharing.as_ref());
    let kinds = kinds(class, options, weights, wanted);
    let mut layouts = Vec::new();
    let extents: &[Extent] = match extent {
        Extent::Useful => &[Extent::Useful],
        Extent::Spare => &[Extent::Useful, Extent::Spare],
    };
    let modes = [SharingMode::TimeSlice, SharingMode::Mps, SharingMode::Fraction];
    for (extent, mode) in extents.iter().flat_map(|extent| modes.map(|mode| (*extent, mode))) {
        let of_mode: Vec<usize> =
            (0..kinds.len()).filter(|i| kinds.get(*i).is_some_and(|k| k.offer.mode == mode)).collect();
        let capacity = ShareCapacity::of(options.board, mode);
        for counts in sets(&kinds, &of_mode, capacity, extent) {
            layouts.extend(placed((&kinds, capacity), &counts, present.filter(|p| p.mode == mode), &taken(present)));
        }
    }
    let mut seen = BTreeSet::new();
    layouts.retain(|layout| seen.insert(layout.clone()));
    layouts
}

fn taken(present: Option<&Sharing>) -> BTreeSet<i32> {
    present.map(Sharing::numbers).unwrap_or_default().into_iter().collect()
}

fn kinds(
    class: &GpuClass<'_>,
    options: &BoardOptions<'_>,
    weights: &[i64],
    wanted: impl Fn(ProfileId) -> i64,
) -> Vec<ShareKind> {
    let used = |resource: &str, memory: Option<i64>| {
        let used = class.gpu.used.iter().zip(weights).zip(&class.kept);
        let here = used.filter(|((u, _), _)| u.share && *u.resource == *resource);
        here.map(|((u, weight), slot)| {
            let retained = class.gpu.retained(u, memory);
            InUse { number: u.start, weight: *weight, slot: *slot, retained }
        })
        .collect()
    };
    let offered = options.shares().map(|(offer, share)| {
        let resource = offer.resource.clone().unwrap_or_default();
        let most = share.exactly.map_or(MAX_SHARES, |n| n).into();
        let used: Vec<InUse> = used(&resource, share.memory);
        let useful = wanted(offer.profile).max(i64::try_from(used.len()).unwrap_or(i64::MAX));
        ShareKind { offer: *share, used, resource, most, useful }
    });
    let mut kinds: Vec<ShareKind> = offered.collect();
    // shares that exist may stay, also those of no profile of the pool
    let present = class.base.iter().filter_map(|l| l.sharing.as_ref());
    for (sharing, group) in present.flat_map(|s| s.shares.iter().map(move |group| (s, group))) {
        if !kinds.iter().any(|k| k.resource == group.resource) {
            kinds.push(existing(sharing, group, used(&group.resource, mib(group))));
        }
    }
    kinds
}

fn existing(sharing: &Sharing, group: &ShareGroup, used: Vec<InUse>) -> ShareKind {
    let count = i32::try_from(group.numbers.len()).unwrap_or(MAX_SHARES);
    let memory = mib(group);
    let exactly = memory.is_none().then_some(count);
    let Sharing { mode, interval, .. } = *sharing;
    let ShareGroup { compute, compute_mode, resize, .. } = *group;
    let offer = ShareOffer { mode, interval, exactly, memory, compute, resize, compute_mode };
    // idle ones serve nothing, and stay only while the GPU keeps its layout
    let kept = i64::try_from(used.len()).unwrap_or(i64::MAX);
    ShareKind { offer, resource: group.resource.clone(), most: kept, useful: kept, used }
}

fn mib(group: &ShareGroup) -> Option<i64> {
    group.memory.as_ref().and_then(|memory| memory.mib().ok())
}

/// Sets that fit: shares that split a GPU equally have it for themselves; the others are combined.
fn sets(kinds: &[ShareKind], of_mode: &[usize], capacity: ShareCapacity, extent: Extent) -> Vec<Counts> {
    let kind = |index: &usize| kinds.get(*index);
    let (equal, parts): (Vec<usize>, Vec<usize>) =
        of_mode.iter().partition(|i| kind(i).is_some_and(|k| k.offer.exactly.is_some()));
    let mut found = Vec::new();
    if extent == Extent::Useful {
        found.extend(equal.iter().filter_map(|i| Some(vec![(*i, i64::from(kind(i)?.offer.exactly?))])));
        combine(
            (kinds, |k: &ShareKind| k.most.min(k.useful)),
            &parts,
            capacity,
            MAX_SETS,
            &mut Counts::new(),
            &mut found,
        );
        return found;
    }
    let most: fn(&ShareKind) -> i64 = |k| k.most;
    combine((kinds, most), &parts, capacity, MAX_SETS, &mut Counts::new(), &mut found);
    // also as many as fit of each kind, whatever was left out
    for first in &parts {
        let order: Vec<usize> = [*first].into_iter().chain(parts.iter().copied().filter(|i| i != first)).collect();
        combine((kinds, most), &order, capacity, 1, &mut Counts::new(), &mut found);
    }
    for set in &mut found {
        set.sort_unstable();
    }
    found
}

/// At most `most_sets` sets, and one at least, the largest first: a pool with many small profiles has more than can be considered. What is
/// left of the limit is divided among the numbers of a kind.
fn combine(
    (kinds, most): (&[ShareKind], fn(&ShareKind) -> i64),
    rest: &[usize],
    capacity: ShareCapacity,
    most_sets: usize,
    set: &mut Counts,
    found: &mut Vec<Counts>,
) {
    let Some((first, rest)) = rest.split_first() else {
        if !set.is_empty() {
            found.push(set.clone());
        }
        return;
    };
    let Some(kind) = kinds.get(*first) else { return };
    let largest = (0..=most(kind)).rev().find(|n| capacity.takes(&kind.offer, *n)).unwrap_or(0);
    let end = found.len() + most_sets;
    for n in (0..=largest).rev() {
        let left = end.saturating_sub(found.len());
        if left == 0 {
            return;
        }
        let share = left / usize::try_from(n + 1).unwrap_or(1);
        if n > 0 {
            set.push((*first, n));
        }
        combine((kinds, most), rest, capacity.less(&kind.offer, n), share.max(1), set, found);
        if n > 0 {
            set.pop();
        }
    }
}

/// The layouts with these counts: one for each choice of the shares in use that stay.
fn placed(
    (kinds, capacity): (&[ShareKind], ShareCapacity),
    counts: &Counts,
    present: Option<&Sharing>,
    taken: &BTreeSet<i32>,
) -> Vec<Layout> {
    let mut choices: Vec<BTreeMap<usize, Vec<i32>>> = vec![BTreeMap::new()];
    for (index, n) in counts {
        let Some(kind) = kinds.get(*index) else { continue };
        let kept = if present.is_some() { stays(kind, *n) } else { vec![Vec::new()] };
        let extended = choices.iter().flat_map(|choice| {
            kept.iter().map(|kept| {
                let mut choice = choice.clone();
                choice.insert(*index, kept.clone());
                choice
            })
        });
        choices = extended.take(MAX_CHOICES).collect();
    }
    choices.retain(|kept| fits(kinds, capacity, counts, kept));
    choices.into_iter().filter_map(|kept| layout(kinds, counts, &kept, present, taken)).collect()
}

/// Whether the shares fit with what pods on those that stay keep beyond the size of their profile.
fn fits(kinds: &[ShareKind], capacity: ShareCapacity, counts: &Counts, kept: &BTreeMap<usize, Vec<i32>>) -> bool {
    let stays = |index: usize, number: i32| kept.get(&index).is_some_and(|kept| kept.contains(&number));
    let retained = |(index, kind): (usize, &ShareKind)| -> i64 {
        kind.used.iter().filter(|u| stays(index, u.number)).map(|u| u.retained).sum()
    };
    let kept = kinds.iter().enumerate().map(retained).sum();
    let left = counts.iter().filter_map(|(index, n)| Some((kinds.get(*index)?, *n)));
    kept == 0 || left.fold(capacity.without(kept), |capacity, (kind, n)| capacity.less(&kind.offer, n)).is_enough()
}

/// Which shares in use stay when there are so many: all, or every way to divide them among those that count alike, the most important
/// pods of each first.
fn stays(kind: &ShareKind, n: i64) -> Vec<Vec<i32>> {
    let n = usize::try_from(n).unwrap_or(0);
    if kind.used.len() <= n {
        return vec![kind.used.iter().map(|u| u.number).collect()];
    }
    let mut alike: BTreeMap<Option<usize>, Vec<InUse>> = BTreeMap::new();
    for used in &kind.used {
        alike.entry(used.slot).or_default().push(*used);
    }
    let groups: Vec<Vec<i32>> = alike
        .into_values()
        .map(|mut group| {
            group.sort_by_key(|u| (-u.weight, u.number));
            group.into_iter().map(|u| u.number).collect()
        })
        .collect();
    let mut chosen = vec![Vec::new()];
    for (at, group) in groups.iter().enumerate() {
        let later: usize = groups.iter().skip(at + 1).map(Vec::len).sum();
        let mut next = Vec::new();
        for choice in &chosen {
            let left = n - choice.len();
            for take in (left.saturating_sub(later)..=left.min(group.len())).rev() {
                next.push(choice.iter().chain(group.iter().take(take)).copied().collect());
            }
        }
        next.truncate(MAX_CHOICES);
        chosen = next;
    }
    chosen
}

/// A layout that keeps these shares. Others that exist come next, then new numbers, which no present share has: so the id of a share
/// never passes from one resource to another in one change.
fn layout(
    kinds: &[ShareKind],
    counts: &Counts,
    kept: &BTreeMap<usize, Vec<i32>>,
    present: Option<&Sharing>,
    taken: &BTreeSet<i32>,
) -> Option<Layout> {
    let mut free = (0..MAX_SHARES).filter(|number| !taken.contains(number)).chain(taken.iter().copied());
    let (mut shares, mut used) = (Vec::new(), BTreeSet::new());
    let mut first = None;
    for (index, n) in counts {
        let kind = kinds.get(*index)?;
        first = first.or(Some(&kind.offer));
        let n = usize::try_from(*n).ok()?;
        let mut numbers = kept.get(index).cloned().unwrap_or_default();
        let in_use: BTreeSet<i32> = kind.used.iter().map(|u| u.number).collect();
        let existing = present.and_then(|p| p.shares.iter().find(|g| g.resource == kind.resource));
        let idle = existing.into_iter().flat_map(|g| g.numbers.iter().copied()).filter(|n| !in_use.contains(n));
        let missing = n.saturating_sub(numbers.len());
        numbers.extend(idle.take(missing));
        used.extend(numbers.iter().copied());
        while numbers.len() < n {
            let number = free.find(|number| !used.contains(number))?;
            used.insert(number);
            numbers.push(number);
        }
        shares.push(ShareGroup {
            resource: kind.resource.clone(),
            memory: kind.offer.memory.map(MemoryText::from_mib),
            compute: kind.offer.compute,
            resize: kind.offer.resize,
            compute_mode: kind.offer.compute_mode,
            numbers,
        });
    }
    let interval = first.map_or(Interval::Default, |o| o.interval);
    let sharing = Sharing { mode: first?.mode, interval, shares };
    Some(Layout { sharing: Some(sharing.sorted()), ..Layout::default() })
}
