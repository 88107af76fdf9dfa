//! Values of labels that are derived from texts of any length, such as product names of boards.

use crate::fingerprint::fingerprint;

/// Most bytes of a label's value.
const LONGEST: usize = 63;
/// Length of [`fingerprint`].
const HASH: usize = 16;

/// The text, if it is a valid value; else what can be kept of it and a hash of the whole, so that two texts have two values.
pub fn value(text: &str) -> String {
    if is_value(text) {
        return text.to_owned();
    }
    let plain = text.chars().map(|c| if is_plain(c) { c } else { '-' });
    let kept: String = plain.skip_while(|c| !c.is_ascii_alphanumeric()).take(LONGEST - HASH - 1).collect();
    let hash = fingerprint(&text);
    if kept.is_empty() { hash } else { format!("{kept}-{hash}") }
}

/// Whether Kubernetes takes the text as the value of a label.
pub fn is_value(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= LONGEST && text.chars().all(is_plain) && ends(text.chars().next()) && ends(text.chars().last())
}

/// Whether Kubernetes takes the text as the key of a label, an annotation, an extended resource or a quota: a DNS subdomain, a slash, and what a value
/// may be.
pub fn is_qualified(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let part =
        |part: &str| !part.is_empty() && is_value(part) && !part.contains(['_', '.']) && *part == part.to_lowercase();
    !name.is_empty() && is_value(name) && prefix.is_none_or(|p| p.len() <= 253 && p.split('.').all(part))
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gputenancy_crds::{names, quota};
    use proptest::prelude::*;

    use super::*;

    /// Texts around the limit, also some that differ only at the end or in a character that no label has.
    fn texts() -> impl Strategy<Value = BTreeSet<String>> {
        let twins = ("[A-Za-z0-9 ]{0,70}", "[-+ _./]{1,3}", "[a-z]{0,3}");
        let twins = twins.prop_map(|(start, middle, end)| {
            let twins = middle.chars().map(|c| format!("{start}{c}{end}"));
            twins.collect::<Vec<_>>()
        });
        (proptest::collection::vec(any::<String>(), 0..6), twins)
            .prop_map(|(any, twins)| any.into_iter().chain(twins).collect())
    }

    proptest! {
        #[test]
        fn every_text_has_a_valid_value_of_its_own(texts in texts()) {
            let values: BTreeSet<String> = texts.iter().map(|text| value(text)).collect();
            prop_assert_eq!(values.len(), texts.len());
            for value in &values {
                prop_assert!(is_value(value), "{value}");
            }
        }

        /// Resources as `GpuProfile.spec.resourceName` and the names of profiles give them.
        #[test]
        fn every_resource_has_a_valid_quota_key_of_its_own(
            given in proptest::collection::btree_set("[a-z0-9]{1,10}([.][a-z]{1,10}){1,2}/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", 0..6),
            profiles in proptest::collection::btree_set("[a-z0-9]([-a-z0-9]{0,18}[a-z0-9][.][a-z0-9]{1,19})?", 0..6),
            mig in proptest::collection::btree_set("[1-8]g[.][0-9]{1,4}gb([+-][a-z]{1,8}([.][a-z]{1,8})?)?", 0..6),
        ) {
            let exclusive: BTreeSet<String> = mig.iter().map(|profile| names::mig_resource(profile)).collect();
            let shared = exclusive.iter().map(|resource| names::shared_resource(resource));
            let own = profiles.iter().map(|profile| names::own_resource(profile));
            let canary = (0..4).map(|gpu| names::canary_resource(gpu, gpu * 7));
            let all: BTreeSet<String> = given.into_iter().chain(shared).chain(exclusive.clone()).chain(own).chain(canary).collect();
            let keys: BTreeSet<String> = all.iter().map(|resource| quota::resource_key(resource)).collect();
            prop_assert_eq!(keys.len(), all.len());
            for resource in &all {
                let key = quota::resource_key(resource);
                prop_assert!(is_qualified(resource) && is_qualified(&key), "{key}");
                prop_assert_eq!(quota::Devices::under(&key), Some(quota::Devices::Resource(resource)));
            }
        }
    }

    #[test]
    fn long_product_keeps_its_start() {
        let product = "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition-MIG-1g.24gb.me.all";
        let value = value(product);
        assert!(value.starts_with("NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstatio-") && value.len() == 63, "{value}");
        assert_eq!(super::value("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"), "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb");
    }
}
