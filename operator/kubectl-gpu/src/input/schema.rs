//! What the API server enforces by the CRDs: fields, types, numbers, lengths, patterns, keys of lists, and CEL rules. Every mistake is found.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use gputenancy_crds::{quantity::Amount, quota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use regex::Regex;
use serde_json::Value;

use super::{
    located::{field_path, token},
    rule::{self, Rule},
    structure,
};

/// Schemas by kind, without the status.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let manifests = gputenancy_crds::manifest::all().unwrap_or_default();
    let schema = |(_, crd): (String, Value)| {
        let kind = crd.pointer("/spec/names/kind")?.as_str()?.to_owned();
        let mut schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema")?.clone();
        let fields = schema.pointer_mut("/properties")?.as_object_mut()?;
        // what every object has, and the API server adds
        fields.extend(["apiVersion", "kind", "metadata", "status"].map(|name| (name.to_owned(), Value::Null)));
        Some((kind, schema))
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

/// Everything that the CRD refuses in an object of this kind: JSON pointers and messages. Fields that the schema does not have are mistakes
/// in what users write, and nothing in what programs write.
pub(super) fn check(kind: &str, object: &Value) -> Vec<(String, String)> {
    let mut mistakes = Vec::new();
    if let Some(schema) = SCHEMAS.get(kind) {
        let strict = gputenancy_crds::manifest::USERS_WRITE.contains(&kind);
        walk(schema, &defaulted(schema, object), "", strict, &mut mistakes);
    }
    name_quota_keys(object, &mut mistakes);
    mistakes
}

/// Beginning of the message of the rule about keys of quotas.
const QUOTA_KEYS_RULE: &str = "write keys that a ResourceQuota counts";

/// Replaces the mistake about keys of `spec.resources`, which lists what is allowed, by one for each wrong key.
fn name_quota_keys(object: &Value, mistakes: &mut Vec<(String, String)>) {
    let Some((at, (_, rule))) =
        mistakes.iter().enumerate().find(|(_, (_, message))| message.starts_with(QUOTA_KEYS_RULE))
    else {
        return;
    };
    let keys = object.pointer("/spec/resources").and_then(Value::as_object).into_iter().flatten();
    let wrong: Vec<(String, String)> = keys
        .filter(|(key, _)| !quota::is_counted(key))
        .map(|(key, _)| {
            let meant = structure::nearest(key, &quota::OWN_KEYS);
            let instead = meant.map_or_else(|| rule.clone(), |key| format!("did you mean {key}?"));
            (format!("/spec/resources/{}", token(key)), format!("is not counted by a ResourceQuota: {instead}"))
        })
        .collect();
    // where the rule and this program disagree the rule's message stays
    if !wrong.is_empty() {
        mistakes.splice(at..=at, wrong);
    }
}

/// The schema of a field.
fn of_field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema.get("properties").and_then(|p| p.get(name)).or_else(|| schema.get("additionalProperties"))
}

