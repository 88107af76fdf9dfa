//! Which tenants get shares of a GPU.

use gputenancy_crds::GpuProfileSpec;

use super::*;

/// A catalog with one profile of each device, as the operator reads it.
fn every_mode() -> FleetView {
    let devices = [
        ("whole", json!({"whole": {}})),
        ("mig", json!({"mig": {"profile": "1g.10gb"}})),
        ("time-slice", json!({"timeSlice": {"replicas": 4}})),
        ("mps", json!({"mps": {"replicas": 4}})),
        ("fraction", json!({"fraction": {"memory": "10Gi", "compute": 25}})),
    ];
    let read = |(name, device): (&str, Value)| {
        let support = json!({"expected": "e", "incident": "i"});
        let spec: GpuProfileSpec = serde_json::from_value(json!({"device": device, "support": support})).unwrap();
        let (trust, sharing) = (gputenancy_plan::trust_needed(&spec), spec.device.sharing_mode());
        let resource = gputenancy_plan::resource_name(name, &spec);
        let contract = Contract { max_per_pod: sharing.map(|_| 1), ..Contract::default() };
        (name.to_owned(), ProfileView { resource, trust, sharing, refused: None, free: 8, contract })
    };
    let profiles: BTreeMap<String, ProfileView> = devices.into_iter().map(read).collect();
    let resources = profiles.values().map(|p| p.resource.clone()).collect();
    FleetView { profiles, resources, ..view() }
}

#[test]
fn trust_and_acknowledgement_decide_which_modes_a_tenant_gets() {
    let exclusive = ["whole", "mig"];
    for trust in ["Untrusted", "Internal", "Trusted"] {
        for acknowledged in [false, true] {
            for mode in ["whole", "mig", "time-slice", "mps", "fraction"] {
                let mut spec = json!({"trust": trust, "gpus": [{"profile": mode, "count": 2}]});
                if acknowledged {
                    spec["sharing"] = json!({"acknowledgedBy": "lead@example.com"});
                }
                let mut seen = observed(&spec);
                seen.view = Arc::new(every_mode());
                let writes = to_write(&seen);
                apply_writes(&mut seen, writes);
                let expected = match (exclusive.contains(&mode), trust, acknowledged) {
                    (true, ..) | (false, "Internal" | "Trusted", true) => "Ready",
                    (false, "Untrusted", _) => "TrustTooLow",
                    (false, ..) => "SharingNotAcknowledged",
                };
                let case = format!("{trust} {mode} acknowledged={acknowledged}");
                let (_, found, message) = reason(&seen, "Ready");
                assert_eq!(found, expected, "{case}: {message}");
                let resource = &seen.view.profiles[mode].resource;
                let hard = &seen.quotas["a1"].spec.hard[&format!("requests.{resource}")].0;
                assert_eq!(hard == "0", expected != "Ready", "{case}: quota {hard}");
                let grant = seen.grant("a1");
                let most = match (expected, exclusive.contains(&mode)) {
                    ("Ready", true) => Some(&2),
                    ("Ready", false) => Some(&1),
                    _ => None,
                };
                assert_eq!(grant.resources.get(resource), most, "{case}: most in one pod");
                let shared = expected == "Ready" && !exclusive.contains(&mode);
                assert_eq!(grant.shares.contains(resource), shared, "{case}: {:?}", grant.shares);
            }
        }
    }
}

#[test]
fn missing_acknowledgement_names_tenant_profile_field_and_what_is_accepted() {
    for (profile, accepted) in [
        ("time-slice", "take turns on one GPU, a program can bypass its limit of memory"),
        ("mps", "through an MPS server, and a fatal fault of one pod can end the others"),
        ("fraction", "a program can bypass its limits of memory and compute"),
    ] {
        let mut seen = observed(&json!({"trust": "Trusted", "gpus": [{"profile": profile, "count": 2}]}));
        seen.view = Arc::new(every_mode());
        let writes = to_write(&seen);
        apply_writes(&mut seen, writes);
        let (_, found, message) = reason(&seen, "Stalled");
        assert_eq!(found, "SharingNotAcknowledged", "{message}");
        for words in ["tenant team-a", profile, "spec.sharing.acknowledgedBy of GpuTenant team-a", accepted] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }
}
