//! Differences of two specs, by field.

use std::collections::BTreeSet;

use serde_json::Value;

/// Fields by which lists of objects are keyed in these kinds.
const KEYS: [&str; 4] = ["profile", "name", "gpus", "key"];
/// Longest value in a difference.
const LONGEST: usize = 48;

/// Fields that differ, such as `gpus[mig-3g].count: 2 → 7`, in order of their names.
pub(super) fn fields(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk("", Some(old), Some(new), &mut found);
    found
}

fn walk(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<String>) {
    match (old, new) {
        (Some(old), Some(new)) if old == new => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(&below, a.get(key), b.get(key), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if keyed(a) && keyed(b) => {
            for key in a.iter().chain(b).filter_map(key_of).collect::<BTreeSet<_>>() {
                let mine = |item: &&Value| key_of(item) == Some(key);
                walk(&format!("{path}[{key}]"), a.iter().find(mine), b.iter().find(mine), found);
            }
        }
        (old, new) => found.push(format!("{path}: {} → {}", text(old), text(new))),
    }
}

fn keyed(items: &[Value]) -> bool {
    let keys: BTreeSet<_> = items.iter().filter_map(key_of).collect();
    keys.len() == items.len()
}

fn key_of(item: &Value) -> Option<&str> {
    KEYS.iter().find_map(|key| item.get(key)?.as_str())
}

fn text(value: Option<&Value>) -> String {
    let full = match value {
        None | Some(Value::Null) => return "nothing".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) => {
            let mut pairs: Vec<String> = fields.iter().map(|(k, v)| format!("{k}: {}", text(Some(v)))).collect();
            pairs.sort();
            format!("{{{}}}", pairs.join(", "))
        }
        Some(Value::Array(items)) => {
            let items: Vec<String> = items.iter().map(|v| text(Some(v))).collect();
            format!("[{}]", items.join(", "))
        }
        Some(other) => other.to_string(),
    };
    if full.chars().count() <= LONGEST { full } else { full.chars().take(LONGEST - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_with_keys_are_compared_by_key() {
        let old = json!({"gpus": [{"profile": "a", "count": 1}, {"profile": "b", "count": 2}], "trust": "Internal"});
        let new =
            json!({"gpus": [{"profile": "b", "count": 7}, {"profile": "a", "count": 1}, {"profile": "c", "count": 1}]});
        assert_eq!(
            fields(&old, &new),
            ["gpus[b].count: 2 → 7", "gpus[c]: nothing → {count: 1, profile: c}", "trust: Internal → nothing"]
        );
        assert_eq!(fields(&new, &new), [""; 0]);
    }

    #[test]
    fn lists_of_words_are_shown_whole() {
        assert_eq!(fields(&json!({"p": ["a"]}), &json!({"p": ["a", "b"]})), ["p: [a] → [a, b]"]);
    }
}