/// The value with the schema's defaults for absent and null fields.
fn defaulted(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: serde_json::Map<String, Value> = fields
                .iter()
                .filter(|(k, v)| !v.is_null() || of_field(schema, k).is_none())
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, schema) in properties.into_iter().flatten() {
                if let Some(default) = schema.get("default") {
                    fields.entry(name).or_insert_with(|| default.clone());
                }
            }
            for (name, value) in &mut fields {
                if let Some(schema) = of_field(schema, name) {
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
    let broken = |(rule, _): &(&str, &str)| RULES.get(*rule).is_some_and(|r| matches!(r.holds(&context), Ok(false)));
    rules.filter(broken).map(|(_, message)| message.to_owned()).collect()
}

/// Returns whether fields, types and listed values are those of the schema, without which rules cannot be evaluated.
fn walk(schema: &Value, value: &Value, pointer: &str, strict: bool, mistakes: &mut Vec<(String, String)>) -> bool {
    let before = mistakes.len();
    if strict {
        mistakes.extend(structure::mistakes(schema, value, pointer));
    }
    // rules compare with the values that the schema lists
    let known = value.as_str().is_none_or(|text| listed(schema).is_none_or(|values| values.contains(&text)));
    let mut sound = known && mistakes.len() == before;
    match (value, schema.get("items")) {
        (Value::Array(items), Some(schema)) => {
            for (index, item) in items.iter().enumerate() {
                sound &= walk(schema, item, &format!("{pointer}/{index}"), strict, mistakes);
            }
        }
        (Value::Object(fields), _) => {
            for (name, value) in fields {
                if let Some(schema) = of_field(schema, name) {
                    sound &= walk(schema, value, &format!("{pointer}/{}", token(name)), strict, mistakes);
                }
            }
        }
        _ => {}
    }
    let wrong = match value {
        Value::Number(_) => number(schema, value),
        Value::String(text) => string(schema, text),
        Value::Array(items) => list(schema, items),
        Value::Object(fields) => count(schema, "minProperties", "maxProperties", fields.len(), "fields"),
        _ => None,
    };
    let rules: Vec<(String, String)> =
        if sound { broken(schema, value).iter().map(|message| place(pointer, message)).collect() } else { Vec::new() };
    // the rule of a text says what to write, where its length says only that something is missing
    let wrong = wrong.filter(|_| rules.is_empty() || !value.is_string());
    mistakes.extend(wrong.map(|message| (pointer.to_owned(), message)));
    mistakes.extend(rules);
    sound
}

/// The place and the text of a rule's message, which begins with the field, without the indexes of items.
fn place(pointer: &str, message: &str) -> (String, String) {
    let named = pointer.split('/').filter(|token| token.parse::<usize>().is_err());
    let here = field_path(&named.collect::<Vec<_>>().join("/"));
    match message.split_once(": ").and_then(|(field, text)| Some((below(field, &here)?, text))) {
        Some((rest, text)) => {
            let rest = rest.trim_start_matches('.').replace('.', "/");
            let separator = if rest.is_empty() { "" } else { "/" };
            (format!("{pointer}{separator}{rest}"), text.to_owned())
        }
        // a type that is used in several fields has a rule that names another one of them
        None => (
            pointer.to_owned(),
            message.split_once(": ").filter(|(field, _)| is_path(field)).map_or(message, |(_, text)| text).to_owned(),
        ),
    }
}

/// Paths of fields, as a message begins with.
fn is_path(text: &str) -> bool {
    text.split(", ")
        .all(|path| path.starts_with("spec.") && path.chars().all(|c| c.is_ascii_alphanumeric() || c == '.'))
}

/// What a path has beyond another one.
fn below<'a>(field: &'a str, here: &str) -> Option<&'a str> {
    let rest = field.strip_prefix(here)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.';
    (rest.chars().all(plain) && (rest.is_empty() || here.is_empty() || rest.starts_with('.'))).then_some(rest)
}

fn number(schema: &Value, value: &Value) -> Option<String> {
    let (value, limit) = (value.as_f64()?, |name: &str| schema.get(name).and_then(Value::as_f64));
    match (limit("minimum"), limit("maximum")) {
        (Some(least), _) if value < least => Some(format!("{value} is too small: write {least} or more")),
        (_, Some(most)) if value > most => Some(format!("{value} is too large: write {most} or less")),
        _ => None,
    }
}

/// The values that the schema of a text lists; `None`: it has other values too.
fn listed(schema: &Value) -> Option<Vec<&str>> {
    Some(schema.get("enum")?.as_array()?.iter().filter_map(Value::as_str).collect())
}

fn string(schema: &Value, text: &str) -> Option<String> {
    let pattern = || {
        let pattern = schema.get("pattern")?;
        // the dialect is Go's; a pattern that cannot be read here is left to the API server
        let matches = Regex::new(pattern.as_str()?).map_or(true, |p| p.is_match(text));
        // other texts have rules with messages
        (!matches).then(|| match schema.get("format").and_then(Value::as_str) {
            Some("date") => format!("\"{text}\" is no date: write one such as 2026-11-24"),
            _ if Amount::parse(&Quantity(text.to_owned())) == Some(Amount::default()) => {
                format!("\"{text}\" is nothing: write an amount above zero, such as 8, 500m or 10Gi")
            }
            _ => format!("\"{text}\" is no quantity: write a number that is not negative, such as 8, 500m or 10Gi"),
        })
    };
    // also where a removed value is still read
    let known = || {
        let values = listed(schema)?;
        let unknown = || format!("\"{text}\" is none of the values {}", values.join(", "));
        (!values.contains(&text)).then(unknown)
    };
    count(schema, "minLength", "maxLength", text.chars().count(), "characters").or_else(pattern).or_else(known)
}

