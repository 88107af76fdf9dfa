//! The `GpuNode` is deleted, or gets an older spec, at any step of a change: no pod loses its device but those that the change removes, and the GPU
//! ends at its new layout.

use std::collections::BTreeSet;

use gputenancy_crds::{ChangePhase, GpuNode, Layout};
use gputenancy_plan::plain;

use crate::change::{
    scenario::{halves, split},
    shares::{parts, sliced, turns},
    small::{World, devices},
};

/// What happens to the object.
#[derive(Clone, Debug)]
enum Fault {
    /// It is deleted and created again.
    Deleted,
    /// A client writes an older spec.
    Older(Box<GpuNode>),
    /// etcd is restored: its status and generation are of that time too.
    Backup(Box<GpuNode>),
}

/// Layouts before and after a change.
fn changes() -> Vec<(Layout, Layout)> {
    let mps = |numbers: &[i32]| {
        let mut layout = turns(numbers);
        let sharing = layout.sharing.as_mut().unwrap();
        sharing.mode = gputenancy_crds::SharingMode::Mps;
        layout
    };
    let named = |resource: &str| Layout { resource: Some(resource.into()), ..Layout::default() };
    let own = |mut layout: Layout| {
        layout.instances.iter_mut().for_each(|i| i.resource = Some("gputenancy.io/own".into()));
        layout
    };
    vec![
        (turns(&[0, 1, 2, 3]), turns(&[0, 2])),
        (turns(&[0, 1]), turns(&[0, 1, 2, 3])),
        (mps(&[0, 1, 2]), mps(&[1])),
        (mps(&[0, 1]), turns(&[0, 1])),
        (parts(&[0], &[1, 2]), parts(&[], &[0, 1, 2])),
        (parts(&[0], &[1]), split()),
        (sliced(2), sliced(3)),
        (sliced(3), sliced(2)),
        (sliced(2), turns(&[0, 1])),
        (split(), halves()),
        (own(split()), own(halves())),
        (named("gputenancy.io/own"), turns(&[0, 1])),
        (turns(&[0, 1]), Layout::default()),
    ]
}

/// A world with pods on all devices of the first layout, in which the second one is planned, after this many steps.
fn world(from: &Layout, to: &Layout, steps: usize) -> (World, Vec<GpuNode>) {
    let mut world = World::new(from);
    let mut history = vec![world.node.clone()];
    from.starts().iter().for_each(|_| world.start(0));
    world.agent();
    world.kubelet();
    history.push(world.node.clone());
    world.target = Some(to.clone());
    for step in 0..steps {
        match step % 4 {
            0 => drop(world.operate(3)),
            1 => world.agent(),
            2 => world.kubelet(),
            _ => world.reap(),
        }
        if history.last().is_some_and(|last| last.spec != world.node.spec) {
            history.push(world.node.clone());
        }
    }
    (world, history)
}

/// Pods with devices that the layout lacks.
fn removed(world: &World, to: &Layout) -> BTreeSet<String> {
    let mut after = world.silicon.clone();
    crate::change::small::carve(&mut after, to);
    let kept: BTreeSet<String> = devices(&mut after).filter_map(|d| Some(d.owner.as_ref()?.pod.clone())).collect();
    let all = world.pods.keys().map(|pod| pod.name.clone());
    all.filter(|pod| !kept.contains(pod)).collect()
}

fn survive(mut world: World, fault: Fault, to: &Layout, may_leave: &BTreeSet<String>) {
    let what = format!("{:?} in {:?}", fault, world.phase());
    let before: BTreeSet<String> = world.pods.keys().map(|pod| pod.name.clone()).collect();
    match fault {
        Fault::Deleted => world.lose(),
        Fault::Older(older) => world.restore(&older),
        Fault::Backup(older) => world.node = *older,
    }
    world.settle();
    assert_eq!((world.shown(), world.phase(), world.hold()), (plain(to.clone()), None, vec![]), "{what}");
    let after: BTreeSet<String> = world.pods.keys().map(|pod| pod.name.clone()).collect();
    let left: BTreeSet<String> = before.difference(&after).cloned().collect();
    assert!(left.is_subset(may_leave), "{left:?} left, and of them only {may_leave:?} may: {what}");
    let owners = |world: &mut World| devices(&mut world.silicon).filter(|d| d.owner.is_some()).count();
    assert_eq!(owners(&mut world), after.len(), "each pod has its device: {what}");
}

/// Steps after which every change is over.
const STEPS: usize = 40;

#[test]
fn object_that_is_deleted_or_restored_in_each_phase_costs_no_pod_its_device() {
    let mut phases = BTreeSet::new();
    for (from, to) in changes() {
        let may_leave = removed(&world(&from, &to, 0).0, &to);
        for steps in 0..STEPS {
            let (lost, history) = world(&from, &to, steps);
            phases.insert(lost.phase());
            survive(lost, Fault::Deleted, &to, &may_leave);
            for older in history {
                survive(world(&from, &to, steps).0, Fault::Older(Box::new(older.clone())), &to, &may_leave);
                survive(world(&from, &to, steps).0, Fault::Backup(Box::new(older)), &to, &may_leave);
            }
        }
    }
    let begun = [ChangePhase::Held, ChangePhase::Evicting, ChangePhase::Partitioning, ChangePhase::Verifying];
    assert!(begun.iter().all(|phase| phases.contains(&Some(*phase))), "{phases:?}");
}

#[test]
fn pods_on_new_devices_keep_them_when_the_object_is_older_than_the_change() {
    for (from, to) in changes() {
        let (mut done, history) = world(&from, &to, STEPS);
        done.settle();
        for older in history {
            for fault in [Fault::Deleted, Fault::Older(Box::new(older.clone())), Fault::Backup(Box::new(older))] {
                let mut world = world(&from, &to, STEPS).0;
                world.settle();
                to.starts().iter().for_each(|_| world.start(0));
                world.agent();
                assert_eq!(world.pods.len(), to.starts().len());
                survive(world, fault, &to, &BTreeSet::new());
            }
        }
    }
}

#[test]
fn object_that_is_lost_at_rest_is_restored_with_one_write() {
    for (layout, _) in changes() {
        let mut world = world(&layout, &layout, 0).0;
        let spec = world.node.spec.clone();
        world.writes = 0;
        world.lose();
        world.settle();
        assert_eq!((&world.node.spec, world.writes, world.evicted.len()), (&spec, 1, 0), "{layout:?}");
    }
}
