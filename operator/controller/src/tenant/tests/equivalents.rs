//! Tests of tenants with a cap over all profiles, in whole GPUs.

use gputenancy_decisions::quota::Weight;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;

const THREE: &str = "requests.nvidia.com/mig-3g.40gb";

fn view_with_weights() -> FleetView {
    let mut view = view();
    let three = ProfileView { resource: "nvidia.com/mig-3g.40gb".into(), ..view.profiles["mig-1g"].clone() };
    view.profiles.insert("mig-3g".into(), three);
    view.resources.insert("nvidia.com/mig-3g.40gb".into());
    let eighths = |resource: &str, n| (resource.to_owned(), Weight::new(n, 8).unwrap());
    view.weights = [("nvidia.com/mig-1g.10gb", 1), ("nvidia.com/mig-3g.40gb", 4)].map(|(r, n)| eighths(r, n)).into();
    view
}

/// Fourteen small devices and four large ones at most, in one namespace.
fn mixed(more: &Value) -> Observed {
    let mut spec = json!({
        "namespaces": [{"name": "a1"}], "gpuEquivalents": "3.5",
        "gpus": [{"profile": "mig-1g", "count": 14}, {"profile": "mig-3g", "count": 4}],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut seen = observed(&spec);
    seen.view = Arc::new(view_with_weights());
    converge(&mut seen);
    seen
}

fn set_used_of(seen: &mut Observed, key: &str, devices: i32) {
    let mut quota = (*seen.quotas["a1"]).clone();
    quota.status.used.insert(key.into(), Quantity(devices.to_string()));
    seen.quotas.insert("a1".into(), Arc::new(quota));
}

fn limits(seen: &Observed) -> [&str; 2] {
    [MIG, THREE].map(|key| seen.quotas["a1"].spec.hard[key].0.as_str())
}

#[test]
fn cap_is_reported_with_the_share_of_each_device() {
    let mut seen = mixed(&json!({}));
    assert_eq!(limits(&seen), ["14", "3"]);
    set_used_of(&mut seen, MIG, 9);
    set_used_of(&mut seen, THREE, 1);
    let status = status_of(&seen, None);
    let together = status.equivalents.unwrap();
    assert_eq!((together.used.as_str(), together.cap.as_str()), ("1.625", "3.5"));
    let shares: Vec<_> = status.gpus.iter().map(|g| g.share.as_deref()).collect();
    assert_eq!(shares, [Some("1/8"), Some("1/2")]);
    let (_, found, message) = reason(&seen, "QuotaReady");
    assert_eq!(found, "Enforced");
    assert!(message.contains("at most 3.5 whole GPUs together"), "{message}");
    let without = status_of(&converged(&json!({})), None);
    assert!(without.equivalents.is_none() && without.gpus.iter().all(|g| g.share.is_none()));
}

#[test]
fn headroom_moves_to_the_profile_of_a_refused_controller() {
    let mut seen = mixed(&json!({}));
    set_used_of(&mut seen, MIG, 14);
    set_used_of(&mut seen, THREE, 3);
    let refused = refused(&seen, THREE, 1);
    observe_refusal(&mut seen, &refused);
    assert_eq!(to_write(&seen), [], "pods keep their devices");
    set_used_of(&mut seen, MIG, 12);
    converge(&mut seen);
    assert_eq!(limits(&seen), ["12", "4"]);
}

#[test]
fn limit_under_a_cap_is_raised_only_after_another_has_settled() {
    let mut seen = mixed(&json!({}));
    set_used_of(&mut seen, THREE, 3);
    let refused = refused(&seen, THREE, 1);
    observe_refusal(&mut seen, &refused);
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes);
    set_used_of(&mut seen, THREE, 3);
    assert_eq!(limits(&seen), ["12", "3"]);
    seen.recently_lowered.insert("a1".into());
    assert_eq!((to_write(&seen), decide(&seen).quotas.decision.waits_for_count), (vec![], true));
    seen.recently_lowered.clear();
    converge(&mut seen);
    assert_eq!(limits(&seen), ["12", "4"]);
}

#[test]
fn cap_below_use_admits_nothing_and_reports_the_excess() {
    let mut seen = mixed(&json!({}));
    set_used_of(&mut seen, MIG, 14);
    set_used_of(&mut seen, THREE, 1);
    seen.tenant.spec.gpu_equivalents = Some("2".into());
    converge(&mut seen);
    assert_eq!(limits(&seen), ["12", "0"]);
    let (_, found, message) = reason(&seen, "Stalled");
    assert_eq!(found, "OverBudget");
    assert!(message.contains("over budget: spec.gpuEquivalents by 0.25 over 2"), "{message}");
}

#[test]
fn profile_without_weight_is_granted_nothing_under_a_cap_and_reported() {
    let mut seen = mixed(&json!({}));
    set_used_of(&mut seen, THREE, 1);
    let mut view = view_with_weights();
    view.weights.remove("nvidia.com/mig-3g.40gb");
    seen.view = Arc::new(view);
    converge(&mut seen);
    assert_eq!(limits(&seen), ["14", "0"]);
    let (_, found, message) = reason(&seen, "QuotaReady");
    assert_eq!(found, "WeightUnknown");
    assert!(message.contains("profile mig-3g") && message.contains("list it in a GpuPool"), "{message}");
    assert_eq!(status_of(&seen, None).equivalents.unwrap().used, "1", "use counts as whole GPUs");
    seen.tenant.spec.gpu_equivalents = None;
    converge(&mut seen);
    assert_eq!(limits(&seen), ["14", "4"]);
}

#[test]
fn suspended_tenant_with_a_cap_admits_nothing_of_any_profile() {
    let mut seen = mixed(&json!({}));
    set_used_of(&mut seen, MIG, 2);
    seen.tenant.spec.suspend = true;
    converge(&mut seen);
    assert_eq!(limits(&seen), ["0", "0"]);
}

#[test]
fn device_of_a_deleted_profile_counts_as_a_whole_gpu() {
    let mut seen = mixed(&json!({"gpus": [{"profile": "mig-1g", "count": 40}]}));
    assert_eq!(limits(&seen), ["28", "0"]);
    set_used_of(&mut seen, THREE, 3);
    let mut view = view_with_weights();
    view.profiles.remove("mig-3g");
    view.resources.remove("nvidia.com/mig-3g.40gb");
    view.weights.remove("nvidia.com/mig-3g.40gb");
    seen.view = Arc::new(view);
    converge(&mut seen);
    assert_eq!(limits(&seen), ["4", "0"]);
}

#[test]
fn devices_that_processes_of_deleted_pods_keep_count_against_the_budget() {
    let mut view = view_with_weights();
    // of the tenant two large devices; of another namespace one
    view.retained_devices =
        [("a1", 2), ("b1", 1)].map(|(ns, n)| ((ns.into(), "nvidia.com/mig-3g.40gb".into()), n)).into();
    // four devices are guaranteed; 2.5 GPUs are left of the cap: twelve small devices are 1.5
    for (cap, small, limit) in [(Value::Null, "14", "2"), (json!("3.5"), "12", "2")] {
        let mut seen = mixed(&json!({"gpuEquivalents": cap}));
        seen.view = Arc::new(view.clone());
        converge(&mut seen);
        assert_eq!(limits(&seen), [small, limit]);
        let (_, found, message) = reason(&seen, "QuotaReady");
        assert_eq!(found, "Enforced");
        assert!(message.contains("deleted by force still use 2 of nvidia.com/mig-3g.40gb"), "{message}");
        set_used_of(&mut seen, THREE, 4);
        converge(&mut seen);
        let (_, found, message) = reason(&seen, "QuotaReady");
        assert_eq!(found, "OverBudget");
        assert!(message.contains("deleted by force still use 2"), "{message}");
    }
}
