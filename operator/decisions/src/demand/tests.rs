//! Sequences of edits, and what is planned of them.

use gputenancy_crds::GpuPool;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn pool(name: &str, disruption: &Value) -> GpuPool {
    let selector = json!({"matchLabels": {"x": "y"}});
    read(
        json!({"metadata": {"name": name}, "spec": {"nodeSelector": selector, "profiles": ["small"], "disruption": disruption}}),
    )
}

fn tenant(count: i32, writer: &str) -> Arc<GpuTenant> {
    let metadata = json!({"name": "t", "managedFields": [{"manager": writer}]});
    let gpus = json!([{"profile": "other", "count": 1}, {"profile": "small", "count": count}]);
    Arc::new(read(json!({"metadata": metadata, "spec": {"namespaces": [{"name": "t"}], "gpus": gpus}})))
}

/// A tenant whose guarantee for `small` follows from edits.
struct World {
    fleet: Fleet,
    demands: Demands,
}

impl World {
    fn new(disruption: &Value) -> Self {
        let fleet = Fleet { pools: vec![pool("p", disruption)], tenants: vec![tenant(1, "first")], ..Fleet::default() };
        let mut world = Self { fleet, demands: Demands::default() };
        assert_eq!(world.planned(0), Some(1));
        world
    }

    /// What is planned after a look at this second.
    fn planned(&mut self, second: i64) -> Option<i32> {
        self.demands.update(&self.fleet, at(second));
        let tenants = self.demands.planned(&self.fleet).unwrap_or_else(|| self.fleet.tenants.clone());
        let gpus = tenants.first()?.spec.gpus.iter();
        Some(gpus.filter(|g| g.profile == "small").map(|g| g.count).sum())
    }

    fn edit(&mut self, second: i64, count: i32, writer: &str) -> Option<i32> {
        self.fleet.tenants = vec![tenant(count, writer)];
        self.planned(second)
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn damped_guarantee_is_planned_and_forgotten_although_the_clock_was_set_back() {
    let mut world = World::new(&json!({}));
    for flip in 0..6 {
        world.edit(100_000 + flip, if flip % 2 == 0 { 7 } else { 1 }, "w");
    }
    world.edit(100_006, 5, "w");
    assert_eq!(world.planned(1000), Some(7), "the last change waits");
    assert_eq!(world.planned(1030), Some(5));
    assert_eq!(world.demands.flapping(at(1299)).count(), 1);
    assert_eq!((world.planned(1300), world.demands.flapping(at(1300)).count()), (Some(5), 0));
}

#[test]
fn two_writers_that_fight_change_the_plan_a_few_times_and_are_named() {
    let mut world = World::new(&json!({}));
    let mut plans = vec![1];
    for flip in 1..=24 {
        let (count, writer) = if flip % 2 == 1 { (7, "argocd") } else { (1, "flux") };
        plans.extend(world.edit(flip * 75 / 24, count, writer));
    }
    plans.dedup();
    assert_eq!(plans, [1, 7, 1, 7], "the third turn waits, and every later one");
    let flapping: Vec<_> = world.demands.flapping(at(75)).collect();
    let [Flapping { tenant, profile, wanted, planned, due, changes, writers }] = flapping[..] else {
        panic!("{flapping:?}")
    };
    assert_eq!((tenant, profile, wanted, planned, changes), ("t", "small", 1, 7, 24));
    assert_eq!(writers.iter().collect::<Vec<_>>(), ["argocd", "flux"]);
    let planned = world.demands.planned(&world.fleet).unwrap();
    assert!(planned[0].spec.gpus.iter().any(|g| (g.profile.as_str(), g.count) == ("other", 1)), "{planned:?}");
    assert_eq!((due, world.demands.next(at(75))), (Some(at(105)), Some(at(105))));
    assert_eq!((world.planned(104), world.planned(105)), (Some(7), Some(1)));
    // it is named until the turns are old, and then forgotten
    let calm = world.demands.next(at(105)).unwrap();
    assert!(world.demands.flapping(at(calm.as_second() - 1)).next().is_some());
    assert_eq!((world.demands.flapping(calm).count(), world.demands.next(calm)), (0, None));
    assert_eq!(
        (world.planned(1000), world.edit(1001, 7, "argocd"), world.edit(1002, 1, "x")),
        (Some(1), Some(7), Some(1))
    );
}

#[test]
fn a_guarantee_that_waits_keeps_its_place_among_the_others() {
    let gpus = |small: i32| json!([{"profile": "small", "count": small}, {"profile": "other", "count": 1}]);
    let spec = |gpus| json!({"metadata": {"name": "t"}, "spec": {"namespaces": [{"name": "t"}], "gpus": gpus}});
    let spec = |small| read::<GpuTenant>(spec(gpus(small)));
    assert_eq!(with(&spec(7), &[("small", 2)]), spec(2));
    assert_eq!(with(&spec(7), &[("other", 1), ("small", 2)]), spec(2), "in whatever order they wait");
    assert_eq!(with(&spec(7), &[("small", 0)]).spec.gpus.len(), 1, "one that is planned as none is left out");
}

#[test]
fn settle_time_is_the_longest_of_the_pools_and_zero_plans_every_change_at_once() {
    let mut world = World::new(&json!({"settleTime": "0s"}));
    for flip in 1..20 {
        let count = 1 + i32::try_from(flip % 2).unwrap();
        assert_eq!(world.edit(flip, count, "x"), Some(count));
    }
    world.fleet.pools.push(pool("q", &json!({"settleTime": "2m"})));
    assert_eq!((world.edit(20, 1, "x"), world.planned(139), world.planned(140)), (Some(2), Some(2), Some(1)));
    world.edit(141, 2, "x");
    world.fleet.pools.clear();
    assert_eq!(world.planned(142), Some(2), "no pool offers the profile any more");
}

#[test]
fn tenant_that_is_deleted_and_created_again_is_a_new_demand() {
    let again = |uid: &str, count: i32| {
        let mut again = (*tenant(count, "argocd")).clone();
        again.metadata.uid = Some(uid.to_owned());
        Arc::new(again)
    };
    let mut world = World::new(&json!({}));
    for second in 1..6_i32 {
        world.edit(second.into(), second % 2, "argocd");
    }
    assert_ne!(world.planned(6), Some(1), "it flaps");
    world.fleet.tenants = vec![again("seen at once", 1)];
    assert_eq!(world.planned(7), Some(1));
    for second in 8..13_i32 {
        world.fleet.tenants = vec![again("seen at once", second % 2)];
        world.planned(second.into());
    }
    world.fleet.tenants.clear();
    world.planned(13);
    world.fleet.tenants = vec![again("after a pause", 1)];
    assert_eq!(world.planned(14), Some(1));
    assert_eq!(world.demands.flapping(at(14)).count(), 0);
    let mut deleted = (*again("after a pause", 1)).clone();
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(15)));
    world.fleet.tenants = vec![Arc::new(deleted)];
    world.demands.update(&world.fleet, at(15));
    assert!(world.demands.planned(&world.fleet).is_none(), "what is deleted has no guarantee to wait for");
}

