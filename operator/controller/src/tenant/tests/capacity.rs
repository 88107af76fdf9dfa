//! What the status says about guaranteed devices that do not exist yet.

use super::*;
use crate::cache::AwaitedWindow;

/// A tenant that is guaranteed two devices, of which one is free; `windows`: pools whose changes wait for a window, with its time.
fn with_windows(windows: &[(&str, Option<&str>)]) -> Observed {
    let mut seen = converged(&json!({"gpus": [{"profile": "mig-1g", "count": 2}]}));
    let mut view = view();
    let profile = view.profiles.get_mut("mig-1g").unwrap();
    profile.free = 1;
    profile.contract.pools.insert("training".into());
    seen.view = Arc::new(view);
    // a grant has the pools
    converge(&mut seen);
    let window = |(pool, opens): &(&str, Option<&str>)| {
        ((*pool).to_owned(), AwaitedWindow { opens: opens.map(|at| at.parse().unwrap()) })
    };
    seen.windows = windows.iter().map(window).collect();
    seen
}

#[test]
fn change_that_waits_for_a_maintenance_window_is_reported_with_pool_and_time() {
    let (first, later) = (Some("2026-12-05T01:00:00Z"), Some("2026-12-06T01:00:00Z"));
    let waits = |windows: &[(&str, Option<&str>)]| reason(&with_windows(windows), "CapacityReady");
    let expected = (
        "False".to_owned(),
        "ChangePlanned".to_owned(),
        "1 of 2 devices of profile mig-1g available; changes wait for the maintenance window of pool training at 2026-12-05T01:00:00Z: kubectl gpu changes shows them".to_owned(),
    );
    assert_eq!(waits(&[("training", first)]), expected);
    assert_eq!(waits(&[("inference", later), ("training", first)]), expected, "the window that opens first");
    assert_eq!(waits(&[("inference", None), ("training", first)]), expected, "one that opens at all");
    let (_, found, message) = waits(&[("inference", None)]);
    assert_eq!(found, "ChangePlanned");
    assert!(message.ends_with("of pool inference, and none opens: correct spec.disruption.windows of the GpuPool"));
    let seen = with_windows(&[("training", first)]);
    assert_eq!(["Ready", "Reconciling", "Stalled"].map(|type_| reason(&seen, type_).0), ["False", "True", "False"]);
    assert_eq!(reason(&seen, "Ready").1, "ChangePlanned");
}

#[test]
fn missing_devices_without_an_awaited_window_are_being_created_or_held_by_others() {
    let other = [("other", Some("2026-12-05T01:00:00Z"))];
    for windows in [&[][..], &other[..]] {
        let (_, found, message) = reason(&with_windows(windows), "CapacityReady");
        assert_eq!(found, "Changing");
        assert!(message.contains("1 of 2 devices of profile mig-1g available; others are being created"), "{message}");
    }
}

#[test]
fn ready_message_has_the_number_of_guaranteed_devices() {
    let message = |count: i32| reason(&converged(&json!({"gpus": [{"profile": "mig-1g", "count": count}]})), "Ready").2;
    assert_eq!(
        [1, 2].map(message),
        ["1 guaranteed device, all available", "2 guaranteed devices, all available"].map(str::to_owned)
    );
}
