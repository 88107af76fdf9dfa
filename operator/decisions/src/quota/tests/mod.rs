//! Quota decisions without a cluster: target limits, and the writes that lead to them.

mod cap_allocation;
mod cap_commitment;
mod schedule;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

use gputenancy_crds::quantity::Amount;

use super::{
    limits::are_equal,
    target::{Demand, NamespaceUsage, target_limits},
    *,
};

const GPU: &str = "requests.nvidia.com/gpu";

fn namespace(used: i128, limit: i128) -> NamespaceUsage {
    NamespaceUsage { open: true, used, limit: Some(limit), demands: Vec::new() }
}

fn wanting(used: i128, limit: i128, amount: i128) -> NamespaceUsage {
    NamespaceUsage { demands: vec![Demand { amount, stage: DemandStage::Waiting }], ..namespace(used, limit) }
}

fn closed(used: i128) -> NamespaceUsage {
    NamespaceUsage { open: false, ..namespace(used, 0) }
}

#[test]
fn new_budget_is_split_in_whole_units_without_rest() {
    let new = vec![NamespaceUsage { open: true, ..NamespaceUsage::default() }; 3];
    assert_eq!(target_limits(8, 1, &new), [3, 3, 2]);
    assert_eq!(target_limits(2, 1, &new), [1, 1, 0]);
    assert_eq!(target_limits(0, 1, &new), [0, 0, 0]);
    assert_eq!(target_limits(1000, 64, &new), [360, 320, 320], "the fraction of a unit goes to the first");
    assert_eq!(target_limits(1000, 64, &new[..1]), [1000]);
}

#[test]
fn namespace_without_headroom_gets_some_from_idle_namespaces() {
    assert_eq!(target_limits(8, 1, &[namespace(4, 4), namespace(0, 4)]), [6, 2]);
    assert_eq!(target_limits(8, 1, &[namespace(6, 6), namespace(0, 2)]), [7, 1]);
    assert_eq!(
        target_limits(8, 1, &[namespace(7, 7), namespace(0, 1)]),
        [7, 1],
        "the last device is not moved without demand"
    );
}

#[test]
fn limits_stay_while_every_namespace_has_headroom() {
    assert_eq!(target_limits(9, 1, &[namespace(2, 3), namespace(0, 3), namespace(1, 3)]), [3, 3, 3]);
    assert_eq!(target_limits(64, 1, &[namespace(20, 32), namespace(0, 32)]), [32, 32]);
}

#[test]
fn headroom_goes_to_waiting_pods_and_others_keep_one_device_if_there_is_enough() {
    let others = || [namespace(0, 2), namespace(0, 2), namespace(0, 1), namespace(0, 1)];
    let with = |first: NamespaceUsage, rest: [NamespaceUsage; 4]| -> Vec<NamespaceUsage> {
        std::iter::once(first).chain(rest).collect()
    };
    assert_eq!(target_limits(8, 1, &with(wanting(2, 2, 1), others())), [4, 1, 1, 1, 1]);
    assert_eq!(target_limits(8, 1, &with(wanting(4, 4, 1), [1; 4].map(|n| namespace(0, n)))), [8, 0, 0, 0, 0]);
    assert_eq!(
        target_limits(8, 1, &with(wanting(0, 2, 8), others())),
        [8, 0, 0, 0, 0],
        "one pod may request all of it"
    );
}

#[test]
fn demand_that_never_fits_moves_no_limit() {
    assert_eq!(target_limits(8, 1, &[wanting(2, 4, 9), namespace(2, 4)]), [4, 4]);
    assert_eq!(target_limits(8, 1, &[namespace(5, 6), wanting(2, 2, 2)]), [6, 2]);
}

#[test]
fn waiting_namespace_with_lowest_use_is_served_first() {
    assert_eq!(target_limits(8, 1, &[wanting(4, 4, 1), wanting(3, 3, 1), namespace(0, 1)]), [4, 4, 0]);
    assert_eq!(target_limits(8, 1, &[wanting(3, 3, 1), wanting(3, 3, 1), namespace(0, 2)]), [4, 4, 0]);
}

