//! Fingerprints of specs that are written to the cluster: equal over processes, compilers and releases.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// The first eight bytes of the SHA-256 of the value's JSON with sorted keys, in hexadecimal.
pub fn fingerprint(value: &impl Serialize) -> String {
    // types with keys that JSON cannot write are a mistake of this program: they all have one fingerprint
    let mut json = serde_json::to_value(value).unwrap_or_default();
    json.sort_all_objects();
    let hash = Sha256::digest(json.to_string());
    let first = hash.iter().take(8).fold(0_u64, |bytes, byte| bytes << 8 | u64::from(*byte));
    format!("{first:016x}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn fingerprint_never_changes_over_releases() {
        assert_eq!(
            fingerprint(&json!({"mig": true, "instances": [{"start": 4, "profile": "3g.40gb"}]})),
            "de4fd41eb0e078ed"
        );
        assert_eq!(fingerprint(&("node-1", 7, None::<&str>)), "34392ca081321135");
    }

    #[test]
    fn fingerprint_ignores_the_order_of_keys() {
        let pairs = (0..20).map(|n| (n.to_string(), n));
        let sorted: std::collections::BTreeMap<_, _> = pairs.clone().collect();
        assert_eq!(fingerprint(&pairs.collect::<HashMap<_, _>>()), fingerprint(&sorted));
    }
}
