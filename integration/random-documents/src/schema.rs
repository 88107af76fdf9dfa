//! Objects by the structural schema of a CRD. Patterns and CEL rules are not followed: decoders do not know them.

use serde_json::{Map, Value};

use crate::{Choices, tree};

/// Name of a field, and a value, that no release has.
pub const UNKNOWN: &str = "FromANewerRelease";

fn text<'s>(schema: &'s Value, keyword: &str) -> &'s str {
    schema.get(keyword).and_then(Value::as_str).unwrap_or_default()
}

fn flag(schema: &Value, keyword: &str) -> bool {
    schema.get(keyword).and_then(Value::as_bool).unwrap_or_default()
}

fn values(schema: &Value) -> Option<&Vec<Value>> {
    schema.get("enum")?.as_array()
}

/// The schema of a field; `None`: the schema does not name it.
fn field<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    schema.get("properties").and_then(|fields| fields.get(name)).or_else(|| schema.get("additionalProperties"))
}

/// A value that the schema accepts.
pub fn valid(schema: &Value, choices: &mut Choices) -> Value {
    if let Some(values) = values(schema) {
        return choices.pick(values).cloned().unwrap_or_default();
    }
    if flag(schema, "x-kubernetes-preserve-unknown-fields") {
        return Value::Object((0..choices.below(4)).map(|_| (choices.text(), tree(choices, 2))).collect());
    }
    if flag(schema, "x-kubernetes-int-or-string") {
        let amounts = ["10Gi", "50%", "1.5", "500m"];
        let number = choices.once_in(2).then(|| Value::from(choices.below(1000)));
        return number.unwrap_or_else(|| choices.pick(&amounts).copied().unwrap_or_default().into());
    }
    match (text(schema, "type"), text(schema, "format")) {
        ("object", _) => object(schema, choices),
        ("array", _) => {
            let limit = |name| schema.get(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            let (least, most) = (limit("minItems").unwrap_or(0), limit("maxItems").unwrap_or(3).min(3));
            let items = schema.get("items").unwrap_or(&Value::Null);
            (0..least + choices.below(most + 1 - least)).map(|_| valid(items, choices)).collect()
        }
        ("boolean", _) => choices.once_in(2).into(),
        ("integer", format) => integer(schema, format, choices),
        ("string", "date-time") => {
            format!("2026-11-{:02}T08:{:02}:00Z", choices.below(28) + 1, choices.below(60)).into()
        }
        ("string", _) => choices.text().into(),
        _ => Value::Null,
    }
}

fn object(schema: &Value, choices: &mut Choices) -> Value {
    let mut object = Map::new();
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        object.extend((0..choices.below(4)).map(|_| (choices.text(), valid(values, choices))));
    }
    let required = schema.get("required").and_then(Value::as_array);
    let fields = schema.get("properties").and_then(Value::as_object);
    // which fields there are is decided before their content, so that the last ones are not always those without choices
    let chosen: Vec<_> = fields
        .into_iter()
        .flatten()
        .filter(|(name, _)| required.is_some_and(|r| r.iter().any(|r| r == *name)) || choices.once_in(2))
        .collect();
    object.extend(chosen.into_iter().map(|(name, schema)| (name.clone(), valid(schema, choices))));
    Value::Object(object)
}

fn integer(schema: &Value, format: &str, choices: &mut Choices) -> Value {
    let limit = |name| schema.get(name).and_then(Value::as_i64);
    let (low, high) = if format == "int32" { (i32::MIN.into(), i32::MAX.into()) } else { (i64::MIN, i64::MAX) };
    choices.number().clamp(limit("minimum").unwrap_or(low), limit("maximum").unwrap_or(high)).into()
}

/// Calls `visit` for each value that the schema describes, the outermost last.
fn walk(schema: &Value, value: &mut Value, visit: &mut impl FnMut(&Value, &mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(schema) = field(schema, name) {
                    walk(schema, value, visit);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items.iter_mut() {
                    walk(schema, item, visit);
                }
            }
        }
        _ => {}
    }
    visit(schema, value);
}

/// The object with a field that no release has, in the outermost object and in others.
pub fn with_unknown_fields(schema: &Value, object: &Value, choices: &mut Choices) -> Value {
    let mut object = object.clone();
    walk(schema, &mut object, &mut |schema, value| {
        // in a map every key has a meaning
        let (Some(fields), Some(_)) = (value.as_object_mut(), schema.get("properties")) else { return };
        if choices.once_in(2) {
            fields.insert(UNKNOWN.to_owned(), tree(choices, 2));
        }
    });
    if let Some(fields) = object.as_object_mut() {
        fields.insert(UNKNOWN.to_owned(), tree(choices, 2));
    }
    object
}

/// The object with values in place of those of enumerations that no release has.
pub fn with_unknown_values(schema: &Value, object: &Value, choices: &mut Choices) -> Value {
    let mut object = object.clone();
    walk(schema, &mut object, &mut |schema, value| {
        if values(schema).is_some() && choices.once_in(2) {
            *value = UNKNOWN.into();
        }
    });
    object
}

/// The object without values of enumerations, and without what is empty then.
pub fn without_enumerations(schema: &Value, object: &Value) -> Value {
    let mut object = object.clone();
    walk(schema, &mut object, &mut |schema, value| {
        if values(schema).is_some() {
            *value = Value::Null;
        }
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|_, value| !value.is_null() && *value != Value::Object(Map::new()));
        }
    });
    object
}

/// Path of the first value of `object` that `written` lacks. What is empty, or the schema's default, need not be written.
pub fn lost(schema: &Value, object: &Value, written: Option<&Value>, path: &str) -> Option<String> {
    let optional = || {
        let empty = match object {
            Value::Null | Value::Bool(false) => true,
            Value::Number(number) => number.as_i64() == Some(0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(_) | Value::Bool(true) => false,
        };
        empty || values(schema).is_some() || schema.get("default") == Some(object)
    };
    match (object, written) {
        (Value::Object(fields), Some(Value::Object(_)) | None) => fields.iter().find_map(|(name, value)| {
            let schema = field(schema, name).unwrap_or(&Value::Null);
            lost(schema, value, written.and_then(|w| w.get(name)), &format!("{path}.{name}"))
        }),
        (_, None | Some(Value::Null)) if optional() => None,
        (Value::Array(items), Some(Value::Array(others))) => {
            let schema = schema.get("items").unwrap_or(&Value::Null);
            let item = |(at, item): (usize, &Value)| lost(schema, item, others.get(at), &format!("{path}[{at}]"));
            items.iter().enumerate().find_map(item)
        }
        // a quantity is written as a text
        (Value::Number(number), Some(Value::String(text))) if number.to_string() == *text => None,
        (value, Some(other)) if value == other => None,
        _ => Some(format!("{path}: {object} became {written:?}")),
    }
}