#[test]
fn profile_that_leaves_the_list_and_returns_keeps_its_planned_count() {
    let mut world = World::new(&json!({}));
    let without = |world: &mut World, second| {
        let mut tenant = (*tenant(1, "x")).clone();
        tenant.spec.gpus.retain(|g| g.profile != "small");
        world.fleet.tenants = vec![Arc::new(tenant)];
        world.planned(second)
    };
    assert_eq!((without(&mut world, 1), world.edit(2, 1, "y")), (Some(0), Some(1)));
    assert_eq!((without(&mut world, 3), world.edit(4, 1, "y"), world.edit(5, 2, "y")), (Some(0), Some(0), Some(0)));
}

proptest! {
    /// Edits as (seconds after the one before, count).
    #[test]
    fn plan_follows_few_edits_at_once_and_many_seldom(
        edits in proptest::collection::vec((0..40_i64, 0..4_i32), 1..40),
    ) {
        let (mut world, mut second, mut last) = (World::new(&json!({})), 0, 1);
        let (mut turns, mut grew, mut changed): (Vec<i64>, Option<bool>, i64) = (Vec::new(), None, 0);
        let mut plan = Some(1);
        let mut changed_at = Vec::new();
        for (pause, count) in edits {
            second += pause;
            if count != last {
                if grew.take_if(|_| second - changed >= 300).is_some() {
                    turns.clear();
                }
                changed = second;
                if grew.is_some_and(|grew| grew != (count > last)) {
                    turns.push(second);
                }
                (last, grew) = (count, Some(count > last));
            }
            let planned = world.edit(second, count, "x");
            let recent = turns.iter().filter(|turn| **turn > second - 300).count();
            if recent < TURNS {
                prop_assert_eq!(planned, Some(count), "an ordinary edit is planned at once");
            } else if planned != plan {
                changed_at.push(second);
            }
            plan = planned;
        }
        // while it flaps, the plan changes at most once in a settle time
        prop_assert!(changed_at.windows(2).all(|pair| pair[1] - pair[0] >= 30), "{changed_at:?}");
        prop_assert_eq!(world.planned(second + 30), Some(last), "it converges");
    }

    /// However 24 edits within 75 seconds turn the guarantee up and down.
    #[test]
    fn few_layout_changes_follow_from_any_fight(
        mut times in proptest::collection::vec(1..75_i64, 24),
        counts in proptest::collection::vec((0..3_i32, 5..8_i32), 12),
    ) {
        times.sort_unstable();
        let edits: Vec<(i64, i32)> = times.into_iter().zip(counts.into_iter().flat_map(|(low, high)| [high, low])).collect();
        let mut world = World::new(&json!({}));
        let mut plans = vec![1];
        for second in 1..=105 {
            for (_, count) in edits.iter().filter(|(at, _)| *at == second) {
                plans.extend(world.edit(second, *count, "x"));
            }
            plans.extend(world.planned(second));
        }
        plans.dedup();
        // the first three, the last one, and one for each pause of 30 s
        prop_assert!(plans.len() <= 1 + 3 + 1 + 2 && plans.last() == edits.last().map(|(_, count)| count), "{plans:?}");
    }
}
