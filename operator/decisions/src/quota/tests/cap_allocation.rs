//! Allocation of a cap to resources. Weights are in eighths of a GPU, as on an A100 with MIG.

use super::{
    super::cap_allocation::{ResourceUsage, allocate_cap},
    *,
};

const ONE: i128 = 1;
const HALF: i128 = 4;
const WHOLE: i128 = 8;

/// A resource in one namespace, in devices.
fn resource(weight: i128, budget: i128, namespace: NamespaceUsage) -> ResourceUsage {
    let milli = |n: i128| n * 1000;
    let NamespaceUsage { open, used, limit, demands } = namespace;
    let demands = demands.into_iter().map(|w| Demand { amount: milli(w.amount), ..w }).collect();
    let namespace = NamespaceUsage { open, used: milli(used), limit: limit.map(milli), demands };
    ResourceUsage { weight, budget: milli(budget), namespaces: vec![namespace] }
}

/// The budget of each resource in devices, under a cap in eighths.
fn budgets(cap: i128, resources: &[ResourceUsage]) -> Vec<i128> {
    allocate_cap(cap * 1000, resources).into_iter().map(|n| n / 1000).collect()
}

fn new() -> NamespaceUsage {
    NamespaceUsage { open: true, ..NamespaceUsage::default() }
}

#[test]
fn new_cap_is_allocated_by_weight_within_each_budget() {
    assert_eq!(
        budgets(28, &[resource(ONE, 14, new()), resource(HALF, 4, new())]),
        [14, 3],
        "no device fits in two eighths"
    );
    assert_eq!(budgets(28, &[resource(ONE, 4, new()), resource(HALF, 7, new())]), [4, 6]);
    assert_eq!(budgets(28, &[resource(ONE, 99, new()), resource(HALF, 0, new())]), [28, 0]);
    assert_eq!(
        budgets(800, &[resource(ONE, 14, new()), resource(HALF, 4, new())]),
        [14, 4],
        "a cap above all budgets has no effect"
    );
    assert_eq!(budgets(4, &[resource(WHOLE, 2, new()), resource(ONE, 9, new())]), [0, 4]);
}

#[test]
fn only_a_short_resource_gets_headroom_of_others() {
    assert_eq!(budgets(16, &[resource(ONE, 16, namespace(2, 8)), resource(HALF, 4, namespace(0, 2))]), [8, 2]);
    assert_eq!(budgets(16, &[resource(ONE, 16, namespace(8, 8)), resource(HALF, 4, namespace(0, 2))]), [12, 1]);
    assert_eq!(budgets(16, &[resource(ONE, 16, namespace(15, 15)), resource(HALF, 4, namespace(0, 0))]), [16, 0]);
    assert_eq!(
        budgets(8, &[resource(ONE, 8, namespace(0, 0)), resource(HALF, 2, namespace(1, 2))]),
        [0, 2],
        "the last device is not moved without demand"
    );
}

#[test]
fn headroom_goes_to_the_resource_with_waiting_pods() {
    assert_eq!(
        budgets(28, &[resource(ONE, 28, namespace(14, 14)), resource(HALF, 7, wanting(3, 3, 1))]),
        [16, 3],
        "two eighths are too little for it"
    );
    assert_eq!(budgets(28, &[resource(ONE, 28, wanting(14, 14, 1)), resource(HALF, 7, namespace(0, 3))]), [24, 1]);
    assert_eq!(
        budgets(28, &[resource(ONE, 28, wanting(0, 14, 28)), resource(HALF, 7, namespace(0, 3))]),
        [28, 0],
        "one pod requests all"
    );
    assert_eq!(
        budgets(28, &[resource(ONE, 28, wanting(0, 14, 29)), resource(HALF, 7, namespace(0, 3))]),
        [16, 3],
        "never fits"
    );
    assert_eq!(
        budgets(28, &[resource(ONE, 4, wanting(3, 3, 1)), resource(HALF, 7, namespace(0, 6))]),
        [4, 6],
        "others keep the rest"
    );
}

#[test]
fn waiting_resource_with_lowest_weighted_use_is_served_first() {
    assert_eq!(budgets(16, &[resource(ONE, 16, wanting(8, 8, 6)), resource(HALF, 4, wanting(1, 1, 1))]), [8, 2]);
    assert_eq!(budgets(16, &[resource(ONE, 16, wanting(3, 3, 6)), resource(HALF, 4, wanting(1, 1, 1))]), [12, 1]);
    assert_eq!(budgets(16, &[resource(ONE, 16, wanting(8, 8, 1)), resource(HALF, 4, wanting(0, 0, 1))]), [12, 1]);
}