#[test]
fn reserved_headroom_is_not_given_to_other_namespaces() {
    let reserved =
        NamespaceUsage { demands: vec![Demand { amount: 1, stage: DemandStage::Reserved }], ..namespace(2, 4) };
    assert_eq!(target_limits(8, 1, &[reserved.clone(), wanting(4, 4, 1)]), [3, 5]);
    assert_eq!(
        target_limits(8, 1, &[reserved, namespace(4, 4)]),
        [4, 4],
        "the other's headroom is not refilled meanwhile"
    );
}

#[test]
fn use_of_closed_namespaces_counts() {
    assert_eq!(target_limits(8, 1, &[closed(3), namespace(0, 8)]), [0, 5]);
    assert_eq!(target_limits(8, 1, &[closed(9), namespace(0, 8)]), [0, 0]);
}

#[test]
fn over_budget_no_pod_is_admitted_after_another_ends() {
    assert_eq!(target_limits(4, 1, &[namespace(5, 6), namespace(3, 4)]), [1, 0]);
    assert_eq!(target_limits(8, 1, &[namespace(5, 6), namespace(3, 2)]), [5, 3], "a fully used budget is not exceeded");
}

fn limits(n: i128) -> Limits {
    [(GPU.to_owned(), Quantity(n.to_string()))].into()
}

fn quota(written: i128, enforced: i128, used: i128, fenced: bool) -> NamespaceQuota {
    let state = QuotaState { written: limits(written), enforced: limits(enforced), used: limits(used) };
    NamespaceQuota {
        open: true,
        presence: Presence::Quota { state, fenced },
        counted: true,
        pod_requests: Amounts::new(),
        demands: Vec::new(),
    }
}

fn without_quota(presence: Presence) -> NamespaceQuota {
    NamespaceQuota { open: true, presence, counted: true, pod_requests: Amounts::new(), demands: Vec::new() }
}

fn actions(budget: i128, namespaces: &[NamespaceQuota]) -> Vec<String> {
    let text = |action: QuotaAction| match action {
        QuotaAction::Keep => "keep".to_owned(),
        QuotaAction::Touch => "touch".to_owned(),
        QuotaAction::Write(limits) => limits.get(GPU).map(|q| q.0.clone()).unwrap_or_default(),
    };
    decide(&limits(budget), None, namespaces, false).actions.into_iter().map(text).collect()
}

#[test]
fn new_tenant_is_written_once() {
    assert_eq!(actions(8, &[without_quota(Presence::NewNamespace), without_quota(Presence::NewNamespace)]), ["4", "4"]);
    assert_eq!(actions(8, &[quota(4, 4, 0, true), quota(4, 4, 0, true)]), ["keep", "keep"]);
}

#[test]
fn limit_rises_after_the_lowered_one_is_enforced() {
    assert_eq!(actions(8, &[quota(4, 4, 4, true), quota(4, 4, 0, true)]), ["keep", "2"]);
    assert_eq!(actions(8, &[quota(4, 4, 4, true), quota(2, 4, 0, true)]), ["keep", "keep"]);
    assert_eq!(actions(8, &[quota(4, 4, 4, true), quota(2, 2, 0, true)]), ["6", "keep"]);
}

#[test]
fn no_limit_rises_while_another_quota_is_not_fenced() {
    assert_eq!(actions(8, &[quota(4, 4, 4, false), quota(2, 2, 0, false)]), ["keep", "touch"]);
    assert_eq!(actions(8, &[quota(4, 4, 4, false), quota(4, 4, 0, false)]), ["keep", "2"], "a write fences too");
    assert_eq!(
        actions(8, &[quota(4, 4, 4, false), quota(2, 2, 0, true)]),
        ["6", "keep"],
        "its own write is refused if it changed"
    );
}

#[test]
fn deleted_quota_is_recreated_at_zero_until_its_use_is_known() {
    assert_eq!(actions(8, &[without_quota(Presence::NoQuota), quota(4, 4, 4, true)]), ["0", "keep"]);
    assert_eq!(actions(8, &[quota(0, 0, 3, true), quota(4, 4, 4, true)]), ["4", "keep"]);
}