fn list(schema: &Value, items: &[Value]) -> Option<String> {
    let key_of = |item: &Value| match schema.get("x-kubernetes-list-type")?.as_str()? {
        "set" => Some(item.to_string()),
        "map" => {
            let keys = schema.get("x-kubernetes-list-map-keys")?.as_array()?.iter().filter_map(Value::as_str);
            let key = keys.map(|key| item.get(key).map(ToString::to_string).unwrap_or_default());
            Some(key.collect::<Vec<_>>().join(", "))
        }
        _ => None,
    };
    let twice = || {
        let mut seen = BTreeSet::new();
        let twice = items.iter().filter_map(key_of).find(|key| !seen.insert(key.clone()))?;
        Some(format!("{twice} is listed twice: write it once"))
    };
    count(schema, "minItems", "maxItems", items.len(), "items").or_else(twice)
}

/// Limits of a number of characters, items or fields.
fn count(schema: &Value, least: &str, most: &str, count: usize, of: &str) -> Option<String> {
    let limit = |name: &str| usize::try_from(schema.get(name)?.as_u64()?).ok();
    match (limit(least), limit(most)) {
        (Some(least), _) if count < least => Some(format!("{count} {of} are too few: write at least {least}")),
        (_, Some(most)) if count > most => Some(format!("{count} {of} are too many: write at most {most}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mistakes(kind: &str, spec: &Value) -> Vec<(String, String)> {
        check(kind, &json!({"metadata": {"name": "a"}, "spec": spec}))
            .into_iter()
            .map(|(pointer, message)| (field_path(&pointer), message))
            .collect()
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
            mistakes("GpuPool", &json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "profiles": []})),
            [("spec.profiles".into(), "0 items are too few: write at least 1".into()),]
        );
    }

    #[test]
    fn value_that_no_enum_has_is_a_mistake_also_where_it_can_be_read() {
        let tenant = |backend: &str| {
            mistakes(
                "GpuTenant",
                &json!({"namespaces": [{"name": "a"}], "virtualCluster": {"version": "0.36.1", "backend": backend}}),
            )
        };
        let message = "\"FluxHelmRelease\" is none of the values Helm, External".to_owned();
        assert_eq!(tenant("FluxHelmRelease"), [("spec.virtualCluster.backend".to_owned(), message)]);
        assert_eq!(tenant("External"), []);
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
        let unknown = pool(json!({"layout": {"spare": {"policy": "fill", "profile": "a"}}}));
        assert!(unknown.len() == 1 && unknown[0].0 == "spec.layout.spare.policy", "{unknown:?}");
        let short = json!({"disruption": {"windows": [{"schedule": "0 2 * * 6", "duration": "30s"}]}});
        assert!(pool(short)[0].0.starts_with("spec.disruption.windows[0]"));
        let wrong =
            pool(json!({"disruption": {"notice": "5x", "windows": [{"schedule": "every day", "duration": "1h"}]}}));
        assert!(
            wrong.iter().any(|(field, what)| field == "spec.disruption.notice" && what.contains("such as 90s")),
            "{wrong:?}"
        );
        let schedule = "spec.disruption.windows[0].schedule";
        assert!(
            wrong.iter().any(|(field, what)| field == schedule && what.starts_with("write five fields")),
            "{wrong:?}"
        );
    }

    #[test]
    fn cel_rules_of_all_kinds_evaluate() {
        assert!(RULES.len() > 30, "{}", RULES.len());
        for (text, rule) in &*RULES {
            let why = rule.holds(&rule::context()).unwrap_err().to_string();
            // rules of transitions compare with the former value
            let missing = ["self", "oldSelf"].map(|name| format!("Undeclared reference to '{name}'"));
            assert!(missing.iter().any(|text| why.contains(text)), "{text}: {why}");
        }
    }
}
