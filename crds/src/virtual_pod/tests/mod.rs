//! Forged, incomplete and colliding metadata; properties over random names.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use proptest::prelude::*;

use crate::vcluster::*;

use super::*;

mod properties;

const TRAIN: PodIdentity<'_> = PodIdentity { namespace: "ml", name: "train-0", uid: "11111111-aaaa" };
const OTHER: PodIdentity<'_> = PodIdentity { namespace: "web", name: "shop-7", uid: "22222222-bbbb" };
const REQUIRED: [&str; 3] = [OBJECT_NAME, OBJECT_NAMESPACE, OBJECT_UID];
const OPTIONAL: [&str; 3] = [OBJECT_KIND, OBJECT_HOST_NAME, OBJECT_HOST_NAMESPACE];

/// The host pod that the syncer of virtual cluster `cluster` in namespace `host` creates.
fn synced(pod: PodIdentity<'_>, cluster: &str) -> ObjectMeta {
    let name = host_name(pod.name, pod.namespace, cluster);
    let annotations = [
        (OBJECT_NAME, pod.name),
        (OBJECT_NAMESPACE, pod.namespace),
        (OBJECT_UID, pod.uid),
        (OBJECT_KIND, "/v1, Kind=Pod"),
        (OBJECT_HOST_NAME, &name),
        (OBJECT_HOST_NAMESPACE, "host"),
    ];
    let labels = [(MANAGED_BY, cluster), (VIRTUAL_NAMESPACE, pod.namespace)];
    ObjectMeta {
        namespace: Some("host".into()),
        uid: Some("99999999-ffff".into()),
        labels: Some(map(&labels)),
        annotations: Some(map(&annotations)),
        name: Some(name),
        ..ObjectMeta::default()
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn annotate(metadata: &mut ObjectMeta, key: &str, value: &str) {
    metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
}

fn label(metadata: &mut ObjectMeta, key: &str, value: &str) {
    metadata.labels.get_or_insert_default().insert(key.into(), value.into());
}

/// Origin of a pod of tenant `team`, whose virtual cluster is `team-a`.
fn origin(metadata: &ObjectMeta) -> Origin<'_> {
    let attribution = attribute("team", Some("team-a"), metadata.into());
    assert_eq!(attribution.tenant, "team", "every origin is charged");
    attribution.origin
}

fn reason(metadata: &ObjectMeta) -> String {
    match origin(metadata) {
        Origin::Suspicious { reason } => reason,
        other => panic!("{other:?}"),
    }
}

fn train() -> Origin<'static> {
    Origin::Virtual { cluster: "team-a", pod: TRAIN }
}

#[test]
fn synced_pod_is_attributed_to_its_virtual_pod() {
    assert_eq!(origin(&synced(TRAIN, "team-a")), train());
}

#[test]
fn annotations_are_ignored_for_a_tenant_without_virtual_cluster() {
    let metadata = synced(TRAIN, "team-a");
    let itself = PodIdentity { namespace: "host", name: "train-0-x-ml-x-team-a", uid: "99999999-ffff" };
    let expected = Attribution { tenant: "team", origin: Origin::Namespace(itself) };
    assert_eq!(attribute("team", None, HostPod::from(&metadata)), expected);
}

#[test]
fn annotations_that_the_tenant_can_preset_are_ignored() {
    let mut metadata = synced(TRAIN, "team-a");
    for (key, value) in [("name", OTHER.name), ("namespace", OTHER.namespace), ("uid", OTHER.uid), ("labels", "x")] {
        annotate(&mut metadata, &format!("vcluster.loft.sh/{key}"), value);
    }
    annotate(&mut metadata, "vcluster.loft.sh/owner-references", "[]");
    assert_eq!(origin(&metadata), train());
}

#[test]
fn synced_pod_with_labels_of_the_control_plane_stays_virtual() {
    let mut metadata = synced(TRAIN, "team-a");
    label(&mut metadata, APP, CONTROL_PLANE_APP);
    label(&mut metadata, RELEASE, "team-a");
    assert_eq!(origin(&metadata), train());
}

#[test]
fn pod_of_a_nested_virtual_cluster_is_the_pod_that_the_outer_one_synced() {
    let inner = host_name("job", "batch", "inner");
    let mut metadata = synced(PodIdentity { name: &inner, ..TRAIN }, "team-a");
    // the outer syncer moves the inner one's labels to keys with a hash
    label(&mut metadata, "vcluster.loft.sh/label-team-a-x-e5f1b28ab2", "inner");
    label(&mut metadata, "vcluster.loft.sh/label-team-a-x-101dcd4e86", "batch");
    let pod = PodIdentity { namespace: "ml", name: "job-x-batch-x-inner", uid: TRAIN.uid };
    assert_eq!(origin(&metadata), Origin::Virtual { cluster: "team-a", pod });
}

#[test]
fn forged_object_name_is_suspicious_and_the_reason_names_the_other_host_name() {
    let mut metadata = synced(TRAIN, "team-a");
    annotate(&mut metadata, OBJECT_NAME, "train-1");
    assert_eq!(reason(&metadata), "its annotations name a virtual pod whose host name is train-1-x-ml-x-team-a",);
    annotate(&mut metadata, OBJECT_NAME, &"long".repeat(10_000));
    assert!(reason(&metadata).len() < 200, "a reason has a limited length");
}

