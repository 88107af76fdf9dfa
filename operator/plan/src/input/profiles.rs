//! Reading `GpuProfile` objects.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    ComputeMode, Device, Fraction, GpuProfile, GpuProfileSpec, Interval, MAX_SLICES, MemoryText, Mig, Mps,
    ResizePolicy, SharingMode, SlicedDevice, TimeSlice, Trust, names, quantity::QuantityError, reasons,
};

use super::{Cluster, Interner};
use crate::{
    board::{Shape, ShareShape, ShareSize},
    problem::Problem,
    snapshot::Profile,
};
use gputenancy_crds::ids::{PoolName, ProfileName};

/// Extended resource of a profile: as written, or the default of NVIDIA's plugin. A MIG request by size has a resource of its own,
/// because boards resolve it to different instances.
///
/// ```
/// use gputenancy_plan::resource_name;
/// use serde_json::{from_value, json};
///
/// let spec = |mig| from_value(json!({"device": {"mig": mig}, "support": {"expected": "…", "incident": "…"}}));
/// assert_eq!(resource_name("small", &spec(json!({"profile": "1g.10gb"}))?), "nvidia.com/mig-1g.10gb");
/// assert_eq!(resource_name("small", &spec(json!({"slices": 1}))?), "gputenancy.io/small");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn resource_name(name: &str, spec: &GpuProfileSpec) -> String {
    let default = || match &spec.device {
        Device { whole: Some(_), .. } => names::WHOLE_GPU_RESOURCE.to_owned(),
        Device { mig: Some(Mig { profile: Some(profile), .. }), .. } => names::mig_resource(profile),
        Device { time_slice: Some(TimeSlice { of: None, .. }), .. } => names::SHARED_GPU_RESOURCE.to_owned(),
        Device {
            time_slice: Some(TimeSlice { of: Some(SlicedDevice { mig: Mig { profile: Some(profile), .. } }), .. }),
            ..
        } => names::shared_resource(&names::mig_resource(profile)),
        _ => names::own_resource(name),
    };
    spec.resource_name.clone().unwrap_or_else(default)
}

/// Least trusted tenant that may use a profile.
pub fn trust_needed(spec: &GpuProfileSpec) -> Trust {
    let exclusive = spec.device.whole.is_some() || spec.device.mig.is_some();
    spec.trust.unwrap_or(if exclusive { Trust::Untrusted } else { Trust::Internal })
}

/// Reads profiles; the second set has those that are refused because another one has their resource. Of two with one resource the one has it that had
/// it before, so that an edit refuses the edited profile; else the older. Those without a time of creation are the newest.
pub(super) fn read(
    cluster: &Cluster<'_>,
    interner: &mut Interner,
    problems: &mut Vec<Problem>,
) -> (BTreeMap<ProfileName, Profile>, BTreeSet<ProfileName>) {
    let name = |p: &GpuProfile| p.metadata.name.clone().unwrap_or_default();
    let mut by_age = cluster.profiles.clone();
    let created = |p: &GpuProfile| p.metadata.creation_timestamp.as_ref().map(|t| t.0);
    by_age.sort_by_key(|p| (!has_resource(p), created(p).is_none(), created(p), name(p)));
    let mut taken: BTreeMap<String, ProfileName> = BTreeMap::new();
    let (mut read, mut refused) = (BTreeMap::new(), BTreeSet::new());
    for profile in by_age {
        let name: ProfileName = interner.text(&name(profile));
        let resource = resource_name(name.as_str(), &profile.spec);
        if let Some(by) = taken.get(&resource) {
            let (profile, by, pools) = (name.clone(), by.clone(), listing(cluster, &name));
            problems.push(Problem::ResourceNameConflict { profile, resource, by, pools });
            refused.insert(name);
            continue;
        }
        let shape = match shape(&profile.spec.device) {
            Ok(shape) => shape,
            Err(error) => {
                problems.push(Problem::InvalidSpec { object: format!("GpuProfile {name}"), what: error.to_string() });
                continue;
            }
        };
        taken.insert(resource.clone(), name.clone());
        let products = profile.spec.products.iter().cloned().collect();
        read.insert(name, Profile { shape, products, resource, trust: trust_needed(&profile.spec) });
    }
    (read, refused)
}

