//! Specs that are compared and never read, kept as a number each: ten thousand policies are as light as their names.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use k8s_openapi::{
    api::{
        core::v1::{LimitRange, LimitRangeSpec},
        networking::v1::{NetworkPolicy, NetworkPolicySpec},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Resource, api::ObjectMeta};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::tenant::Amount;

/// A number that differs when specs differ in more than the way in which they are written.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Print(u64);

impl Print {
    /// Of the spec of a network policy.
    pub fn of_policy(spec: &NetworkPolicySpec) -> Self {
        Self::of(serde_json::to_value(spec).unwrap_or_default(), as_it_is)
    }

    /// Of the spec of a limit range.
    pub fn of_limits(spec: &LimitRangeSpec) -> Self {
        Self::of(serde_json::to_value(spec).unwrap_or_default(), amount)
    }

    /// Of a spec, or as this program itself has written it: a spec is never a number.
    fn read(spec: Value, read: fn(String) -> String) -> Self {
        spec.as_u64().map_or_else(|| Self::of(spec, read), Self)
    }

    fn of(mut spec: Value, read: fn(String) -> String) -> Self {
        plain(&mut spec, read);
        let mut hasher = DefaultHasher::new();
        serde_json::to_vec(&spec).unwrap_or_default().hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// What is said with no words means the same as nothing: `null`, an empty list, a selector's empty map. The API server drops some.
fn plain(value: &mut Value, read: fn(String) -> String) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| plain(field, read));
            fields.retain(|name, field| match field {
                Value::Null => false,
                Value::Array(all) => !all.is_empty(),
                Value::Object(all) => !all.is_empty() || name != "matchLabels",
                _ => true,
            });
            // whoever builds this may keep the order in which fields come
            let sorted: BTreeMap<String, Value> = std::mem::take(fields).into_iter().collect();
            fields.extend(sorted);
        }
        Value::Array(all) => all.iter_mut().for_each(|one| plain(one, read)),
        Value::String(text) => *text = read(std::mem::take(text)),
        _ => {}
    }
}

fn as_it_is(text: String) -> String {
    text
}

/// The API server writes `1024Mi` as `1Gi`.
fn amount(text: String) -> String {
    let quantity = Quantity(text);
    Amount::parse(&quantity).map_or(quantity, Amount::quantity).0
}

/// One of our network policies.
#[derive(Resource, Serialize, Deserialize, Clone, Debug)]
#[resource(inherit = NetworkPolicy)]
pub struct SlimPolicy {
    /// Name, namespace, labels.
    pub metadata: ObjectMeta,
    /// What it says.
    #[serde(default, deserialize_with = "of_policy")]
    pub spec: Print,
}

/// One of our limit ranges.
#[derive(Resource, Serialize, Deserialize, Clone, Debug)]
#[resource(inherit = LimitRange)]
pub struct SlimLimits {
    /// Name, namespace, labels.
    pub metadata: ObjectMeta,
    /// What it says.
    #[serde(default, deserialize_with = "of_limits")]
    pub spec: Print,
}

fn of_policy<'de, D: Deserializer<'de>>(from: D) -> Result<Print, D::Error> {
    Ok(Print::read(Value::deserialize(from)?, as_it_is))
}

fn of_limits<'de, D: Deserializer<'de>>(from: D) -> Result<Print, D::Error> {
    Ok(Print::read(Value::deserialize(from)?, amount))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::needless_pass_by_value, reason = "a test reads better without ampersands before json!")]

    use serde_json::json;

    use super::*;

    fn policy(spec: Value) -> Print {
        serde_json::from_value::<SlimPolicy>(json!({"metadata": {}, "spec": spec})).unwrap().spec
    }

    fn limits(request: &str) -> Print {
        let limits = json!([{"type": "Container", "defaultRequest": {"memory": request}}]);
        serde_json::from_value::<SlimLimits>(json!({"metadata": {}, "spec": {"limits": limits}})).unwrap().spec
    }

    #[test]
    fn what_means_the_same_has_the_same_print() {
        let short = json!({"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "::/0"}}]}]});
        let long = json!({"egress": [{"ports": [], "to": [{"ipBlock": {"except": null, "cidr": "::/0"}}]}], "podSelector": {"matchLabels": {}}});
        assert_eq!(policy(short.clone()), policy(long));
        let typed = serde_json::from_value(short.clone()).unwrap();
        assert_eq!(Print::of_policy(&typed), policy(short), "written and read back");
        assert_eq!(limits("1Gi"), limits("1024Mi"));
        let print = limits("1Gi");
        let kept = serde_json::to_value(SlimLimits { metadata: ObjectMeta::default(), spec: print }).unwrap();
        assert_eq!(serde_json::from_value::<SlimLimits>(kept).unwrap().spec, print, "kept and read again");
    }

    #[test]
    fn what_lets_more_in_has_another_print() {
        let shut = policy(json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        let open = policy(json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}));
        let anybody = policy(json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}));
        let nobody = policy(json!({"podSelector": {}, "ingress": [{"from": [{}]}]}));
        assert!(shut != open && anybody != nobody);
        assert_ne!(limits("1Gi"), limits("1G"));
    }
}
