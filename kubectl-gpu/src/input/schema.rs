//! Limits that the API server would enforce, read from the kinds' own manifests: numbers, lengths, patterns, keys of lists.
//!
//! Types, required and unknown fields are serde's to find; rules in CEL need an API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use regex::Regex;
use serde_json::Value;

use super::tree::Step;

/// A value beyond a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub path: Vec<Step>,
    pub what: String,
}

/// Schemas by kind.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let manifests = gputenancy_crds::manifest::all().unwrap_or_default();
    let schema = |(_, crd): (String, Value)| {
        let kind = crd.pointer("/spec/names/kind")?.as_str()?.to_owned();
        Some((kind, crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")?.clone()))
    };
    manifests.into_iter().filter_map(schema).collect()
});

/// Every limit that the spec of an object of this kind breaks.
pub(super) fn check(kind: &str, object: &Value) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    if let (Some(schema), Some(spec)) = (SCHEMAS.get(kind), object.get("spec")) {
        walk(schema, spec, &mut vec![Step::Field("spec".into())], &mut mistakes);
    }
    mistakes
}

fn walk(schema: &Value, value: &Value, path: &mut Vec<Step>, mistakes: &mut Vec<Mistake>) {
    let wrong = match value {
        Value::Number(_) => number(schema, value),
        Value::String(text) => string(schema, text),
        Value::Array(items) => list(schema, items),
        Value::Object(fields) => beyond(schema, "maxProperties", fields.len(), "fields"),
        _ => None,
    };
    mistakes.extend(wrong.map(|what| Mistake { path: path.clone(), what }));
    let mut below = |schema: Option<&Value>, value: &Value, step: Step| {
        if let Some(schema) = schema {
            path.push(step);
            walk(schema, value, path, mistakes);
            path.pop();
        }
    };
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                below(schema.get("items"), item, Step::Item(index));
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let of_name = schema.get("properties").and_then(|p| p.get(name));
                below(of_name.or_else(|| schema.get("additionalProperties")), value, Step::Field(name.clone()));
            }
        }
        _ => {}
    }
}

fn number(schema: &Value, value: &Value) -> Option<String> {
    let (value, limit) = (value.as_f64()?, |name: &str| schema.get(name).and_then(Value::as_f64));
    match (limit("minimum"), limit("maximum")) {
        (Some(least), _) if value < least => Some(format!("{value} is too small: write {least} or more")),
        (_, Some(most)) if value > most => Some(format!("{value} is too large: write {most} or less")),
        _ => None,
    }
}

fn string(schema: &Value, text: &str) -> Option<String> {
    let length = text.chars().count();
    if let Some(what) = beyond(schema, "maxLength", length, "characters") {
        return Some(what);
    }
    let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0);
    if u64::try_from(length).unwrap_or(u64::MAX) < least {
        return Some(format!("\"{text}\" is too short: write at least {least} characters"));
    }
    let pattern = schema.get("pattern").and_then(Value::as_str)?;
    // patterns are the API server's, whose dialect this one is; what it cannot read it does not judge
    let matches = Regex::new(pattern).map_or(true, |p| p.is_match(text));
    (!matches).then(|| format!("\"{text}\" does not have the form {pattern}"))
}

fn list(schema: &Value, items: &[Value]) -> Option<String> {
    if let Some(what) = beyond(schema, "maxItems", items.len(), "items") {
        return Some(what);
    }
    let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
    if u64::try_from(items.len()).unwrap_or(u64::MAX) < least {
        return Some(format!("{} items are too few: write at least {least}", items.len()));
    }
    let keys: Vec<&str> = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("map") => {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            keys.into_iter().flatten().filter_map(Value::as_str).collect()
        }
        Some("set") => Vec::new(),
        _ => return None,
    };
    let key_of = |item: &Value| match keys.as_slice() {
        [] => item.to_string(),
        keys => {
            keys.iter().map(|k| item.get(k).map(ToString::to_string).unwrap_or_default()).collect::<Vec<_>>().join(", ")
        }
    };
    let mut seen = BTreeSet::new();
    let twice = items.iter().map(key_of).find(|key| !seen.insert(key.clone()))?;
    Some(format!("{twice} stands there twice: write it once"))
}

fn beyond(schema: &Value, limit: &str, count: usize, what: &str) -> Option<String> {
    let most = schema.get(limit).and_then(Value::as_u64)?;
    (u64::try_from(count).unwrap_or(u64::MAX) > most)
        .then(|| format!("{count} {what} are too many: write at most {most}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mistakes(kind: &str, spec: &Value) -> Vec<(String, String)> {
        let told = |m: Mistake| (super::super::tree::written(&m.path), m.what);
        check(kind, &json!({"spec": spec})).into_iter().map(told).collect()
    }

    #[test]
    fn limits_of_the_kinds_hold_without_an_api_server() {
        let found = mistakes(
            "GpuTenant",
            &json!({"namespaces": [{"name": "Team A"}], "gpus": [{"profile": "a", "count": -1}, {"profile": "a", "count": 2}]}),
        );
        let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(
            fields.iter().collect::<BTreeSet<_>>(),
            ["spec.gpus", "spec.gpus[0].count", "spec.namespaces[0].name"].iter().collect()
        );
        assert!(found.contains(&("spec.gpus[0].count".into(), "-1 is too small: write 0 or more".into())), "{found:?}");
        assert_eq!(
            mistakes("GpuPool", &json!({"profiles": []})),
            [("spec.profiles".into(), "0 items are too few: write at least 1".into())]
        );
    }

    #[test]
    fn what_is_right_is_left_alone() {
        let spec = json!({"namespaces": [{"name": "team-a"}], "gpus": [{"profile": "a", "count": 1}, {"profile": "b", "count": 2}]});
        assert_eq!(mistakes("GpuTenant", &spec), []);
        assert_eq!(mistakes("Node", &json!({"anything": "goes"})), []);
    }
}
