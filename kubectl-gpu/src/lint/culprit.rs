//! The fields that break a rule: the smallest parts of an object without which the rule holds.
//!
//! CEL tells that a rule does not hold, and not why. So parts are taken away until it does.

use serde_json::Value;

use crate::input::Step;

type Path = Vec<Step>;

/// A part of an object that breaks the rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Culprit {
    /// Where it is.
    pub path: Path,
    /// The object without the other parts that break the rule.
    pub alone: Value,
}

/// The parts of `object` that break a rule; `holds`: whether the rule holds for an object, `None` if it cannot be evaluated.
pub(super) fn culprits(object: &Value, holds: &dyn Fn(&Value) -> Option<bool>) -> Vec<Culprit> {
    let paths = Search { object, holds }.within(Path::new(), &[], false);
    let alone = |path: &Path| {
        let others: Vec<Path> = paths.iter().filter(|p| *p != path).cloned().collect();
        without(object, &mut Path::new(), &others)
    };
    paths.iter().map(|path| Culprit { path: path.clone(), alone: alone(path) }).collect()
}

struct Search<'a> {
    object: &'a Value,
    holds: &'a dyn Fn(&Value) -> Option<bool>,
}

impl Search<'_> {
    fn outcome(&self, removed: &[Path]) -> Option<bool> {
        (self.holds)(&without(self.object, &mut Path::new(), removed))
    }

    /// Paths of the culprits at or below `path`, where the rule does not hold although `removed` is taken away. `sure`: it holds
    /// without the part at `path`.
    fn within(&self, path: Path, removed: &[Path], sure: bool) -> Vec<Path> {
        let children = children(self.object, &path);
        let and = |more: &[Path]| [removed, more].concat();
        // a rule that cannot be evaluated without a part reads it: the culprit may be below
        for wanted in [Some(true), None].into_iter().take(if sure { 1 } else { 2 }) {
            if let Some(child) = children.iter().find(|c| self.outcome(&and(&[(*c).clone()])) == wanted) {
                return self.within(child.clone(), removed, wanted.is_some());
            }
        }
        if children.is_empty() || self.outcome(&and(&children)) == Some(false) {
            return vec![path];
        }
        // several children break the rule, each on its own
        let mut guilty = children.clone();
        for child in &children {
            let fewer: Vec<Path> = guilty.iter().filter(|c| *c != child).cloned().collect();
            if self.outcome(&and(&fewer)) != Some(false) {
                guilty = fewer;
            }
        }
        let others = |child: &Path| and(&guilty.iter().filter(|c| *c != child).cloned().collect::<Vec<_>>());
        guilty.iter().flat_map(|child| self.within(child.clone(), &others(child), false)).collect()
    }
}

/// Paths of the fields or items at a path. Items come from the last to the first: the last is the one too many.
fn children(object: &Value, path: &Path) -> Vec<Path> {
    let part = path.iter().try_fold(object, |value, step| match step {
        Step::Field(name) => value.get(name),
        Step::Item(index) => value.get(index),
    });
    let below = |step: Step| [path.clone(), vec![step]].concat();
    match part {
        Some(Value::Object(fields)) => fields.keys().map(|name| below(Step::Field(name.clone()))).collect(),
        Some(Value::Array(items)) => (0..items.len()).rev().map(|index| below(Step::Item(index))).collect(),
        _ => Vec::new(),
    }
}

fn without(value: &Value, path: &mut Path, removed: &[Path]) -> Value {
    let mut kept = |step: Step, value: &Value| {
        path.push(step);
        let kept = (!removed.contains(path)).then(|| without(value, path, removed));
        path.pop();
        kept
    };
    match value {
        Value::Object(fields) => {
            let field =
                |(name, value): (&String, &Value)| Some((name.clone(), kept(Step::Field(name.clone()), value)?));
            Value::Object(fields.iter().filter_map(field).collect())
        }
        Value::Array(items) => {
            Value::Array(items.iter().enumerate().filter_map(|(index, item)| kept(Step::Item(index), item)).collect())
        }
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        input::written,
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
        culprits(object, &holds).iter().map(|c| written(&c.path)).collect()
    }

    #[test]
    fn culprit_of_broken_rule_is_the_deepest_field() {
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