#[test]
fn added_namespace_gets_its_share_after_the_others_are_lowered() {
    assert_eq!(actions(8, &[quota(8, 8, 0, true), without_quota(Presence::NewNamespace)]), ["4", "0"]);
    assert_eq!(actions(8, &[quota(4, 4, 0, true), quota(0, 0, 0, true)]), ["keep", "4"]);
}

#[test]
fn suspended_tenant_admits_nothing_and_resumed_tenant_does() {
    let namespaces = [quota(4, 4, 2, true), quota(4, 4, 0, true)];
    let suspended = decide(&limits(8), None, &namespaces, true);
    assert_eq!(suspended.targets, [limits(0), limits(0)]);
    assert_eq!(actions(8, &[quota(0, 0, 2, true), quota(0, 0, 0, true)]), ["5", "3"]);
}

#[test]
fn suspended_tenant_may_create_deployments_and_no_pods() {
    let budget: Limits =
        ["count/deployments.apps", "count/pods", "pods"].map(|key| (key.to_owned(), Quantity("8".into()))).into();
    let [target] = &decide(&budget, None, &[without_quota(Presence::NewNamespace)], true).targets[..] else { panic!() };
    assert_eq!(target.values().map(|q| q.0.as_str()).collect::<Vec<_>>(), ["8", "0", "0"], "{target:?}");
}

#[test]
fn resource_removed_from_the_catalog_stays_limited_to_zero() {
    let removed = decide(&Limits::new(), None, &[quota(8, 8, 2, true)], false);
    assert_eq!(removed.actions, [QuotaAction::Write(limits(0))]);
}

#[test]
fn memory_and_cpu_are_split_in_their_units() {
    let budget: Limits =
        [("requests.memory", "1024Gi"), ("requests.cpu", "1"), ("limits.memory", "1000M"), ("pods", "20")]
            .map(|(key, text)| (key.to_owned(), Quantity(text.to_owned())))
            .into();
    let new = without_quota(Presence::NewNamespace);
    let targets = decide(&budget, None, &[new.clone(), new.clone(), new], false).targets;
    let of = |key: &str| targets.iter().map(|t| t[key].0.clone()).collect::<Vec<_>>();
    assert_eq!(of("requests.memory"), ["349526Mi", "349525Mi", "349525Mi"]);
    assert_eq!(of("requests.cpu"), ["334m", "333m", "333m"]);
    assert_eq!(of("pods"), ["7", "7", "6"]);
    let whole: i128 = targets.iter().filter_map(|t| Amount::parse(&t["limits.memory"])).map(Amount::milli).sum();
    assert_eq!(whole, 1_000_000_000_000);
    assert_eq!(of("limits.memory")[1..], ["318Mi", "317Mi"]);
}

#[test]
fn limits_in_other_notation_are_equal() {
    let of = |text: &str| Limits::from([("requests.memory".to_owned(), Quantity(text.into()))]);
    assert!(are_equal(&of("1024Mi"), &of("1Gi")));
    assert!(!are_equal(&of("1Gi"), &of("2Gi")));
    assert!(!are_equal(&of("1Gi"), &Limits::new()));
}

fn any_namespace() -> impl Strategy<Value = NamespaceUsage> {
    let stage = prop_oneof![Just(DemandStage::Waiting), Just(DemandStage::Reserved), Just(DemandStage::Settling)];
    let want = (1..12_i128, stage).prop_map(|(amount, stage)| Demand { amount, stage });
    (prop::bool::weighted(0.85), 0..12_i128, prop::option::weighted(0.9, 0..20_i128), prop::collection::vec(want, 0..3))
        .prop_map(|(open, used, limit, demands)| NamespaceUsage { open, used, limit, demands })
}

