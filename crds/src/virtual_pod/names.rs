//! Name translation of vCluster 0.36.1 in single-namespace mode: from virtual to host names only.

use sha2::{Digest as _, Sha256};

/// Longest name in bytes that is not hashed.
const MAX_LENGTH: usize = 63;
/// Bytes of a longer name that are kept before the hash.
const KEPT: usize = 52;
/// Bytes of the hash that are kept; each is two hexadecimal digits.
const HASH_KEPT: usize = 5;

/// The parts joined with `-`. More than 63 bytes: the first 52, `-`, and ten hexadecimal digits of the SHA-256 of all, with `.-` replaced
/// by `-`. Source: `SafeConcatName` in `pkg/util/translate/translate.go` of vCluster.
pub fn safe_concat_name(parts: &[&str]) -> String {
    let full = parts.join("-");
    match full.as_bytes().get(..KEPT) {
        Some(kept) if full.len() > MAX_LENGTH => {
            let hash = Sha256::digest(&full);
            let hash = hash.iter().take(HASH_KEPT).fold(0_u64, |bytes, byte| bytes << 8 | u64::from(*byte));
            // names in Kubernetes are ASCII: with a character that is cut in two the result equals no name
            format!("{}-{hash:010x}", String::from_utf8_lossy(kept)).replace(".-", "-")
        }
        _ => full,
    }
}

/// Name of a virtual pod on the host cluster. Source: `SingleNamespaceHostName` in `pkg/util/translate/single_namespace.go` of vCluster.
///
/// It has no inverse: long names are hashed, and two virtual pods can have the same short one, such as pod `a-x-b` in namespace `c` and pod
/// `a` in namespace `b-x-c`. vCluster syncs only the first of them, because its mapping store refuses the second (`checkNameConflict` in
/// `pkg/mappings/store/store.go`). The annotations of the host pod are therefore authoritative: the syncer writes them from the pod that it
/// synced.
pub fn host_name(name: &str, namespace: &str, virtual_cluster: &str) -> String {
    safe_concat_name(&[name, "x", namespace, "x", virtual_cluster])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_equals_that_of_vcluster() {
        let (p49, p50) = ("p".repeat(49), "p".repeat(50));
        let dotted = format!("{}.{}", "a".repeat(51), "b".repeat(10));
        for (name, namespace, cluster, expected) in [
            // from vCluster's own tests
            (
                "nginx-from-other-namespace",
                "some-other-namespace",
                "default-namespace-sync",
                "nginx-from-other-namespace-x-some-other-namespace-x--4b96e8f948".to_owned(),
            ),
            (
                "coredns-94f599b5-wdgzg",
                "kube-system",
                "default-namespace-sync",
                "coredns-94f599b5-wdgzg-x-kube-system-x-default-namespace-sync".to_owned(),
            ),
            ("train-0", "ml", "team-a", "train-0-x-ml-x-team-a".to_owned()),
            (&p49, "ml", "team-a", format!("{p49}-x-ml-x-team-a")),
            (&p50, "ml", "team-a", format!("{p50}-x-8d70b44e02")),
            (&dotted, "ns", "vc", format!("{}-56597f7c24", "a".repeat(51))),
        ] {
            assert_eq!(host_name(name, namespace, cluster), expected, "{namespace}/{name} in {cluster}");
        }
    }

    #[test]
    fn names_of_more_than_63_bytes_are_hashed() {
        assert_eq!(host_name(&"p".repeat(49), "ml", "team-a").len(), 63);
        assert_eq!(safe_concat_name(&["a", &"b".repeat(61)]), format!("a-{}", "b".repeat(61)));
        let hashed = safe_concat_name(&["a", &"b".repeat(62)]);
        assert_eq!((hashed.len(), hashed.get(..53)), (63, Some(format!("a-{}-", "b".repeat(50)).as_str())));
    }

    #[test]
    fn leading_zeros_of_the_hash_are_kept() {
        assert_eq!(safe_concat_name(&[&"p".repeat(60), "611"]), format!("{}-000d249054", "p".repeat(52)));
    }

    #[test]
    fn length_is_counted_in_bytes_and_a_cut_character_does_not_panic() {
        assert_eq!(safe_concat_name(&["é".repeat(31).as_str()]), "é".repeat(31));
        let hashed = safe_concat_name(&["a", &"é".repeat(31)]);
        assert!(hashed.starts_with(&format!("a-{}-", "é".repeat(25))), "{hashed}");
        let cut = safe_concat_name(&["ab", &"é".repeat(31)]);
        assert!(cut.starts_with(&format!("ab-{}\u{fffd}-", "é".repeat(24))), "{cut}");
    }
}