/// Pools that list a profile, sorted.
fn listing(cluster: &Cluster<'_>, profile: &ProfileName) -> Vec<PoolName> {
    let lists = cluster.pools.iter().filter(|pool| pool.spec.profiles.iter().any(|name| name == profile.as_str()));
    let pools: BTreeSet<PoolName> =
        lists.map(|pool| PoolName::from(pool.metadata.name.clone().unwrap_or_default())).collect();
    pools.into_iter().collect()
}

/// Is the profile served under the resource that its spec asks for, by its status?
fn has_resource(profile: &GpuProfile) -> bool {
    let name = profile.metadata.name.as_deref().unwrap_or_default();
    let Some(status) = &profile.status else { return false };
    let refused = status.conditions.iter().any(|c| reasons::RESOURCE_NAME_CONFLICT == c.reason.as_str());
    !refused && status.resource_name.as_deref() == Some(resource_name(name, &profile.spec).as_str())
}

/// Why a profile has no shape.
#[derive(Debug, thiserror::Error)]
enum ShapeError {
    #[error("spec.device: write exactly one of whole, mig, timeSlice, mps, fraction")]
    Device,
    #[error("spec.device.{field}.memory: {source}")]
    Memory { field: &'static str, source: QuantityError },
}

fn shape(device: &Device) -> Result<Shape, ShapeError> {
    Ok(match device {
        Device { whole: Some(_), .. } => Shape::Whole,
        Device { mig: Some(mig), .. } => instance("mig", mig)?,
        Device { time_slice: Some(TimeSlice { replicas, of: Some(SlicedDevice { mig }), .. }), .. } => {
            let of = Box::new(instance("timeSlice.of.mig", mig)?);
            Shape::Slice { of, replicas: (*replicas).clamp(2, MAX_SLICES) }
        }
        Device { time_slice: Some(TimeSlice { replicas, interval, of: None }), .. } => Shape::Share(ShareShape {
            mode: SharingMode::TimeSlice,
            interval: *interval,
            resize: ResizePolicy::default(),
            compute_mode: ComputeMode::default(),
            size: ShareSize::Equal(*replicas),
        }),
        Device { mps: Some(Mps { replicas: Some(n), .. }), .. } => share(SharingMode::Mps, ShareSize::Equal(*n)),
        Device { mps: Some(Mps { memory: Some(memory), threads: Some(threads), .. }), .. } => {
            share(SharingMode::Mps, part("mps", memory, *threads)?)
        }
        Device { fraction: Some(Fraction { memory, compute, compute_mode, resize }), .. } => Shape::Share(ShareShape {
            mode: SharingMode::Fraction,
            interval: Interval::Default,
            resize: *resize,
            compute_mode: *compute_mode,
            size: part("fraction", memory, *compute)?,
        }),
        _ => return Err(ShapeError::Device),
    })
}

fn instance(field: &'static str, mig: &Mig) -> Result<Shape, ShapeError> {
    let Mig { profile, slices, memory } = mig;
    if let Some(name) = profile {
        return Ok(Shape::Named(name.clone()));
    }
    let memory = memory.as_ref().map_or(Ok(0), MemoryText::mib);
    let memory = memory.map_err(|source| ShapeError::Memory { field, source })?;
    Ok(Shape::AtLeast { slices: slices.unwrap_or(1), memory })
}

fn share(mode: SharingMode, size: ShareSize) -> Shape {
    let (resize, compute_mode) = (ResizePolicy::default(), ComputeMode::default());
    Shape::Share(ShareShape { mode, interval: Interval::Default, resize, compute_mode, size })
}

fn part(field: &'static str, memory: &MemoryText, compute: i32) -> Result<ShareSize, ShapeError> {
    let memory = memory.mib().map_err(|source| ShapeError::Memory { field, source })?;
    Ok(ShareSize::Part { memory, compute })
}
