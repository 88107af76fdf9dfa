//! Decisions under a cap: the lower limit of one resource is enforced before another rises.

use super::*;

const ONE: &str = "requests.nvidia.com/mig-1g.10gb";

/// One whole GPU: eight small devices, or the GPU itself.
fn cap() -> Cap {
    let weights = [(ONE.to_owned(), Weight::new(1, 8).unwrap())];
    Cap { whole: Amount::of_milli(1000), weights: weights.into() }
}

fn both(whole: i128, small: i128) -> Limits {
    [(GPU, whole), (ONE, small)].map(|(key, n)| (key.to_owned(), Quantity(n.to_string()))).into()
}

fn quota(written: Limits, enforced: Limits, used: Limits) -> NamespaceQuota {
    NamespaceQuota {
        presence: Presence::Quota { state: QuotaState { written, enforced, used }, fenced: true },
        ..without_quota(Presence::NoQuota)
    }
}

/// Its small devices are released, and a controller was refused the GPU.
fn moving(written: Limits, enforced: Limits) -> NamespaceQuota {
    let demands = vec![PodDemand { amounts: [(GPU.to_owned(), Amount::units(1))].into(), stage: DemandStage::Waiting }];
    NamespaceQuota { demands, ..quota(written, enforced, both(0, 0)) }
}

fn actions(namespaces: &[NamespaceQuota]) -> Vec<QuotaAction> {
    decide(&both(1, 8), Some(&cap()), namespaces, false).actions
}

#[test]
fn limit_rises_after_another_of_the_same_quota_is_enforced_lower() {
    assert_eq!(actions(&[moving(both(0, 8), both(0, 8))]), [QuotaAction::Write(both(0, 0))]);
    assert_eq!(actions(&[moving(both(0, 0), both(0, 8))]), [QuotaAction::Keep], "eight may still be admitted");
    assert_eq!(actions(&[moving(both(0, 0), both(0, 0))]), [QuotaAction::Write(both(1, 0))]);
    let uncounted = NamespaceQuota { counted: false, ..moving(both(0, 0), both(0, 0)) };
    let decision = decide(&both(1, 8), Some(&cap()), &[uncounted], false);
    assert_eq!(
        (decision.actions, decision.waits_for_count),
        (vec![QuotaAction::Keep], true),
        "an admitted pod may not be counted yet"
    );
}

#[test]
fn no_limit_rises_while_a_quota_lacks_a_resource_under_the_cap() {
    let half = |n| limits(n);
    let new = quota(half(0), half(0), half(0));
    let written = actions(&[moving(both(0, 0), both(0, 0)), new.clone()]);
    assert_eq!(written, [QuotaAction::Keep, QuotaAction::Write(both(0, 0))], "small devices are not limited in it");
    let uncapped = decide(&both(1, 8), None, &[moving(both(0, 0), both(0, 0)), new], false).actions;
    assert_eq!(uncapped[0], QuotaAction::Write(both(1, 0)), "without a cap only its own resource counts");
}

#[test]
fn pods_that_the_quota_has_not_counted_count_against_the_cap() {
    let mut namespace = moving(both(0, 0), both(0, 0));
    namespace.pod_requests = [(ONE.to_owned(), Amount::units(1))].into();
    assert!(!actions(&[namespace]).contains(&QuotaAction::Write(both(1, 0))));
}

#[test]
fn use_beyond_the_cap_is_reported_in_whole_gpus() {
    let decision = decide(&both(1, 8), Some(&cap()), &[quota(both(1, 8), both(1, 8), both(1, 2))], false);
    assert_eq!((decision.over_cap, decision.over_budget), (Amount::of_milli(250), Amounts::new()));
    assert_eq!(decision.actions, [QuotaAction::Write(both(0, 0))]);
}