#[test]
fn over_the_cap_no_resource_admits_before_the_excess_has_ended() {
    assert_eq!(budgets(16, &[resource(ONE, 16, namespace(10, 12)), resource(HALF, 4, namespace(2, 2))]), [8, 1]);
    assert_eq!(budgets(16, &[resource(ONE, 16, namespace(1, 12)), resource(WHOLE, 4, namespace(2, 2))]), [0, 1]);
    assert_eq!(
        budgets(16, &[resource(ONE, 16, namespace(8, 12)), resource(HALF, 4, namespace(2, 2))]),
        [8, 2],
        "exactly used up"
    );
}

fn any_resource() -> impl Strategy<Value = ResourceUsage> {
    let weight = prop_oneof![Just(ONE), Just(2), Just(3), Just(HALF), Just(WHOLE)];
    (weight, 0..20_i128, any_namespace()).prop_map(|(weight, most, namespace)| resource(weight, most, namespace))
}

fn reached(resources: &[ResourceUsage], budgets: &[i128], only_down: bool) -> Vec<ResourceUsage> {
    let follow = |(resource, budget): (&ResourceUsage, &i128)| {
        let namespace = resource.namespaces[0].clone();
        let raised = *budget > namespace.limit.unwrap_or(0).max(namespace.used);
        let limit = if only_down && raised { namespace.limit } else { Some(*budget) };
        ResourceUsage { namespaces: vec![NamespaceUsage { limit, ..namespace }], ..resource.clone() }
    };
    resources.iter().zip(budgets).map(follow).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(4000), ..ProptestConfig::default() })]

    /// Allocations stay within the cap and each budget, cover use, and leave no free device that fits.
    #[test]
    fn allocations_use_up_the_cap(cap in 0..100_i128, resources in prop::collection::vec(any_resource(), 1..6)) {
        let allocated = allocate_cap(cap * 1000, &resources);
        let used: i128 = resources.iter().map(|l| l.namespaces[0].used * l.weight).sum();
        let weighs: i128 = allocated.iter().zip(&resources).map(|(n, l)| (*n).max(l.namespaces[0].used) * l.weight).sum();
        for (n, resource) in allocated.iter().zip(&resources) {
            prop_assert!(*n <= resource.budget.max(0) && n % 1000 == 0, "{allocated:?}");
        }
        if used <= cap * 1000 {
            prop_assert!(weighs <= cap * 1000, "{allocated:?}");
            for (n, resource) in allocated.iter().zip(&resources) {
                let most = if resource.namespaces[0].open { resource.budget } else { resource.namespaces[0].used.min(resource.budget) };
                prop_assert!(*n >= resource.namespaces[0].used.min(resource.budget), "{allocated:?}");
                // while pods wait, headroom that no resource had may stay free
                let waits = resources.iter().any(|l| l.namespaces[0].demands.iter().any(|w| w.stage == DemandStage::Waiting));
                prop_assert!(waits || *n >= most || weighs + resource.weight * 1000 > cap * 1000, "{allocated:?}");
            }
        } else {
            for (n, resource) in allocated.iter().zip(&resources) {
                let left = (resource.namespaces[0].used - n) * resource.weight;
                prop_assert!(*n == 0 || left >= used - cap * 1000, "{allocated:?}");
            }
        }
    }

    /// Reached allocations stay, and half-reached ones too: lowered limits do not change the decision.
    #[test]
    fn reached_or_half_reached_allocation_stays(
        cap in 0..100_i128, resources in prop::collection::vec(any_resource(), 1..6)
    ) {
        let granted = |l: &ResourceUsage| {
            let namespace = &l.namespaces[0];
            if namespace.open { namespace.limit.unwrap_or(0).max(namespace.used) } else { namespace.used }
        };
        let too_high = resources.iter().any(|l| granted(l) > l.budget.max(l.namespaces[0].used));
        let too_heavy = resources.iter().map(|l| granted(l) * l.weight).sum::<i128>() > cap * 1000;
        // limits that are too high, by an edit or a smaller cap, come down first
        let first = reached(&resources, &allocate_cap(cap * 1000, &resources), false);
        let resources = if too_high || too_heavy { first } else { resources };
        let allocated = allocate_cap(cap * 1000, &resources);
        prop_assert_eq!(&allocate_cap(cap * 1000, &reached(&resources, &allocated, false)), &allocated, "reached");
        prop_assert_eq!(&allocate_cap(cap * 1000, &reached(&resources, &allocated, true)), &allocated, "half reached");
    }
}
