//! Verdicts of others on single GPUs: the annotation `gputenancy.io/withdrawn-gpus` of a Node.

use std::collections::BTreeMap;

use gputenancy_crds::names::WITHDRAWN_GPUS;
use kube::ResourceExt as _;

use gputenancy_crds::projection::SlimNode;

/// Most characters of a reason that are kept.
const LONGEST_REASON: usize = 128;

/// Most characters of a UUID after its prefix.
const LONGEST_UUID: usize = 60;

/// The GPUs that the annotation of a Node withdraws.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WithdrawnGpus<'a> {
    /// UUIDs of the GPUs that are withdrawn, each with a clause that names it and the reason.
    pub gpus: BTreeMap<&'a str, String>,
    /// Entries that are no UUID of a GPU, as they are written. They withdraw nothing.
    pub malformed: Vec<&'a str>,
}

/// The GPUs that others have withdrawn on this node: entries `UUID` or `UUID=reason`, comma separated.
pub fn withdrawn_gpus(node: &SlimNode) -> WithdrawnGpus<'_> {
    node.annotations().get(WITHDRAWN_GPUS).map_or_else(WithdrawnGpus::default, |text| read(text))
}

fn read(text: &str) -> WithdrawnGpus<'_> {
    let mut found = WithdrawnGpus::default();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (uuid, reason) = entry.split_once('=').map_or((entry, ""), |(uuid, reason)| (uuid.trim(), reason.trim()));
        if is_uuid(uuid) {
            found.gpus.entry(uuid).or_insert_with(|| clause(uuid, reason));
        } else {
            found.malformed.push(entry);
        }
    }
    found
}

/// NVML's UUID of a physical GPU. MIG devices have no verdict of their own.
pub(super) fn is_uuid(text: &str) -> bool {
    let digits = text.strip_prefix("GPU-").unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    !digits.is_empty() && digits.len() <= LONGEST_UUID && digits.chars().all(allowed)
}

fn clause(uuid: &str, reason: &str) -> String {
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(LONGEST_REASON).collect();
    let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    format!("{uuid} is withdrawn by the annotation {WITHDRAWN_GPUS}{reason}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entries_name_gpus_with_and_without_a_reason() {
        let found = read("GPU-a, GPU-b=row remapping failed ,, GPU-a=again");
        let clauses: Vec<&str> = found.gpus.values().map(String::as_str).collect();
        insta::assert_debug_snapshot!((clauses, found.malformed), @r#"
        (
            [
                "GPU-a is withdrawn by the annotation gputenancy.io/withdrawn-gpus",
                "GPU-b is withdrawn by the annotation gputenancy.io/withdrawn-gpus (row remapping failed)",
            ],
            [],
        )
        "#);
    }

    #[test]
    fn empty_annotation_withdraws_nothing() {
        for text in ["", " ", ",", " , ,"] {
            assert_eq!(read(text), WithdrawnGpus::default(), "{text:?}");
        }
    }

    #[test]
    fn entries_that_are_no_uuid_withdraw_nothing() {
        for text in
            ["0", "all", "*", "GPU-", "GPU", "gpu-a", "MIG-a", "GPU-a b", "=hot", "GPU-ä", "\"GPU-a\"", "[GPU-a]"]
        {
            assert_eq!(read(text), WithdrawnGpus { gpus: BTreeMap::new(), malformed: vec![text] }, "{text:?}");
        }
    }

    proptest! {
        /// Whatever else the annotation says, a GPU is withdrawn exactly if an entry names it.
        #[test]
        fn only_named_gpus_are_withdrawn(
            entries in proptest::collection::vec(("(GPU-[ab]|GPU|[a-z ]{0,4}|MIG-a)", "(|=[a-z =]{0,5})"), 0..6),
        ) {
            let text = entries.iter().map(|(uuid, reason)| format!("{uuid}{reason}")).collect::<Vec<_>>().join(",");
            let found = read(&text);
            for gpu in ["GPU-a", "GPU-b", "GPU-c"] {
                prop_assert_eq!(found.gpus.contains_key(gpu), entries.iter().any(|(uuid, _)| uuid == gpu));
            }
        }

        /// No text makes the reading fail or withdraws a GPU that it does not contain.
        #[test]
        fn any_text_is_read(text in ".*") {
            let found = read(&text);
            prop_assert!(found.gpus.keys().all(|uuid| text.contains(uuid)));
            prop_assert!(found.gpus.values().all(|clause| clause.chars().count() <= 300));
        }
    }
}
