//! Pods that keep the former memory of their fraction.

use crate::pool::tests::*;

#[test]
fn pods_that_keep_a_former_memory_are_named_with_amounts_and_remedy() {
    let share = |number: i32, pod: &str, refused: bool| {
        let mut share = json!({"number": number, "memory": "20Gi", "device": {
            "resource": "gputenancy.io/turns", "owner": {"namespace": "t", "pod": pod, "container": "c"},
        }});
        if refused {
            share["refusedResize"] = json!({"memory": "10Gi", "used": "15Gi"});
        }
        share
    };
    let fleet = |shares: &[Value]| {
        let mut fleet = settled();
        fleet.profiles[1].spec.resource_name = Some("gputenancy.io/turns".into());
        let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
        let gpu = &mut node.status.as_mut().unwrap().gpus[0];
        gpu.shares = shares.iter().map(|share| serde_json::from_value(share.clone()).unwrap()).collect();
        fleet
    };
    let resized = |shares: &[Value]| {
        let status = at(&fleet(shares), 0, &[]).profiles["turns"].clone();
        status.conditions.into_iter().find(|c| c.type_ == "Resized").map(|c| (c.status, c.reason, c.message))
    };
    assert_eq!(resized(&[share(0, "a", false)]), None);
    let five: Vec<Value> = (0..5).map(|n| share(n, &format!("p{n}"), n > 0)).collect();
    let (status, reason, message) = resized(&five).unwrap();
    assert_eq!((&*status, &*reason), ("False", "MemoryInUse"));
    let expected = "more memory than device.fraction.memory is held by 4 pods, under the former limit: t/p1 on n holds 15Gi of 20Gi, t/p2 on n holds 15Gi of 20Gi, t/p3 on n holds 15Gi of 20Gi and 1 more; free memory, restart the pods, or set device.fraction.resize: Force";
    assert_eq!(message, expected);
}
