//! YAML as a tree with line numbers.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// A value and the line on which it begins.
#[derive(Clone, Debug)]
pub struct Tree {
    /// From 1.
    pub line: u64,
    node: Node,
}

#[derive(Clone, Debug)]
enum Node {
    Scalar(Value),
    List(Vec<Tree>),
    /// Keys with their own lines: a mistake in a value is reported at its key.
    Fields(Vec<(String, u64, Tree)>),
}

impl Tree {
    /// The value alone.
    pub fn value(&self) -> Value {
        match &self.node {
            Node::Scalar(value) => value.clone(),
            Node::List(items) => Value::Array(items.iter().map(Tree::value).collect()),
            Node::Fields(fields) => {
                Value::Object(fields.iter().map(|(k, _, v)| (k.clone(), v.value())).collect::<Map<_, _>>())
            }
        }
    }

    /// A field of a map.
    pub fn field(&self, name: &str) -> Option<&Tree> {
        let Node::Fields(fields) = &self.node else { return None };
        fields.iter().find(|(key, ..)| key == name).map(|(.., value)| value)
    }

    /// A field that is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match &self.field(name)?.node {
            Node::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The items of a list.
    pub fn items(&self) -> &[Tree] {
        let Node::List(items) = &self.node else { return &[] };
        items
    }

    /// Line of the deepest part of a path that exists.
    pub fn line_of(&self, path: &[Step]) -> u64 {
        let Some((first, rest)) = path.split_first() else { return self.line };
        match (first, &self.node) {
            (Step::Field(name), Node::Fields(fields)) => match fields.iter().find(|(key, ..)| key == name) {
                Some((_, line, _)) if rest.is_empty() => *line,
                Some((.., value)) => value.line_of(rest),
                None => self.line,
            },
            (Step::Item(index), Node::List(items)) => items.get(*index).map_or(self.line, |i| i.line_of(rest)),
            _ => self.line,
        }
    }
}

/// One step of a path into a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A field of a map.
    Field(String),
    /// An item of a list.
    Item(usize),
}

/// A path as text: `spec.gpus[0].count`.
pub fn written(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Field(name) if text.is_empty() => text.push_str(name),
            Step::Field(name) => text.push_str(&format!(".{name}")),
            Step::Item(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Node>::deserialize(deserializer)?;
        Ok(Self { line: referenced.line(), node: value })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Node, E> {
        Ok(Node::Scalar(v.into()))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Node, E> {
        Ok(Node::Scalar(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Node, E> {
        Ok(Node::Scalar(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Number::from_f64(v).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, v: &str) -> Result<Node, E> {
        Ok(Node::Scalar(v.into()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            fields.push((key.value, key.referenced.line(), access.next_value()?));
        }
        Ok(Node::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_has_lines_of_keys_and_items() {
        let text = "a: 1\nb:\n  - {c: x}\n  - c: true\n    d: null\n";
        let tree: Tree = serde_saphyr::from_str(text).unwrap();
        assert_eq!(tree.value(), serde_json::json!({"a": 1, "b": [{"c": "x"}, {"c": true, "d": null}]}));
        let field = |name: &str| Step::Field(name.into());
        assert_eq!(tree.line_of(&[field("a")]), 1);
        assert_eq!(tree.line_of(&[field("b"), Step::Item(0), field("c")]), 3);
        assert_eq!(tree.line_of(&[field("b"), Step::Item(1), field("d")]), 5);
        assert_eq!(tree.line_of(&[field("b"), Step::Item(1), field("missing")]), 4);
    }
}
