//! What the API server enforces by the CRDs: numbers, lengths, patterns, keys of lists, and CEL rules.
//!
//! Types, required and unknown fields are found by serde.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use regex::Regex;
use serde_json::Value;

use super::tree::{Step, written};
use crate::rule::{self, Rule};

/// A value that the CRD refuses.
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

/// Parsed rules of all schemas by their text.
static RULES: LazyLock<BTreeMap<String, Rule>> = LazyLock::new(|| {
    fn collect(schema: &Value, rules: &mut BTreeMap<String, Rule>) {
        rules.extend(rules_of(schema).map(|(rule, _)| (rule.to_owned(), Rule::parse(rule))));
        let below =
            [schema.get("properties")].into_iter().flatten().filter_map(Value::as_object).flat_map(|p| p.values());
        below.chain(schema.get("items")).chain(schema.get("additionalProperties")).for_each(|s| collect(s, rules));
    }
    let mut rules = BTreeMap::new();
    SCHEMAS.values().for_each(|schema| collect(schema, &mut rules));
    rules
});

/// CEL rules on a value of this schema, with their messages.
fn rules_of(schema: &Value) -> impl Iterator<Item = (&str, &str)> {
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten();
    rules.filter_map(|rule| {
        let text = rule.get("rule")?.as_str()?;
        Some((text, rule.get("message").and_then(Value::as_str).unwrap_or(text)))
    })
}

/// Everything that the CRD refuses in the spec of an object of this kind.
pub(super) fn check(kind: &str, object: &Value) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    if let (Some(schema), Some(spec)) = (SCHEMAS.get(kind), object.get("spec")) {
        walk(schema, &defaulted(schema, spec), &mut vec![Step::Field("spec".into())], &mut mistakes);
    }
    mistakes
}

/// The value with the schema's defaults for absent and null fields.
fn defaulted(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: serde_json::Map<String, Value> =
                fields.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, schema) in properties.into_iter().flatten() {
                if let Some(default) = schema.get("default") {
                    fields.entry(name).or_insert_with(|| default.clone());
                }
            }
            for (name, value) in &mut fields {
                let named = properties.and_then(|p| p.get(name)).or_else(|| schema.get("additionalProperties"));
                if let Some(schema) = named {
                    *value = defaulted(schema, value);
                }
            }
            Value::Object(fields)
        }
        Value::Array(items) => {
            let schema = schema.get("items").unwrap_or(&Value::Null);
            Value::Array(items.iter().map(|item| defaulted(schema, item)).collect())
        }
        scalar => scalar.clone(),
    }
}

/// Messages of the rules that a value breaks. A rule that cannot be evaluated has a field of a wrong type, which serde reports.
fn broken(schema: &Value, value: &Value) -> Vec<String> {
    let mut rules = rules_of(schema).peekable();
    if rules.peek().is_none() {
        return Vec::new();
    }
    let mut context = rule::context();
    context.add_variable_from_value("self", rule::value(value));
    let broken = |(rule, _): &(&str, &str)| RULES.get(*rule).is_some_and(|r| r.holds(&context) == Ok(false));
    rules.filter(broken).map(|(_, message)| message.to_owned()).collect()
}

fn walk(schema: &Value, value: &Value, path: &mut Vec<Step>, mistakes: &mut Vec<Mistake>) {
    let wrong = match value {
        Value::Number(_) => number(schema, value),
        Value::String(text) => string(schema, text),
        Value::Array(items) => list(schema, items),
        Value::Object(fields) => beyond(schema, "maxProperties", fields.len(), "fields"),
        _ => None,
    };
    let place = format!("{}: ", written(path));
    let broken = broken(schema, value).into_iter().map(|m| m.strip_prefix(&place).unwrap_or(&m).to_owned());
    mistakes.extend(wrong.into_iter().chain(broken).map(|what| Mistake { path: path.clone(), what }));
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
    // the dialect is Go's; a pattern that cannot be read here is left to the API server
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
    Some(format!("{twice} is listed twice: write it once"))
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
        check(kind, &json!({"spec": spec})).into_iter().map(|m| (written(&m.path), m.what)).collect()
    }

    #[test]
    fn schema_limits_are_checked_without_an_api_server() {
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
            [("spec.profiles".into(), "0 items are too few: write at least 1".into()),]
        );
    }

    #[test]
    fn schema_without_mistakes_has_none() {
        let spec = json!({"namespaces": [{"name": "team-a"}], "gpus": [{"profile": "a", "count": 1}, {"profile": "b", "count": 2}]});
        assert_eq!(mistakes("GpuTenant", &spec), []);
        assert_eq!(mistakes("Node", &json!({"anything": "goes"})), []);
    }

    #[test]
    fn cel_rules_are_checked_with_the_defaults_of_the_schema() {
        let support = json!({"expected": "e", "incident": "i"});
        let profile = |device: Value| mistakes("GpuProfile", &json!({"device": device, "support": support}));
        assert_eq!(profile(json!({"mig": {"profile": "1g.10gb"}})), []);
        let two = profile(json!({"mig": {"profile": "1g.10gb"}, "whole": {}}));
        assert!(two.len() == 1 && two[0].0 == "spec.device" && two[0].1.contains("exactly one"), "{two:?}");
        // a null is an absent field
        assert_eq!(profile(json!({"mig": {"profile": "1g.10gb"}, "whole": null})), []);
        let selector = json!({"matchLabels": {"a": "b"}});
        let pool = |more: Value| {
            let mut spec = json!({"nodeSelector": selector, "profiles": ["a"]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            mistakes("GpuPool", &spec)
        };
        assert_eq!(pool(json!({})), []);
        assert_eq!(pool(json!({"layout": {"spare": {"policy": "Fill", "profile": "b"}}})).len(), 1);
        let short = json!({"disruption": {"windows": [{"schedule": "0 2 * * 6", "duration": "30s"}]}});
        assert!(pool(short)[0].0.starts_with("spec.disruption.windows[0]"));
    }

    #[test]
    fn cel_rules_of_all_kinds_evaluate() {
        assert!(RULES.len() > 30, "{}", RULES.len());
        for (text, rule) in &*RULES {
            let why = rule.holds(&rule::context()).unwrap_err();
            assert!(why.contains("Undeclared reference to 'self'"), "{text}: {why}");
        }
    }
}
