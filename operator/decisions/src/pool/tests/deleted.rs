//! Pools that are being deleted.

use super::*;

#[test]
fn deleted_pool_serves_no_guarantee_and_says_what_follows_the_wait() {
    let mut fleet = settled();
    fleet.pools[0].metadata.deletion_timestamp = Some(Time(Timestamp::from_second(100).unwrap()));
    let decision = at(&fleet, 101, &[]);
    let conditions = &decision.pools["p"].conditions;
    let of = |type_: &str| conditions.iter().find(|c| c.type_ == type_).unwrap();
    assert_eq!((of("DemandMet").status.as_str(), of("DemandMet").reason.as_str()), ("False", "Deleting"));
    let ready = &of("Ready").message;
    assert!(
        ready.contains(
            "5 minutes at most; then the pool is deleted, and each GPU is released once it is idle: GPU 0 of node n"
        ),
        "{ready}"
    );
}
