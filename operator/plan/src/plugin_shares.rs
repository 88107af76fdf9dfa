//! Shares that NVIDIA's device plugin can serve. Its config has one number of time-slices for all GPUs of a node that are not
//! partitioned, so a pool has either that one profile or none of shares.

use gputenancy_crds::{Layout, ShareGroup, Sharing, SharingMode, names};

use crate::{
    board::{Shape, ShareOffer, ShareShape, ShareSize},
    snapshot::{Mode, Pool, Profile, SharesBy, Snapshot},
};
use gputenancy_crds::ids::ProfileName;

/// Why a share is not served in a pool, with what to write instead; `None`: it is served.
pub(crate) fn refusal(snapshot: &Snapshot, pool: &Pool, name: &ProfileName) -> Option<String> {
    let profile = snapshot.profiles.get(name)?;
    profile.shape.sharing_mode()?;
    match pool.shares {
        SharesBy::Agent => None,
        SharesBy::NvidiaDevicePlugin if matches!(profile.shape, Shape::Slice { .. }) => Some(
            "NVIDIA's device plugin shares either all instances of a MIG profile on a node or none; write spec.advertiser: Agent and partitioner: Agent, or list an exclusive profile with device.mig"
                .to_owned(),
        ),
        SharesBy::NvidiaDevicePlugin => {
            let Shape::Share(shape) = &profile.shape else { return None };
            by_plugin(snapshot, pool, (name, profile), shape)
        }
        SharesBy::Nothing => {
            Some("only pools with partitioner: Agent have shares; remove the profile from spec.profiles".to_owned())
        }
    }
}

fn by_plugin(
    snapshot: &Snapshot,
    pool: &Pool,
    (name, profile): (&ProfileName, &Profile),
    shape: &ShareShape,
) -> Option<String> {
    let shared = names::SHARED_GPU_RESOURCE;
    if shape.mode != SharingMode::TimeSlice || !matches!(shape.size, ShareSize::Equal(_)) {
        let mode = shape.mode.field();
        return Some(format!(
            "of the devices that share a GPU NVIDIA's device plugin serves timeSlice only, and not {mode}; write device: {{timeSlice: …}} in a new profile"
        ));
    }
    if profile.resource != shared {
        let resource = &profile.resource;
        return Some(format!(
            "NVIDIA's device plugin serves time-slices as {shared} and never as {resource}; leave spec.resourceName of the profile out"
        ));
    }
    if pool.mode != Mode::Demand {
        return Some(
            "NVIDIA's device plugin shares all GPUs of a node that are not partitioned, which a fixed layout may not; write spec.layout.mode: Demand"
                .to_owned(),
        );
    }
    let alike = |other: &&ProfileName| {
        let shape = snapshot.profiles.get(*other).map(|p| &p.shape);
        *other != name && matches!(shape, Some(Shape::Whole | Shape::Share(_)))
    };
    let others: Vec<&str> = pool.profiles.iter().filter(alike).map(ProfileName::as_str).collect();
    (!others.is_empty()).then(|| {
        let others = others.join(", ");
        format!(
            "NVIDIA's device plugin has one number of replicas for all GPUs of a node that are not partitioned, and the pool also lists {others}; list one profile of whole GPUs or shares in spec.profiles, the others in another pool"
        )
    })
}

/// The layout of every GPU without MIG in a pool of NVIDIA's plugin that serves these shares: the plugin numbers replicas from 0.
pub(crate) fn layout(offer: &ShareOffer) -> Layout {
    let group = ShareGroup {
        resource: names::SHARED_GPU_RESOURCE.to_owned(),
        numbers: (0..offer.exactly.unwrap_or_default()).collect(),
        ..ShareGroup::default()
    };
    let sharing = Sharing { mode: offer.mode, interval: offer.interval, shares: vec![group] };
    Layout { sharing: Some(sharing), ..Layout::default() }
}
