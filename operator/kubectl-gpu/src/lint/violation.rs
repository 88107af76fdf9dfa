//! The fields that break a rule: the smallest parts of an object without which the rule holds.
//!
//! CEL reports that a rule does not hold, and not why. So parts are removed until it holds.

use serde_json::Value;

use crate::input::token;

/// A part of an object that breaks the rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Violation {
    /// Its JSON pointer.
    pub pointer: String,
    /// The object without the other parts that break the rule.
    pub alone: Value,
}

/// The parts of `object` that break a rule; `holds`: whether the rule holds for an object, `None` if it cannot be evaluated.
pub(super) fn violations(object: &Value, holds: &dyn Fn(&Value) -> Option<bool>) -> Vec<Violation> {
    let pointers = Search { object, holds }.within("", &[], false);
    let alone = |pointer: &String| {
        let others: Vec<String> = pointers.iter().filter(|p| *p != pointer).cloned().collect();
        without(object, "", &others)
    };
    pointers.iter().map(|pointer| Violation { pointer: pointer.clone(), alone: alone(pointer) }).collect()
}

struct Search<'a> {
    object: &'a Value,
    holds: &'a dyn Fn(&Value) -> Option<bool>,
}

impl Search<'_> {
    fn outcome(&self, removed: &[String]) -> Option<bool> {
        (self.holds)(&without(self.object, "", removed))
    }

    /// The violations at or below `pointer`, where the rule does not hold although `removed` is left out. `sure`: it holds without
    /// the part at `pointer`.
    fn within(&self, pointer: &str, removed: &[String], sure: bool) -> Vec<String> {
        let children = children(self.object, pointer);
        let and = |more: &[String]| [removed, more].concat();
        // a rule that cannot be evaluated without a part reads it: the violation may be below
        for wanted in [Some(true), None].into_iter().take(if sure { 1 } else { 2 }) {
            if let Some(child) = children.iter().find(|c| self.outcome(&and(&[(*c).clone()])) == wanted) {
                return self.within(child, removed, wanted.is_some());
            }
        }
        if children.is_empty() || self.outcome(&and(&children)) == Some(false) {
            return vec![pointer.to_owned()];
        }
        // several children break the rule, each on its own
        let mut violating = children.clone();
        for child in &children {
            let fewer: Vec<String> = violating.iter().filter(|c| *c != child).cloned().collect();
            if self.outcome(&and(&fewer)) != Some(false) {
                violating = fewer;
            }
        }
        let others = |child: &String| and(&violating.iter().filter(|c| *c != child).cloned().collect::<Vec<_>>());
        violating.iter().flat_map(|child| self.within(child, &others(child), false)).collect()
    }
}

/// The fields or items at a pointer. Items come from the last to the first: the last is the one too many.
fn children(object: &Value, pointer: &str) -> Vec<String> {
    match object.pointer(pointer) {
        Some(Value::Object(fields)) => fields.keys().map(|name| format!("{pointer}/{}", token(name))).collect(),
        Some(Value::Array(items)) => (0..items.len()).rev().map(|index| format!("{pointer}/{index}")).collect(),
        _ => Vec::new(),
    }
}

fn without(value: &Value, pointer: &str, removed: &[String]) -> Value {
    let kept = |token: &str, value: &Value| {
        let pointer = format!("{pointer}/{token}");
        (!removed.contains(&pointer)).then(|| without(value, &pointer, removed))
    };
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| Some((name.clone(), kept(&token(name), value)?));
            Value::Object(fields.iter().filter_map(field).collect())
        }
        Value::Array(items) => {
            let item = |(index, item): (usize, &Value)| kept(&index.to_string(), item);
            Value::Array(items.iter().enumerate().filter_map(item).collect())
        }
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::input::{
        field_path,
        rule::{self, Rule},
    };

    fn paths(rule: &str, object: &Value) -> Vec<String> {
        let rule = Rule::parse(rule);
        let holds = |object: &Value| {
            let mut context = rule::context();
            context.add_variable_from_value("object", rule::value(object));
            rule.holds(&context).ok()
        };
        assert_eq!(holds(object), Some(false));
        violations(object, &holds).iter().map(|c| field_path(&c.pointer)).collect()
    }

    #[test]
    fn violation_of_broken_rule_is_the_deepest_field() {
        let object = json!({"a": {"x": 1, "l": [{"n": "good", "v": 1}, {"n": "bad"}, {"n": "worse"}]}, "b": {"x": 2}});
        let all = "object.a.l.all(i, !(i.n in ['bad', 'worse']))";
        assert_eq!(paths(all, &object), ["a.l[2].n", "a.l[1].n"]);
        assert_eq!(paths(&all.replace(", 'worse'", ""), &object), ["a.l[1].n"]);
        assert_eq!(paths("object.?b.?x.orValue(0) == 0", &object), ["b.x"]);
        assert_eq!(paths("object.a.l.size() < 3", &object), ["a.l[2]"]);
        assert_eq!(paths("has(object.c)", &object), [""]);
        assert_eq!(paths("object.a.l.all(i, has(i.v))", &object), ["a.l[2]", "a.l[1]"]);
    }
}
