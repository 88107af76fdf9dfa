//! A shared GPU follows its profiles: when `replicas` or `interval` of time-slices or the size of fractions change, so does every GPU that has
//! them.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use gputenancy_crds::{InstanceSpec, Layout, MAX_SHARES, MemoryText, ShareGroup, Sharing, SharingMode};

use super::options::BoardOptions;
use crate::{
    board::{ShareCapacity, ShareOffer},
    plugin_shares,
    snapshot::Gpu,
};

/// The layout with the present number of replicas and the present interval of its profile. Of a lower number the shares stay that are
/// in use, those with the most important pods first.
pub(super) fn refreshed(layout: Arc<Layout>, gpu: &Gpu, options: &BoardOptions<'_>) -> Arc<Layout> {
    if layout.mig {
        return sliced(layout, options);
    }
    let Some(sharing) = &layout.sharing else { return layout };
    if sharing.mode == SharingMode::Fraction {
        return resized(sharing, gpu, options)
            .map_or(layout, |sharing| Arc::new(Layout { sharing: Some(sharing), ..Layout::default() }));
    }
    let [group] = sharing.shares.as_slice() else { return layout };
    let offer = options.shares().find(|(offer, _)| offer.resource.as_ref() == Some(&group.resource));
    let Some((_, offer)) = offer.filter(|(_, o)| o.mode == sharing.mode && o.memory.is_none()) else { return layout };
    let wanted = offer.exactly.and_then(|n| usize::try_from(n).ok()).unwrap_or(group.numbers.len());
    if wanted == group.numbers.len() && offer.interval == sharing.interval {
        return layout;
    }
    let numbers = keep(group, wanted, gpu);
    let group = ShareGroup { numbers, ..group.clone() };
    let sharing = Sharing { mode: sharing.mode, interval: offer.interval, shares: vec![group] };
    Arc::new(Layout { sharing: Some(sharing.sorted()), ..Layout::default() })
}

/// The fractions with the present size of their profiles; `None` if that is what they have, or if so many of that size do not fit on the GPU: then
/// it keeps the old sizes until it has fewer shares.
///
/// Each pod keeps the memory that it has until its agent reports less: a size that becomes smaller makes no space at first.
fn resized(sharing: &Sharing, gpu: &Gpu, options: &BoardOptions<'_>) -> Option<Sharing> {
    let mode = sharing.mode;
    let size = |group: &ShareGroup| {
        let offered = options.shares().find(|(offer, _)| offer.resource.as_ref() == Some(&group.resource));
        let size = offered.map(|(_, offer)| (offer.memory, offer.compute, offer.compute_mode, offer.resize));
        size.filter(|(memory, ..)| memory.is_some())
    };
    let mut capacity = ShareCapacity::of(options.board, mode);
    let mut shares = Vec::new();
    for group in &sharing.shares {
        let present = || {
            (
                group.memory.as_ref().and_then(|memory| memory.mib().ok()),
                group.compute,
                group.compute_mode,
                group.resize,
            )
        };
        let (memory, compute, compute_mode, resize) = size(group).unwrap_or_else(present);
        let offer =
            ShareOffer { mode, interval: sharing.interval, exactly: None, memory, compute, resize, compute_mode };
        let here = gpu.used.iter().filter(|used| used.share && group.numbers.contains(&used.start));
        capacity = capacity.without(here.map(|used| gpu.retained(used, memory)).sum());
        let count = i64::try_from(group.numbers.len()).ok()?;
        if !capacity.takes(&offer, count) {
            return None;
        }
        capacity = capacity.less(&offer, count);
        let memory = memory.map(MemoryText::from_mib);
        shares.push(ShareGroup { memory, compute, compute_mode, resize, ..group.clone() });
    }
    (shares != sharing.shares).then_some(Sharing { shares, ..sharing.clone() })
}

/// The layout with the present number of time-slices of each shared instance. Of a lower number those with the lowest numbers stay.
fn sliced(layout: Arc<Layout>, options: &BoardOptions<'_>) -> Arc<Layout> {
    let wanted = |instance: &InstanceSpec| {
        let resource = instance.resource.as_ref().filter(|_| instance.replicas.is_some());
        let offer = options.offers.iter().find(|o| o.resource.as_ref() == resource)?;
        let same = options.board.profiles.get(offer.mig?).is_some_and(|p| p.name == instance.profile);
        offer.replicas.filter(|_| same && resource.is_some())
    };
    if layout.instances.iter().all(|i| wanted(i).is_none_or(|replicas| i.replicas == Some(replicas))) {
        return layout;
    }
    let refreshed = |i: &InstanceSpec| InstanceSpec { replicas: wanted(i).or(i.replicas), ..i.clone() };
    Arc::new(Layout { instances: layout.instances.iter().map(refreshed).collect(), ..(*layout).clone() })
}

/// The layout where NVIDIA's plugin advertises: every GPU without MIG has the time-slices of the pool's profile, or none.
pub(super) fn by_plugin(layout: Option<Arc<Layout>>, options: &BoardOptions<'_>) -> Option<Arc<Layout>> {
    let wanted = match options.shares().next() {
        _ if layout.as_ref().is_some_and(|l| l.mig) => return layout.map(exclusive),
        Some((_, offer)) => plugin_shares::layout(offer),
        None if layout.as_ref().is_some_and(|l| l.sharing.is_some()) => Layout::default(),
        None => return layout,
    };
    if layout.as_deref() == Some(&wanted) { layout } else { Some(Arc::new(wanted)) }
}

/// The layout without time-slices of instances, which NVIDIA's plugin does not serve.
fn exclusive(layout: Arc<Layout>) -> Arc<Layout> {
    if layout.instances.iter().all(|i| i.replicas.is_none()) {
        return layout;
    }
    let exclusive = |i: &InstanceSpec| match i.replicas {
        Some(_) => InstanceSpec { resource: None, replicas: None, ..i.clone() },
        None => i.clone(),
    };
    Arc::new(Layout { instances: layout.instances.iter().map(exclusive).collect(), ..(*layout).clone() })
}

fn keep(group: &ShareGroup, wanted: usize, gpu: &Gpu) -> Vec<i32> {
    let priority = |number: i32| {
        let used = gpu.used.iter().find(|u| u.share && u.start == number && *u.resource == group.resource);
        used.map(|u| (u.pod.is_none(), i64::from(u.priority)))
    };
    let mut numbers = group.numbers.clone();
    numbers.sort_by_key(|number| (Reverse(priority(*number)), *number));
    numbers.truncate(wanted);
    let taken: BTreeSet<i32> = group.numbers.iter().copied().collect();
    let more = (0..MAX_SHARES).filter(|number| !taken.contains(number));
    let missing = wanted.saturating_sub(numbers.len());
    numbers.extend(more.take(missing));
    numbers
}
