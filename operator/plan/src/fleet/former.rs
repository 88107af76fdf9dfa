//! Instances of the former shape of a profile: idle ones lose the profile's resource, so that no new pod gets a device of another size.

use std::sync::Arc;

use gputenancy_crds::{InstanceSpec, Layout};

use super::profiles::ProfileIndex;
use crate::{board::BoardGeometry, snapshot::Gpu};

/// The layout in which idle instances of a former shape have NVIDIA's resource for their MIG profile. Those whose profile has this very resource are
/// removed. Instances in use keep their resource until they are idle.
pub(super) fn renamed(
    layout: Arc<Layout>,
    gpu: &Gpu,
    board: &BoardGeometry,
    profiles: &ProfileIndex<'_>,
) -> Arc<Layout> {
    let is_former = |i: &InstanceSpec| profiles.is_former(i, board) && !is_in_use(gpu, i);
    if !layout.mig || !layout.instances.iter().any(is_former) {
        return layout;
    }
    let renamed = |i: &InstanceSpec| {
        if !is_former(i) {
            return Some(i.clone());
        }
        let usual = InstanceSpec { resource: None, replicas: None, ..i.clone() };
        (!profiles.is_former(&usual, board)).then_some(usual)
    };
    Arc::new(Layout { instances: layout.instances.iter().filter_map(renamed).collect(), ..(*layout).clone() })
}

/// Whether the instance or a time-slice of it is in use.
fn is_in_use(gpu: &Gpu, instance: &InstanceSpec) -> bool {
    let same = |profile: Option<&str>| profile == Some(instance.profile.as_str());
    gpu.used.iter().any(|used| used.memory_start() == instance.start && same(used.profile.as_deref()))
}
