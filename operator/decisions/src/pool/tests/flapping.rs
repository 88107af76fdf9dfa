//! Guarantees that change up and down.

use gputenancy_crds::reasons;

use super::*;
use crate::pool::status::pools;

/// The tenant's guarantee is edited by a field manager.
fn edit(fleet: &mut Fleet, count: i32, writer: &str) {
    let tenant = Arc::make_mut(&mut fleet.tenants[0]);
    tenant.spec.gpus[0].count = count;
    tenant.metadata.managed_fields = read(json!([{"manager": writer}]));
    tenant.metadata.generation = tenant.metadata.generation.map(|generation| generation + 1);
}

#[test]
fn guarantee_that_two_writers_change_up_and_down_waits_until_it_stays_and_is_named() {
    let mut fleet = settled();
    let mut remembered = Remembered::default();
    let rest = next(&fleet, &mut remembered, 1000, &[]);
    assert!(rest.nodes.is_empty() && rest.pools.is_empty(), "{rest:?}");

    let (mut plans, mut last) = (vec![true], rest);
    let before = fleet.pools[0].status.clone().unwrap().conditions;
    for flip in 1..=24 {
        let (count, writer) = if flip % 2 == 1 { (3, "argocd") } else { (1, "flux") };
        edit(&mut fleet, count, writer);
        last = next(&fleet, &mut remembered, 1000 + 3 * flip, &[]);
        // of two GPUs the plan serves one and not three
        let served = last.view.tenants["t"].shortages.is_empty();
        plans.push(served);
        if flip <= 3 {
            let flaps = last.pools.get("p").is_some_and(|status| !status.flapping.is_empty());
            assert_eq!((flaps, served), (false, count == 1), "an ordinary edit is planned at once");
        }
    }
    plans.dedup();
    assert_eq!(plans, [true, false, true, false], "the third turn waits, and every later one");
    let (status, reason, message) = condition_of(&last, "DemandFlapping");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Flapping"));
    let expected = "guarantee of tenant t for gpu has changed 24 times up and down, written by argocd, flux; 3 devices are planned, and 1 from 1970-01-01T00:18:22Z on if it stays: ";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(last.wake.map(Timestamp::as_second), Some(1102));
    let flapping = &last.pools["p"].flapping[0];
    assert_eq!((flapping.wanted, flapping.planned, flapping.changes), (1, 3, 24));
    assert_eq!(flapping.writers, ["argocd", "flux"]);
    assert_eq!(last.flapping, ["p"]);
    let events = pools::events(&before, &last.pools["p"].conditions);
    assert!(events.iter().any(|event| event.reason == reasons::FLAPPING), "{events:?}");

    // a tenant whose larger guarantee waits is not reported as served
    edit(&mut fleet, 9, "argocd");
    let waiting = next(&fleet, &mut remembered, 1080, &[]);
    let shortages = waiting.view.tenants["t"].shortages.join("; ");
    assert!(shortages.contains("3 devices are planned, and 9 from "), "{shortages}");

    edit(&mut fleet, 1, "flux");
    next(&fleet, &mut remembered, 1090, &[]);
    let settled = next(&fleet, &mut remembered, 1120, &[]);
    let flapping = &settled.pools["p"].flapping[0];
    assert_eq!((flapping.planned, &flapping.planned_at), (1, &None));
    fleet.pools[0].status = settled.pools.get("p").cloned();
    let calm = settled.wake.unwrap();
    let calm = next(&fleet, &mut remembered, calm.as_second(), &[]);
    assert_eq!(condition_of(&calm, "DemandFlapping").1, "DemandSettled");
    assert!(calm.pools["p"].flapping.is_empty() && calm.flapping.is_empty());
}
