//! Fields and types: what is missing, what is not known, and what has another type than the schema says.

use std::cmp::Reverse;

use serde_json::Value;

use super::located::token;

/// Most names that a message lists.
const MOST_NAMES: usize = 12;

/// Mistakes of a value itself and of the names of its fields: JSON pointers and messages.
pub(super) fn mistakes(schema: &Value, value: &Value, pointer: &str) -> Vec<(String, String)> {
    if let Some(message) = wrong_type(schema, value) {
        return vec![(pointer.to_owned(), message)];
    }
    let (Value::Object(fields), Some(Value::Object(properties))) = (value, schema.get("properties")) else {
        return Vec::new();
    };
    let at = |name: &str| format!("{pointer}/{}", token(name));
    let open = schema.get("additionalProperties").is_some()
        || schema.get("x-kubernetes-preserve-unknown-fields").is_some_and(|open| open == true);
    let known: Vec<&str> = properties.keys().map(String::as_str).collect();
    let unknown = fields.keys().filter(|name| !open && !properties.contains_key(*name));
    let unknown = unknown.map(|name| (at(name), format!("is not known: {}", instead(name, &known))));
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let missing = required.filter(|name| !fields.contains_key(*name)).map(|name| {
        let meaning = properties.get(name).and_then(|p| p.get("description")).and_then(Value::as_str);
        let meaning = meaning.and_then(|text| text.split(". ").next()).map(|text| text.trim_end_matches('.'));
        (at(name), meaning.map_or_else(|| "is missing".to_owned(), |text| format!("is missing: {text}")))
    });
    unknown.chain(missing).collect()
}

/// Fields of an object's metadata, in Kubernetes' `ObjectMeta`.
const METADATA: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// Mistakes in the metadata of an object that users write, which no schema of a CRD has.
pub(super) fn metadata(object: &Value) -> Vec<(String, String)> {
    let fields = object.get("metadata").and_then(Value::as_object).into_iter().flatten();
    let unknown = fields.map(|(name, _)| name).filter(|name| !METADATA.contains(&name.as_str()));
    let unknown = unknown
        .map(|name| (format!("/metadata/{}", token(name)), format!("is not known: {}", instead(name, &METADATA))));
    let name =
        object.pointer("/metadata/name").and_then(Value::as_str).filter(|name| !name.is_empty() && !is_name(name));
    let wrong = name.map(|name| {
        let message = format!(
            "\"{name}\" is no name: write at most {LONGEST_NAME} lower-case letters, digits, dashes and dots, such as team-a"
        );
        ("/metadata/name".to_owned(), message)
    });
    unknown.chain(wrong).collect()
}

/// A DNS subdomain of RFC 1123, as the API server asks for.
fn is_name(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= LONGEST_NAME && name.split('.').all(label)
}

/// The known name that an unknown one is probably meant to be.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // of two that are equally near the one that begins alike
    let near = |other: &str| (distance(name, other), Reverse(common_prefix(name, other)));
    let ((edits, _), other) = known.iter().map(|other| (near(other), other)).min()?;
    (edits <= 1 + name.chars().count() / 4).then_some(*other)
}

/// What to write instead of an unknown field.
fn instead(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(other) => format!("did you mean {other}?"),
        _ if known.is_empty() => "remove it".to_owned(),
        _ => {
            let more = if known.len() > MOST_NAMES { " and others (kubectl explain lists them)" } else { "" };
            let names: Vec<&str> = known.iter().take(MOST_NAMES).copied().collect();
            format!("the fields here are {}{more}", names.join(", "))
        }
    }
}

/// Number of letters that two names begin with, without regard to case.
fn common_prefix(one: &str, other: &str) -> usize {
    let (one, other) = (one.to_lowercase(), other.to_lowercase());
    one.chars().zip(other.chars()).take_while(|(letter, known)| letter == known).count()
}