/// A user with rights in the host namespace can compute the host name of any text.
#[test]
fn text_that_is_no_name_is_suspicious_although_the_host_name_agrees() {
    let (start, long) = ("a".repeat(60), "b".repeat(250));
    for name in [format!("{start}\u{1b}[2J"), format!("{start}\n"), format!("{start}{long}")] {
        let message = "annotation vcluster.loft.sh/object-name is no name in Kubernetes";
        assert_eq!(reason(&synced(PodIdentity { name: &name, ..TRAIN }, "team-a")), message);
    }
    let uid = reason(&synced(PodIdentity { uid: "u\u{1b}[2J", ..TRAIN }, "team-a"));
    assert_eq!(uid, "annotation vcluster.loft.sh/object-uid is no name in Kubernetes");
}

#[test]
fn identity_of_another_pod_is_suspicious() {
    let mut metadata = synced(TRAIN, "team-a");
    metadata.annotations = synced(OTHER, "team-a").annotations;
    assert_eq!(reason(&metadata), "its annotations name a virtual pod whose host name is shop-7-x-web-x-team-a");
    metadata.labels = synced(OTHER, "team-a").labels;
    assert_eq!(reason(&metadata), "its annotations name a virtual pod whose host name is shop-7-x-web-x-team-a");
}

#[test]
fn label_of_another_virtual_cluster_is_suspicious() {
    let message = "label vcluster.loft.sh/managed-by is not team-a, the virtual cluster of the tenant";
    assert_eq!(reason(&synced(TRAIN, "team-b")), message);
    let mut metadata = synced(TRAIN, "team-a");
    // the value on cluster-scoped objects and synced namespaces
    for value in ["", "team-b", "host-x-team-a"] {
        label(&mut metadata, MANAGED_BY, value);
        assert_eq!(reason(&metadata), message);
    }
}

#[test]
fn host_name_with_another_virtual_cluster_is_suspicious() {
    let mut metadata = synced(TRAIN, "team-b");
    label(&mut metadata, MANAGED_BY, "team-a");
    assert_eq!(reason(&metadata), "its annotations name a virtual pod whose host name is train-0-x-ml-x-team-a");
}

#[test]
fn missing_identity_is_suspicious() {
    for key in REQUIRED {
        let mut metadata = synced(TRAIN, "team-a");
        metadata.annotations.as_mut().unwrap().remove(key);
        assert_eq!(reason(&metadata), format!("annotation {key} is not set"));
        annotate(&mut metadata, key, "");
        assert_eq!(reason(&metadata), format!("annotation {key} is not set"));
    }
    let metadata = ObjectMeta { annotations: None, ..synced(TRAIN, "team-a") };
    assert_eq!(reason(&metadata), "annotation vcluster.loft.sh/object-name is not set");
}

#[test]
fn optional_metadata_is_compared_only_where_it_is_set() {
    for (key, expected) in OPTIONAL.into_iter().zip(["/v1, Kind=Pod", "train-0-x-ml-x-team-a", "host"]) {
        let mut metadata = synced(TRAIN, "team-a");
        metadata.annotations.as_mut().unwrap().remove(key);
        assert_eq!(origin(&metadata), train());
        annotate(&mut metadata, key, "other");
        assert_eq!(reason(&metadata), format!("annotation {key} is not {expected}"));
    }
    let mut metadata = synced(TRAIN, "team-a");
    metadata.labels.as_mut().unwrap().remove(VIRTUAL_NAMESPACE);
    assert_eq!(origin(&metadata), train());
    label(&mut metadata, VIRTUAL_NAMESPACE, "web");
    assert_eq!(reason(&metadata), "label vcluster.loft.sh/namespace is not ml");
}

#[test]
fn annotations_without_the_label_are_suspicious() {
    let message = "annotation vcluster.loft.sh/object-name is set without label vcluster.loft.sh/managed-by";
    let mut metadata = ObjectMeta { labels: None, ..synced(TRAIN, "team-a") };
    assert_eq!(reason(&metadata), message);
    label(&mut metadata, APP, CONTROL_PLANE_APP);
    label(&mut metadata, RELEASE, "team-a");
    assert_eq!(reason(&metadata), message);
}

#[test]
fn unsynced_pod_is_the_control_plane_only_with_both_labels() {
    let mut metadata = ObjectMeta { name: Some("team-a-0".into()), ..ObjectMeta::default() };
    assert_eq!(origin(&metadata), Origin::Unsynced);
    label(&mut metadata, APP, CONTROL_PLANE_APP);
    assert_eq!(origin(&metadata), Origin::Unsynced);
    label(&mut metadata, RELEASE, "team-b");
    assert_eq!(origin(&metadata), Origin::Unsynced);
    label(&mut metadata, RELEASE, "team-a");
    assert_eq!(origin(&metadata), Origin::ControlPlane { cluster: "team-a" });
    label(&mut metadata, APP, "other");
    assert_eq!(origin(&metadata), Origin::Unsynced);
}

/// The host name agrees with both pods, so it cannot decide. The syncer holds one of them and writes the annotations from it.
#[test]
fn annotations_decide_between_colliding_host_names() {
    let first = PodIdentity { namespace: "c", name: "a-x-b", uid: "1" };
    let second = PodIdentity { namespace: "b-x-c", name: "a", uid: "2" };
    let (one, two) = (synced(first, "team-a"), synced(second, "team-a"));
    assert_eq!(one.name.as_deref(), Some("a-x-b-x-c-x-team-a"));
    assert_eq!(one.name, two.name);
    assert_eq!(origin(&one), Origin::Virtual { cluster: "team-a", pod: first });
    assert_eq!(origin(&two), Origin::Virtual { cluster: "team-a", pod: second });
    // the label still belongs to the other pod
    let swapped = ObjectMeta { annotations: two.annotations, ..one };
    assert_eq!(reason(&swapped), "label vcluster.loft.sh/namespace is not b-x-c");
}
