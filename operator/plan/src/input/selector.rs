//! Label selectors, and the pools that select a node.

use std::collections::BTreeMap;

use gputenancy_crds::GpuPool;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use gputenancy_crds::ids::{NodeName, PoolName};

/// Pools that select each node, sorted, without nodes that no pool selects. A node belongs to a pool if exactly one selects it.
pub fn membership<'a>(
    pools: &[&GpuPool],
    nodes: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
) -> BTreeMap<NodeName, Vec<PoolName>> {
    let name = |p: &GpuPool| PoolName::from(p.metadata.name.clone().unwrap_or_default());
    let valid = pools.iter().filter(|p| check(&p.spec.node_selector).is_ok());
    let selectors: BTreeMap<PoolName, &LabelSelector> = valid.map(|p| (name(p), &p.spec.node_selector)).collect();
    let of = |(node, labels): (&'a str, _)| {
        let by: Vec<PoolName> =
            selectors.iter().filter(|(_, s)| selects(s, labels)).map(|(pool, _)| pool.clone()).collect();
        (!by.is_empty()).then(|| (NodeName::from(node), by))
    };
    nodes.into_iter().filter_map(of).collect()
}

/// Why a selector is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum SelectorError {
    #[error("operator {operator} of key {key} needs values")]
    NoValues { operator: String, key: String },
    #[error("operator {operator} of key {key} is none of In, NotIn, Exists, DoesNotExist")]
    Operator { operator: String, key: String },
}

/// Checks the operators of a selector and their values.
pub(super) fn check(selector: &LabelSelector) -> Result<(), SelectorError> {
    for LabelSelectorRequirement { key, operator, values } in selector.match_expressions.iter().flatten() {
        match operator.as_str() {
            "In" | "NotIn" if values.is_none() => {
                return Err(SelectorError::NoValues { operator: operator.clone(), key: key.clone() });
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => return Err(SelectorError::Operator { operator: operator.clone(), key: key.clone() }),
        }
    }
    Ok(())
}

/// Whether a valid selector selects these labels; an empty one selects nothing.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten();
    let rules = selector.match_expressions.iter().flatten();
    let matches = |r: &LabelSelectorRequirement| {
        let value = labels.get(&r.key);
        let listed = value.is_some_and(|v| r.values.iter().flatten().any(|known| known == v));
        match r.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            _ => value.is_none(),
        }
    };
    let empty = equal.clone().next().is_none() && rules.clone().next().is_none();
    !empty && equal.clone().all(|(key, value)| labels.get(key) == Some(value)) && rules.clone().all(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_follows_the_rules_of_kubernetes() {
        let labels: BTreeMap<String, String> = [("zone".to_owned(), "a".to_owned())].into();
        let with = |key: &str, operator: &str, values: Option<&[&str]>| LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: values.map(|v| v.iter().map(|v| (*v).to_owned()).collect()),
            }]),
            match_labels: None,
        };
        for (selector, selected) in [
            (LabelSelector::default(), false),
            (LabelSelector { match_labels: Some(labels.clone()), ..LabelSelector::default() }, true),
            (with("zone", "In", Some(&["a", "b"])), true),
            (with("zone", "In", Some(&["b"])), false),
            (with("rack", "In", Some(&["a"])), false),
            (with("zone", "NotIn", Some(&["a"])), false),
            (with("rack", "NotIn", Some(&["a"])), true),
            (with("zone", "Exists", None), true),
            (with("rack", "Exists", None), false),
            (with("zone", "DoesNotExist", None), false),
            (with("rack", "DoesNotExist", None), true),
        ] {
            assert_eq!(check(&selector), Ok(()));
            assert_eq!(selects(&selector, &labels), selected, "{selector:?}");
        }
        assert!(check(&with("zone", "In", None)).is_err() && check(&with("zone", "Equals", None)).is_err());
    }
}
