//! Documents that a decoder has to refuse, or may.

use serde_json::{Map, Value};

use crate::Choices;

/// A tree of any shape.
pub fn tree(choices: &mut Choices, depth: usize) -> Value {
    match choices.below(if depth == 0 { 6 } else { 9 }) {
        0 => Value::Null,
        1 => choices.once_in(2).into(),
        2 => choices.number().into(),
        3 => (f64::from(i32::try_from(choices.below(1000)).unwrap_or_default()) / 4.0).into(),
        4 | 5 => choices.text().into(),
        6 => (0..choices.below(4)).map(|_| tree(choices, depth - 1)).collect(),
        _ => {
            let field = |choices: &mut Choices| (choices.text(), tree(choices, depth - 1));
            Value::Object((0..choices.below(4)).map(|_| field(choices)).collect())
        }
    }
}

/// The document with a few values replaced, removed, doubled, or under another name.
pub fn mutated(mut document: Value, choices: &mut Choices) -> Value {
    for _ in 0..=choices.below(3) {
        mutate(&mut document, choices);
    }
    document
}

fn mutate(value: &mut Value, choices: &mut Choices) {
    let deeper = !choices.once_in(5);
    match value {
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let at = choices.below(fields.len());
            let Some(name) = fields.keys().nth(at).cloned() else { return };
            match choices.below(8) {
                0 => drop(fields.remove(&name)),
                1 => rename(fields, &name, choices.text()),
                _ => {
                    if let Some(field) = fields.get_mut(&name) {
                        mutate(field, choices);
                    }
                }
            }
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = choices.below(items.len());
            match choices.below(8) {
                0 => drop(items.remove(at)),
                1 => items.extend(items.get(at).cloned()),
                _ => {
                    if let Some(item) = items.get_mut(at) {
                        mutate(item, choices);
                    }
                }
            }
        }
        other => *other = tree(choices, 2),
    }
}

fn rename(fields: &mut Map<String, Value>, name: &str, new: String) {
    if let Some(value) = fields.remove(name) {
        fields.insert(new, value);
    }
}

/// The bytes with a few changed, inserted, removed or cut off.
pub fn damaged(mut bytes: Vec<u8>, choices: &mut Choices) -> Vec<u8> {
    for _ in 0..=choices.below(4) {
        let at = choices.below(bytes.len());
        match choices.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, choices.byte()),
            2 if !bytes.is_empty() => {
                bytes.remove(at);
            }
            3 => bytes.extend(bytes.get(at..).unwrap_or_default().to_vec()),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = choices.byte();
                }
            }
        }
    }
    bytes
}
