//! Tenants that are refused their namespaces.

use super::*;

fn with_status(name: &str, listed: &[&str], count: i32, phases: &[(&str, &str)]) -> Arc<GpuTenant> {
    let namespaces: Vec<_> = listed.iter().map(|name| json!({"name": name})).collect();
    let states: Vec<_> = phases.iter().map(|(name, phase)| json!({"name": name, "phase": phase})).collect();
    Arc::new(read(json!({
        "metadata": {"name": name, "uid": name, "generation": 1},
        "spec": {"namespaces": namespaces, "gpus": [{"profile": "gpu", "count": count}]},
        "status": {"namespaces": states},
    })))
}

/// Shortages of tenant `t`, which is guaranteed both GPUs, and of tenant `x4`, which is the other one.
fn shortages(other: Arc<GpuTenant>) -> (Vec<String>, Vec<String>) {
    let mut fleet = settled();
    fleet.tenants = vec![with_status("t", &["t"], 2, &[("t", "Active")]), other];
    let decision = at(&fleet, 100, &[]);
    let of = |name: &str| decision.view.tenants[name].shortages.to_vec();
    (of("t"), of("x4"))
}

#[test]
fn tenant_without_a_namespace_of_its_own_takes_no_guarantee_of_a_served_one() {
    let refused = [
        ("of another tenant, before its own status says so", with_status("x4", &["t"], 1000, &[])),
        ("of another tenant", with_status("x4", &["t"], 1000, &[("t", "Foreign")])),
        ("of no tenant", with_status("x4", &["kube-system"], 1000, &[("kube-system", "Foreign")])),
    ];
    for (case, other) in refused {
        assert_eq!(shortages(other), (vec![], vec![]), "{case}");
    }
}

#[test]
fn tenant_with_one_namespace_of_its_own_keeps_its_guarantees() {
    for other in [
        with_status("x4", &["t", "x"], 1000, &[("t", "Foreign"), ("x", "Active")]),
        with_status("x4", &["t", "x"], 1000, &[]),
    ] {
        let (served, short) = shortages(other);
        assert!(served[0].contains("guaranteed 2 of profile gpu and gets 1"), "{served:?}");
        assert!(short[0].contains("guaranteed 1000 of profile gpu and gets 1"), "{short:?}");
    }
}

#[test]
fn pool_that_lists_a_refused_profile_names_the_conflict_and_counts_no_devices_for_it() {
    let mut fleet = settled();
    fleet.profiles[1].spec.device = read(json!({"whole": {}}));
    fleet.pools[0].spec.profiles.push("turns".into());
    let decision = at(&fleet, 100, &[]);
    let status = &decision.pools["p"];
    assert_eq!(reason_of(&status.conditions), ("False", "ResourceNameConflict"));
    let message = status.conditions.iter().find(|c| c.type_ == condition::READY).map(|c| c.message.as_str());
    let expected = "profile turns uses resource nvidia.com/gpu, which profile gpu has already, so that no pool offers it: set another spec.resourceName of GpuProfile turns";
    assert_eq!(message, Some(expected));
    let totals: Vec<(&str, i32)> = status.profiles.iter().map(|p| (p.name.as_str(), p.total)).collect();
    assert_eq!(totals, [("gpu", 2), ("turns", 0)]);
}

#[test]
fn profile_that_is_edited_to_the_resource_of_another_one_is_refused_though_it_is_older() {
    let mut fleet = settled();
    let created = |seconds: i64| Some(Time(Timestamp::from_second(seconds).unwrap()));
    for (profile, seconds) in fleet.profiles.iter_mut().zip([2000, 1000]) {
        profile.metadata.creation_timestamp = created(seconds);
    }
    fleet.profiles[1].spec.device = read(json!({"whole": {}}));
    // also once the status of the refused one names the resource
    for second in [100, 101] {
        let decision = at(&fleet, second, &[]);
        carry_out(&mut fleet, &decision);
        let reason =
            |at: usize| fleet.profiles[at].status.as_ref().map(|s| reason_of(&s.conditions).1.to_owned()).unwrap();
        assert_eq!((reason(0), reason(1)), ("Ready".into(), "ResourceNameConflict".into()));
    }
}
