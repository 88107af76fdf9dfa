//! What is a warning about a pool, and what is not.

use super::*;
use crate::pool::status::pools;

#[test]
fn pool_that_waits_as_specified_or_is_deleted_is_no_warning() {
    let ready = |status: &str, reason: &str| {
        vec![read(json!({"type": "Ready", "status": status, "reason": reason, "message": "m",
            "lastTransitionTime": "1970-01-01T00:00:00Z"}))]
    };
    let tone = |reason: &str| {
        let events = pools::events(&ready("True", "Ready"), &ready("False", reason));
        events.into_iter().map(|event| event.warning).collect::<Vec<_>>()
    };
    for usual in ["Changing", "ChangePlanned", "Deleting"] {
        assert_eq!(tone(usual), [false], "{usual}");
    }
    assert_eq!((tone("ChangeFailed"), tone("NodeNotReady")), (vec![true], vec![true]));
}

#[test]
fn deleted_pool_without_a_gpu_names_no_list() {
    let mut fleet = settled();
    fleet.pools[0].metadata.deletion_timestamp = Some(Time(Timestamp::from_second(900).unwrap()));
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).spec.gpus.clear();
    let message = condition_of(&at(&fleet, 1000, &[]), "Ready").2;
    assert_eq!(message, "no GPU is left: the operator's finalizer is removed next");
}
