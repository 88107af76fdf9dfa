//! The predicted effects of a plan where the MIG manager partitions, compared with what happens.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::ids::PodName;
use gputenancy_plan::{GpuPlan, Snapshot, plan};

use super::{world::World, *};
use crate::partitioner::effects;

/// The planner's result, and what differs from it.
fn plans(world: &World) -> (Plan, BTreeMap<GpuKey, GpuPlan>) {
    let (snapshot, _) = Snapshot::read(&world.fleet.cluster_at(world.now));
    let plan = plan(&snapshot);
    let effects = effects((&world.fleet.pools, &world.fleet.gpu_nodes), &snapshot, &plan);
    (plan, effects)
}

fn evicted<'a>(gpus: impl Iterator<Item = &'a GpuPlan>) -> BTreeSet<PodName> {
    gpus.flat_map(|gpu| &gpu.evicts).map(|e| e.pod.clone()).collect()
}

#[test]
fn pods_of_a_repartitioned_gpu_are_named_before_and_in_the_change() {
    let mut world = World::new();
    world.guarantee("small", 14);
    world.settle();
    (0..14).for_each(|_| world.arrive());
    world.guarantee("small", 7);
    world.guarantee("half", 1);
    let (plan, effects) = plans(&world);
    let named = evicted(effects.values());
    assert!(evicted(plan.gpus.values()).len() < 7 && named.len() == 7, "{effects:#?}");
    for (key, gpu) in &effects {
        let reason = plan.reason_of(key, gpu).unwrap();
        let told = named.iter().all(|pod| reason.contains(&format!("{pod} (has 1g.10gb at ")));
        assert!(told && gpu.rank == 1 && reason.matches("; evicts ").count() == 1, "{reason}");
    }
    world.agent();
    world.operate(usize::MAX);
    let reasons: Vec<&str> =
        world.node().spec.gpus.iter().filter_map(|g| Some(g.change.as_ref()?.reason.as_str())).collect();
    assert!(reasons.len() == 1 && named.iter().all(|pod| reasons[0].contains(&pod.to_string())), "{reasons:?}");
    world.settle();
    assert_eq!(world.evicted, named, "it happens as it was told");
}

#[test]
fn a_gpu_that_is_carved_for_the_mode_of_another_is_told_with_its_owners() {
    let mut world = World::new();
    world.guarantee("half", 2);
    world.settle();
    let whole = world.shapes().iter().filter(|s| !s.mig).count();
    assert_eq!(whole, 1, "one GPU has both halves: {:?}", world.shapes());
    world.arrive();
    world.guarantee("small", 3);
    let (plan, effects) = plans(&world);
    let (key, bystander) = effects
        .iter()
        .find(|(key, _)| !plan.gpus.get(key).unwrap().changed)
        .expect("a GPU that is repartitioned as well");
    assert!(bystander.changed && bystander.evicts.len() == 1, "{bystander:?}");
    let reason = plan.reason_of(key, bystander).unwrap();
    assert!(
        reason.contains(REPARTITIONED_WITH_NODE) && reason.contains("; evicts t/pod-0 (has 3g.40gb at "),
        "{key:?}: {reason}"
    );
    let named = evicted(effects.values());
    world.settle();
    assert_eq!(world.evicted, named, "it happens as it was told");
    assert!(plans(&world).1.is_empty(), "and then nothing is left to say");
}

#[test]
fn other_pools_are_planned_as_they_are() {
    let mut world = World::new();
    world.guarantee("half", 2);
    world.settle();
    world.arrive();
    world.guarantee("small", 3);
    world.fleet.pools[0].spec.partitioner = gputenancy_crds::Partitioner::Agent;
    assert!(plans(&world).1.is_empty());
}
