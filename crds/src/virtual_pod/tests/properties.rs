use super::*;

/// A DNS label, also of the longest length; and one in which the separator of host names is frequent.
fn dns_label() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
        1 => "[ax](-[abx]){0,6}",
    ]
}

/// A DNS subdomain of up to three labels: names of pods contain dots.
fn subdomain() -> impl Strategy<Value = String> {
    prop::collection::vec(dns_label(), 1..4).prop_map(|labels| labels.join("."))
}

/// Namespace, name and UID.
type Owned = (String, String, String);

fn identity() -> impl Strategy<Value = Owned> {
    (dns_label(), subdomain(), "[0-9a-f]{8}-[0-9a-f]{4}")
}

fn borrow((namespace, name, uid): &Owned) -> PodIdentity<'_> {
    PodIdentity { namespace, name, uid }
}

fn attributed<'a>(cluster: &'a str, metadata: &'a ObjectMeta) -> Origin<'a> {
    attribute("team", Some(cluster), metadata.into()).origin
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn synced_pod_with_any_names_is_virtual(pod in identity(), cluster in dns_label()) {
        let pod = borrow(&pod);
        let metadata = synced(pod, &cluster);
        prop_assert!(metadata.name.as_ref().is_some_and(|name| name.len() <= 63));
        prop_assert_eq!(attributed(&cluster, &metadata), Origin::Virtual { cluster: &cluster, pod });
    }

    /// The UID is in no host name: with another UID the pod is the same, and only the syncer's write protects the UID.
    #[test]
    fn one_annotation_of_another_pod_never_attributes_to_it(
        pod in identity(), other in identity(), cluster in dns_label(), key in 0..6_usize,
    ) {
        let (pod, other) = (borrow(&pod), borrow(&other));
        let key = [REQUIRED, OPTIONAL].concat()[key];
        let mut metadata = synced(pod, &cluster);
        let foreign = synced(other, &cluster).annotations.unwrap().remove(key).unwrap();
        let unchanged = metadata.annotations.as_ref().unwrap()[key] == foreign;
        annotate(&mut metadata, key, &foreign);
        match attributed(&cluster, &metadata) {
            Origin::Virtual { pod: found, .. } if key == OBJECT_UID => {
                prop_assert_eq!(found, PodIdentity { uid: other.uid, ..pod });
            }
            Origin::Virtual { pod: found, .. } => prop_assert!(unchanged && found == pod, "{} of {:?}", key, found),
            Origin::Suspicious { .. } => prop_assert!(!unchanged),
            wrong => prop_assert!(false, "{:?}", wrong),
        }
    }

    #[test]
    fn any_other_text_in_one_annotation_is_suspicious(
        pod in identity(), cluster in dns_label(), key in 0..5_usize, text in "\\PC{1,80}",
    ) {
        let key = [OBJECT_NAME, OBJECT_NAMESPACE, OBJECT_KIND, OBJECT_HOST_NAME, OBJECT_HOST_NAMESPACE][key];
        let mut metadata = synced(borrow(&pod), &cluster);
        prop_assume!(metadata.annotations.as_ref().unwrap()[key] != text);
        annotate(&mut metadata, key, &text);
        let suspicious = matches!(attributed(&cluster, &metadata), Origin::Suspicious { .. });
        prop_assert!(suspicious);
    }

    #[test]
    fn all_annotations_of_another_pod_are_suspicious(pod in identity(), other in identity(), cluster in dns_label()) {
        let (pod, other) = (borrow(&pod), borrow(&other));
        prop_assume!((pod.namespace, pod.name) != (other.namespace, other.name));
        let metadata = ObjectMeta { annotations: synced(other, &cluster).annotations, ..synced(pod, &cluster) };
        let suspicious = matches!(attributed(&cluster, &metadata), Origin::Suspicious { .. });
        prop_assert!(suspicious, "{:?}", metadata);
    }
}
