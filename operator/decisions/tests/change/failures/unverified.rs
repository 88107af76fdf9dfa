//! Layouts that cannot be verified, and GPUs on which no layout can be had: neither blocks a device.

use gputenancy_crds::{ChangePhase, Layout};
use k8s_openapi::jiff::SignedDuration;

use crate::change::{
    shares::{parts, turns},
    single::{halves, layout, split, until},
    small::World,
};

#[test]
fn layout_that_is_never_verified_gives_way_to_the_old_one_in_every_mode() {
    let whole = Layout::default;
    for (from, to) in [
        (split(), layout(&[("7g.80gb", 0)])),
        (split(), whole()),
        (whole(), turns(&[0, 1])),
        (whole(), parts(&[0], &[1])),
        (turns(&[0, 1]), parts(&[0], &[])),
        (parts(&[0], &[1]), split()),
    ] {
        let mut world = World::new(&from);
        world.uncounted = to.resources().into_iter().collect();
        world.target = Some(to.clone());
        for _ in 0..40 {
            world.operate(3);
            world.agent();
            world.kubelet();
            world.pass(SignedDuration::from_secs(30));
            if world.phase() == Some(ChangePhase::RolledBack) {
                break;
            }
        }
        assert_eq!((world.phase(), world.shown()), (Some(ChangePhase::RolledBack), from.clone()), "{to:?}");
        let reason = world.node.spec.gpus[0].change.clone().unwrap().reason;
        assert!(reason.contains("allocatable"), "{reason}");
        // the demand is gone
        world.target = Some(from.clone());
        world.settle();
        assert_eq!((world.phase(), world.hold()), (None, vec![]));
    }
}

#[test]
fn stuck_gpu_serves_another_demand() {
    let mut world = World::new(&split());
    world.failures = 2;
    world.target = Some(halves());
    until(&mut world, ChangePhase::Stuck);
    world.agent();
    world.target = Some(turns(&[0, 1]));
    world.settle();
    assert_eq!((world.shown(), world.phase()), (turns(&[0, 1]), None));
}