/// Edit distance in letters, without regard to case.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.to_lowercase().chars().enumerate() {
        let mut next = vec![line + 1];
        for (column, (pair, known)) in row.windows(2).zip(&other).enumerate() {
            if let (&[diagonal, above], Some(&left)) = (pair, next.get(column)) {
                next.push((diagonal + usize::from(letter != *known)).min(above + 1).min(left + 1));
            }
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

fn wrong_type(schema: &Value, value: &Value) -> Option<String> {
    let number_or_text = schema.get("x-kubernetes-int-or-string").is_some_and(|both| both == true);
    let (fits, wanted) = match schema.get("type").and_then(Value::as_str) {
        _ if number_or_text => (value.is_string() || value.is_i64() || value.is_u64(), "a whole number or a text"),
        Some("object") => (value.is_object(), "fields with values"),
        Some("array") => (value.is_array(), "a list, each item after a dash"),
        Some("string") => (value.is_string(), "a text, in quotes if it looks like a number or a switch"),
        Some("boolean") => (value.is_boolean(), "true or false"),
        Some("integer") => (value.is_i64() || value.is_u64(), "a whole number without quotes"),
        Some("number") => (value.is_number(), "a number without quotes"),
        _ => return None,
    };
    let found = match value {
        Value::Null => "empty".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) => format!("the text \"{text}\""),
        scalar => scalar.to_string(),
    };
    (!fits).then(|| format!("is {found}: write {wanted}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "description": "Name of the team. Never changes."},
            "matchLabels": {"type": "object", "additionalProperties": {"type": "string"}},
            "count": {"type": "integer"}, "size": {"x-kubernetes-int-or-string": true},
        }})
    }

    #[test]
    fn every_unknown_and_missing_field_is_named_with_what_to_write() {
        let found = mistakes(&schema(), &json!({"matchlabel": {}, "x": 1}), "/spec");
        let expected = [
            ("/spec/matchlabel", "is not known: did you mean matchLabels?"),
            ("/spec/x", "is not known: the fields here are count, matchLabels, name, size"),
            ("/spec/name", "is missing: Name of the team"),
        ];
        assert_eq!(found, expected.map(|(at, message)| (at.to_owned(), message.to_owned())));
    }

    #[test]
    fn abbreviated_name_means_the_one_that_begins_alike() {
        let known = ["requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "pods"];
        let meant = ["requests.mem", "limits.mem", "Limits.cp", "pod", "gold"].map(|name| nearest(name, &known));
        assert_eq!(meant, [Some("requests.memory"), Some("limits.memory"), Some("limits.cpu"), Some("pods"), None]);
    }

    #[test]
    fn metadata_has_known_fields_and_a_name_of_dns() {
        let metadata_of = |fields: Value| metadata(&json!({"metadata": fields}));
        let found = |fields: Value| metadata_of(fields).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
        for name in ["team-a", "a.b-1.c", &"x".repeat(253)] {
            assert!(metadata_of(json!({"name": name, "labels": {}})).is_empty(), "{name}");
        }
        for name in ["Team_A", "-a", "a.", "a..b", &"x".repeat(254)] {
            assert_eq!(found(json!({"name": name})), ["/metadata/name"], "{name}");
        }
        let misspelt = metadata_of(json!({"name": "a", "lables": {}}));
        assert_eq!(misspelt, [("/metadata/lables".to_owned(), "is not known: did you mean labels?".to_owned())]);
    }

    #[test]
    fn value_of_another_type_is_named_with_what_to_write() {
        let of = |field: &str, value: Value| wrong_type(&schema()["properties"][field], &value);
        assert_eq!(of("count", json!("seven")).unwrap(), "is the text \"seven\": write a whole number without quotes");
        assert!(of("name", json!(true)).unwrap().starts_with("is true: write a text"));
        assert!(of("count", json!(1.5)).is_some() && of("size", json!(1.5)).is_some());
        assert_eq!((of("size", json!("10Gi")), of("size", json!(10)), of("count", json!(3))), (None, None, None));
    }
}
