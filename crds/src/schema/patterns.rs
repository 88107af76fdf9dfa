//! Patterns of texts with what to write instead.
//!
//! The API server reports a broken `pattern` of a schema with the regular expression. So a pattern becomes a CEL rule with a message.

use serde_json::{Map, Value, json};

/// Each pattern with what its message says to write.
const FORMS: &[(&str, &str)] = &[
    (
        r"^\+?(0|(([0-9]{1,15}(\.[0-9]{0,9})?|\.[0-9]{1,9})(ns|us|µs|μs|ms|s|m|h))+)$",
        "write a duration, numbers with the unit ms, s, m or h, such as 90s, 15m or 24h",
    ),
    (
        r"^(\*|[0-9]{1,2}(-[0-9]{1,2})?(,[0-9]{1,2}(-[0-9]{1,2})?)*)$",
        "write indexes of GPUs, such as 0, 0-3, 0,2,4-7, or * for all",
    ),
    (
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "write a name of lower-case letters, digits and dashes that begins and ends with a letter or digit, such as team-a",
    ),
    (
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "write a DNS name of lower-case letters, digits, dashes and dots, such as team-a.example.com",
    ),
    (
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "write a resource with its domain, such as gputenancy.io/small",
    ),
    (r"^[1-8]g\.[0-9]{1,4}gb([+-][a-z]+([.][a-z]+)*)?$", "write NVIDIA's name of a MIG profile, such as 1g.10gb"),
    (r"^[0-9]+(\.[0-9]{1,6})?$", "write a decimal number as text, such as \"0.51\""),
    (r"^[A-Z]{3}$", "write a currency code of ISO 4217, such as USD"),
    (r"^[0-9]+\.[0-9]+\.[0-9]+$", "write a version with three numbers, such as 0.36.1"),
];

/// Replaces the patterns of texts by rules with messages that name the field, and tells defaults in descriptions: `kubectl explain` shows no
/// other. Dates keep their pattern, as CEL takes a text of this format for a timestamp. Quantities keep their pattern: the cost that the API server estimates for a rule on a number or text is beyond its limit.
pub(crate) fn explain(schema: &mut Value, field: &str) {
    let Value::Object(node) = schema else { return };
    tell_default(node);
    if node.get("type").is_some_and(|t| t == "string")
        && let Some(form) = node.get("pattern").and_then(Value::as_str)
        && let Some((pattern, instead)) = FORMS.iter().find(|(pattern, _)| *pattern == form)
    {
        node.remove("pattern");
        require(node, &matches(pattern), &format!("{field}: {instead}"));
    }
    let named = |name: &str| format!("{field}.{name}");
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        properties.iter_mut().for_each(|(name, schema)| explain(schema, &named(name)));
    }
    for below in ["items", "additionalProperties"] {
        if let Some(schema) = node.get_mut(below) {
            explain(schema, field);
        }
    }
}

/// A CEL expression. Escaped characters become character classes, because a text of CEL reads a backslash itself.
fn matches(pattern: &str) -> String {
    let plain = pattern.replace(r"\.", "[.]").replace(r"\+", "[+]").replace(r"\*", "[*]");
    format!("self.matches('{plain}')")
}

/// Adds a rule in front of the others, which then hold while it is broken: one mistake has one message.
fn require(node: &mut Map<String, Value>, rule: &str, message: &str) {
    let mut rules = vec![json!({"rule": rule, "message": message})];
    if let Some(Value::Array(others)) = node.remove("x-kubernetes-validations") {
        rules.extend(others.into_iter().map(|mut other| {
            if let Some(Value::String(text)) = other.get_mut("rule") {
                *text = format!("!{rule} || ({text})");
            }
            other
        }));
    }
    node.insert("x-kubernetes-validations".into(), rules.into());
}

/// Adds the default of a number, text or switch to a description that does not have it.
fn tell_default(node: &mut Map<String, Value>) {
    let has_default = |text: &str| text.contains("Default") || text.contains("default:");
    let default = match node.get("default") {
        Some(Value::String(text)) if text.is_empty() => return,
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
        _ => return,
    };
    if let Some(Value::String(text)) =
        node.get_mut("description").filter(|text| !text.as_str().is_some_and(has_default))
    {
        text.push_str(&format!(" Default: {default}."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_becomes_a_rule_in_front_of_the_others_with_the_field_in_its_message() {
        let mut schema = json!({"properties": {"soak": {
            "type": "string", "pattern": FORMS[0].0, "description": "Time.", "default": "30m",
            "x-kubernetes-validations": [{"rule": "duration(self) <= duration('1h')", "message": "too long"}],
        }}});
        explain(&mut schema, "spec");
        let soak = &schema["properties"]["soak"];
        assert_eq!(soak["pattern"], Value::Null);
        assert_eq!(soak["description"], "Time. Default: 30m.");
        let rules = soak["x-kubernetes-validations"].as_array().unwrap();
        assert!(rules[0]["message"].as_str().unwrap().starts_with("spec.soak: write a duration"));
        let (first, second) = (rules[0]["rule"].as_str().unwrap(), rules[1]["rule"].as_str().unwrap());
        assert_eq!(second, format!("!{first} || (duration(self) <= duration('1h'))"));
        assert!(!first.contains('\\'), "{first}");
    }

    #[test]
    fn default_is_written_once() {
        let mut schema = json!({"description": "How many. Default: one for each GPU.", "default": 1});
        explain(&mut schema, "spec.count");
        assert_eq!(schema["description"], "How many. Default: one for each GPU.");
    }
}
