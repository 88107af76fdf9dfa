//! Whole objects. What the API server has may include defaults and fields of other writers.

use serde_json::Value;

use super::amount;

/// Has the live value everything that is wanted, with equal content? Lists are equal in length and order.
pub fn includes(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, value)| match live.get(key) {
            Some(present) => includes(present, value),
            // the API server leaves out what is empty
            None => is_empty(value),
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(l, w)| includes(l, w))
        }
        (Value::Null, wanted) => is_empty(wanted),
        (Value::String(_) | Value::Number(_), Value::String(_) | Value::Number(_)) => {
            live == wanted || same_quantity(live, wanted)
        }
        (live, wanted) => live == wanted,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.values().all(is_empty),
    }
}

/// `1000m` and `1`: the API server writes quantities in its own form.
fn same_quantity(live: &Value, wanted: &Value) -> bool {
    let amount = |value: &Value| value.as_str().map_or_else(|| amount(&value.to_string()), amount);
    matches!((amount(live), amount(wanted)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_empty_fields_are_no_difference() {
        let live = json!({"spec": {"ports": [{"port": 443, "protocol": "TCP"}], "clusterIP": "10.96.0.9"}});
        assert!(includes(&live, &json!({"spec": {"ports": [{"port": 443}], "annotations": {}, "publish": false}})));
        assert!(includes(&json!({"cpu": "1"}), &json!({"cpu": "1000m"})));
        assert!(includes(&json!({"memory": "1Gi"}), &json!({"memory": "1024Mi"})));
    }

    #[test]
    fn changed_and_missing_content_is_a_difference() {
        let live = json!({"spec": {"replicas": 0, "list": [1, 2], "on": true}});
        for wanted in [
            json!({"spec": {"replicas": 1}}),
            json!({"spec": {"list": [1]}}),
            json!({"spec": {"list": [2, 1]}}),
            json!({"spec": {"on": false}}),
            json!({"spec": {"more": "x"}}),
        ] {
            assert!(!includes(&live, &wanted), "{wanted}");
        }
    }
}