fn moved(namespaces: &[NamespaceUsage], limits: &[i128], only_down: bool) -> Vec<NamespaceUsage> {
    let follow = |(namespace, limit): (&NamespaceUsage, &i128)| {
        let raised = *limit > namespace.limit.unwrap_or(0);
        let limit = if only_down && raised { namespace.limit } else { Some(*limit) };
        NamespaceUsage { limit, ..namespace.clone() }
    };
    namespaces.iter().zip(limits).map(follow).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(4000), ..ProptestConfig::default() })]

    /// The targets equal the budget; no open namespace is below its use; closed ones are at zero.
    #[test]
    fn targets_equal_the_budget_and_cover_use(
        budget in 0..60_i128, unit in prop_oneof![Just(1_i128), Just(4)], namespaces in prop::collection::vec(any_namespace(), 1..6)
    ) {
        let limits = target_limits(budget, unit, &namespaces);
        let used: i128 = namespaces.iter().map(|s| s.used).sum();
        let counted: i128 = limits.iter().zip(&namespaces).map(|(l, s)| if s.open { *l } else { s.used }).sum();
        if used <= budget {
            prop_assert!(counted <= budget, "{limits:?}");
            let any_open = namespaces.iter().any(|s| s.open);
            prop_assert!(!any_open || counted == budget, "a part of the budget is not granted: {limits:?}");
            for (limit, namespace) in limits.iter().zip(&namespaces) {
                prop_assert!(if namespace.open { *limit >= namespace.used } else { *limit == 0 }, "{limits:?}");
            }
        } else {
            let over = used - budget;
            for (limit, namespace) in limits.iter().zip(&namespaces) {
                prop_assert!(*limit <= (namespace.used - over).max(0), "{limits:?}");
            }
        }
    }

    /// Reached targets stay targets, and half-reached ones too: lowered limits do not change the decision.
    #[test]
    fn reached_or_half_reached_target_stays(
        budget in 0..60_i128, unit in prop_oneof![Just(1_i128), Just(4)], namespaces in prop::collection::vec(any_namespace(), 1..6)
    ) {
        let used: i128 = namespaces.iter().filter(|s| !s.open).map(|s| s.used).sum();
        let granted: i128 = namespaces.iter().filter(|s| s.open).map(|s| s.limit.unwrap_or(0).max(s.used)).sum();
        // limits that are too high, by an edit or a smaller budget, come down first
        let namespaces = if granted + used <= budget { namespaces } else { moved(&namespaces, &target_limits(budget, unit, &namespaces), false) };
        let limits = target_limits(budget, unit, &namespaces);
        let mut reached = moved(&namespaces, &limits, false);
        if unit == 1 {
            prop_assert_eq!(&target_limits(budget, unit, &reached), &limits, "reached");
            prop_assert_eq!(&target_limits(budget, unit, &moved(&namespaces, &limits, true)), &limits, "half reached");
        }
        // parts of units, which come with odd use, may add up to one that moves once more
        for _ in 0..namespaces.len() {
            reached = moved(&reached, &target_limits(budget, unit, &reached), false);
        }
        let last: Vec<i128> = reached.iter().map(|s| s.limit.unwrap_or(0)).collect();
        prop_assert_eq!(target_limits(budget, unit, &reached), last, "in the end");
    }

    /// The only waiting namespace gets all that is not used or reserved.
    #[test]
    fn single_waiting_namespace_gets_all_unused_budget(
        budget in 1..60_i128, namespaces in prop::collection::vec((0..12_i128, 0..20_i128), 1..6), amount in 1..20_i128
    ) {
        let mut namespaces: Vec<NamespaceUsage> = namespaces.into_iter().map(|(used, limit)| namespace(used, limit)).collect();
        let free = budget - namespaces.iter().map(|s| s.used).sum::<i128>();
        namespaces[0].demands = vec![Demand { amount, stage: DemandStage::Waiting }];
        let limits = target_limits(budget, 1, &namespaces);
        prop_assert_eq!(limits[0] >= namespaces[0].used + amount, amount <= free, "{:?} of {}", limits, free);
    }
}

/// Number of cases of a property; `QUOTA_CASES` overrides it.
fn cases(default: u32) -> u32 {
    std::env::var("QUOTA_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}
