//! Reading `GpuPool` objects.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{Advertiser, FixedLayout, GpuPool, LayoutMode, Partitioner, SparePolicy, Strategy};

use super::selector;
use crate::{
    problem::Problem,
    snapshot::{Fixed, Mode, Pool, SharesBy, Spare},
};

pub(super) fn read(pool: &GpuPool, problems: &mut Vec<Problem>) -> Pool {
    let object = format!("GpuPool {}", pool.metadata.name.as_deref().unwrap_or_default());
    let mut unreadable = |what: String| problems.push(Problem::InvalidSpec { object: object.clone(), what });
    if let Err(error) = selector::check(&pool.spec.node_selector) {
        unreadable(format!("spec.nodeSelector: {error}"));
    }
    let layout = &pool.spec.layout;
    let mode = match layout.mode {
        LayoutMode::Demand => Mode::Demand,
        LayoutMode::Fixed => {
            let read = |layout| fixed(layout).map_err(|error| unreadable(error.to_string())).ok();
            Mode::Fixed(layout.fixed.iter().filter_map(read).collect())
        }
    };
    let single = pool.spec.strategy == Some(Strategy::Single);
    let spare = match (layout.spare.policy, &layout.spare.profile) {
        (SparePolicy::Whole, _) => Spare::Whole,
        (SparePolicy::Fill, Some(profile)) => Spare::Fill(profile.as_str().into()),
        (SparePolicy::Keep | SparePolicy::Fill, _) => Spare::Keep,
    };
    let only = pool.spec.profiles.first().filter(|_| single);
    let spare = only.map_or(spare, |profile| Spare::Only(profile.as_str().into()));
    Pool {
        profiles: pool.spec.profiles.iter().map(|p| p.as_str().into()).collect(),
        mode,
        spare,
        read_only: pool.spec.partitioner == Partitioner::None,
        by_plugin: pool.spec.advertiser == Advertiser::NvidiaDevicePlugin,
        single,
        shares: match (pool.spec.partitioner.is_agent(), pool.spec.advertiser) {
            (false, _) => SharesBy::Nothing,
            (true, Advertiser::Agent) => SharesBy::Agent,
            (true, Advertiser::NvidiaDevicePlugin) => SharesBy::NvidiaDevicePlugin,
        },
        allow_outage: pool.spec.disruption.allow_outage,
        minimum: pool.spec.enforcement.minimum,
    }
}

/// A fixed layout for GPUs that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("spec.layout.fixed: \"{0}\" names no GPUs, write it like 0-3, 0,2 or *")]
struct IndicesError(String);

fn fixed(fixed: &FixedLayout) -> Result<Fixed, IndicesError> {
    let mut counts = BTreeMap::new();
    for profile in &fixed.profiles {
        *counts.entry(profile.name.as_str().into()).or_default() += u32::try_from(profile.count).unwrap_or(0);
    }
    Ok(Fixed { text: fixed.gpus.clone(), indices: indices(&fixed.gpus)?, counts })
}

/// Reads `*`, `0`, `0-3` or `0,2,4-7`; `None` is all.
fn indices(text: &str) -> Result<Option<BTreeSet<i32>>, IndicesError> {
    if text == "*" {
        return Ok(None);
    }
    let mut set = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u8>(), last.parse::<u8>()) {
            (Ok(first), Ok(last)) if first <= last => set.extend(i32::from(first)..=i32::from(last)),
            _ => return Err(IndicesError(text.to_owned())),
        }
    }
    Ok(Some(set))
}
