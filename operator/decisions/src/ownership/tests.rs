use gputenancy_crds::names::{
    DEPLOY_MIG_MANAGER_LABEL as DEPLOY_MIG_MANAGER, MIG_CONFIG_LABEL as MIG_CONFIG, MIG_STATE_LABEL as MIG_CONFIG_STATE,
};

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn found(labels: &[(&str, &str)], annotations: &[(&str, &str)], dra: bool) -> Option<&'static str> {
    found_in(Partitioner::Agent, labels, annotations, dra)
}

fn found_in(
    partitioner: Partitioner,
    labels: &[(&str, &str)],
    annotations: &[(&str, &str)],
    dra: bool,
) -> Option<&'static str> {
    let (labels, annotations) = (map(labels), map(annotations));
    conflicting_owner(OwnershipSigns {
        labels: &labels,
        annotations: &annotations,
        dra,
        vgpu_host: false,
        partitioner,
        newer_release: false,
    })
    .map(|other| other.by)
}

#[test]
fn node_without_signs_has_no_conflicting_owner() {
    assert_eq!(found(&[("nvidia.com/gpu.present", "true")], &[("gputenancy.io/x", "y")], false), None);
}

#[test]
fn mig_manager_conflicts_only_where_it_runs_and_has_a_layout() {
    let runs = (DEPLOY_MIG_MANAGER, "true");
    let config = (MIG_CONFIG, "all-1g.10gb");
    assert_eq!(found(&[runs, config], &[], false), Some("NVIDIA's MIG manager"));
    assert_eq!(
        found(&[(DEPLOY_MIG_MANAGER, "paused-for-mig-change"), config], &[], false),
        Some("NVIDIA's MIG manager")
    );
    assert_eq!(found(&[runs], &[], false), None);
    assert_eq!(found(&[config], &[], false), None);
    assert_eq!(found(&[(DEPLOY_MIG_MANAGER, "false"), config], &[], false), None);
}

#[test]
fn mig_manager_without_gpu_operator_is_detected_by_its_status_label() {
    let config = (MIG_CONFIG, "all-1g.10gb");
    let state = (MIG_CONFIG_STATE, "success");
    assert_eq!(found(&[config, state], &[], false), Some("NVIDIA's MIG manager"));
    assert_eq!(found(&[state], &[], false), None);
    assert_eq!(found(&[config, state, (DEPLOY_MIG_MANAGER, "false")], &[], false), None);
}

#[test]
fn partitioning_programs_are_no_conflict_in_pools_with_another_partitioner() {
    let mig_manager: &[(&str, &str)] = &[(DEPLOY_MIG_MANAGER, "true"), (MIG_CONFIG, "x")];
    let nos: &[(&str, &str)] = &[(NOS_PARTITIONING, "mig")];
    assert_eq!(found_in(Partitioner::MigManager, mig_manager, &[], false), None);
    assert_eq!(found_in(Partitioner::None, mig_manager, &[], false), None);
    assert_eq!(found_in(Partitioner::None, nos, &[], false), None);
    assert_eq!(found_in(Partitioner::MigManager, nos, &[], false), Some("nos"));
    for partitioner in [Partitioner::MigManager, Partitioner::None] {
        assert_eq!(
            found_in(partitioner, &[], &[], true),
            Some("NVIDIA's DRA driver"),
            "it advertises the same devices"
        );
        assert_eq!(found_in(partitioner, &[], &[(HAMI_REGISTER, "x")], false), Some("HAMi"));
    }
}

#[test]
fn most_destructive_of_several_owners_is_reported() {
    let labels = &[(DEPLOY_MIG_MANAGER, "true"), (MIG_CONFIG, "x"), (NOS_PARTITIONING, "mig")];
    let hami = &[(HAMI_REGISTER, "x")];
    assert_eq!(found(labels, hami, true), Some("NVIDIA's DRA driver"));
    assert_eq!(found(labels, hami, false), Some("HAMi"));
    assert_eq!(found(labels, &[], false), Some("nos"));
}

#[test]
fn hami_nos_and_the_dra_driver_conflict() {
    assert_eq!(found(&[], &[(HAMI_REGISTER, "[{}]")], false), Some("HAMi"));
    assert_eq!(found(&[], &[(HAMI_REGISTER, "")], false), None);
    assert_eq!(found(&[(NOS_PARTITIONING, "mig")], &[], false), Some("nos"));
    assert_eq!(found(&[], &[], true), Some("NVIDIA's DRA driver"));
}

#[test]
fn remedy_names_the_label() {
    let labels = map(&[(DEPLOY_MIG_MANAGER, "true"), (MIG_CONFIG, "all-balanced")]);
    let none = BTreeMap::new();
    let other = conflicting_owner(OwnershipSigns {
        labels: &labels,
        annotations: &none,
        dra: false,
        vgpu_host: false,
        partitioner: Partitioner::Agent,
        newer_release: false,
    })
    .unwrap();
    assert_eq!(other.sign, "labels nvidia.com/mig.config=all-balanced and nvidia.com/gpu.deploy.mig-manager are set");
    assert!(other.remedy.contains("nvidia.com/gpu.deploy.mig-manager=false"), "{}", other.remedy);
}

#[test]
fn hypervisor_and_newer_release_conflict_under_any_partitioner() {
    let none = BTreeMap::new();
    for partitioner in [Partitioner::Agent, Partitioner::MigManager, Partitioner::None] {
        let found = |vgpu_host, newer_release| {
            let (labels, annotations) = (&none, &none);
            let signs = OwnershipSigns { labels, annotations, dra: false, vgpu_host, partitioner, newer_release };
            conflicting_owner(signs)
        };
        assert_eq!(found(true, true).map(|other| other.by), Some("NVIDIA's vGPU manager"));
        let other = found(false, true).unwrap();
        assert_eq!(other.by, "a newer release of this operator");
        assert!(other.remedy.contains("install the newer release again"), "{}", other.remedy);
    }
}
