//! YAML values with their lines. Fields are named by JSON pointers, such as `/spec/gpus/0/count`.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::{Finding, Text};

/// Most objects and lists within each other, as in the API server's JSON.
const MAX_DEPTH: usize = 128;

/// Most values that aliases of one file stand for: a manifest has few, and each costs time.
const MOST_ANCHORED: usize = 100_000;

/// A value in a file.
#[derive(Clone, Debug)]
pub struct Located {
    /// The file.
    pub file: String,
    /// The value.
    pub value: Value,
    lines: Lines,
}

/// The line of a value, from 1, and those of its fields and items. A field's is that of its key.
#[derive(Clone, Debug, Default)]
struct Lines {
    line: u64,
    below: BTreeMap<String, Lines>,
}

impl Located {
    /// All documents of a file.
    pub fn read(text: &Text) -> Result<Vec<Self>, Finding> {
        // A snapshot of a large fleet is larger than the parser's limits for configuration files. Nesting has a limit, because each level
        // takes stack.
        let budget = serde_saphyr::budget! {
            max_reader_input_bytes: None,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            enforce_alias_anchor_ratio: false,
            max_recorded_anchor_events: MOST_ANCHORED,
            max_depth: MAX_DEPTH,
        };
        let options = serde_saphyr::options! { budget: budget, with_snippet: false };
        let file = || text.name.clone();
        match serde_saphyr::from_multiple_with_options::<Node>(&text.text, options) {
            Ok(nodes) => {
                Ok(nodes.into_iter().map(|Node { value, lines }| Self { file: file(), value, lines }).collect())
            }
            Err(error) => Err(Finding {
                file: file(),
                line: error.location().map_or(1, |l| l.line()),
                object: String::new(),
                field: String::new(),
                message: explained(&error.without_snippet().to_string()),
            }),
        }
    }

    /// The text at a pointer.
    pub fn text(&self, pointer: &str) -> Option<&str> {
        self.value.pointer(pointer)?.as_str()
    }

    /// The items of a list.
    pub fn into_items(mut self) -> impl Iterator<Item = Self> {
        let items = self.value.get_mut("items").map(Value::take);
        let items = if let Some(Value::Array(items)) = items { items } else { Vec::new() };
        let mut lines = self.lines.below.remove("items").unwrap_or_default().below;
        items.into_iter().enumerate().map(move |(index, value)| Self {
            file: self.file.clone(),
            value,
            lines: lines.remove(&index.to_string()).unwrap_or_default(),
        })
    }

    /// Line of the deepest part of a pointer that exists.
    pub fn line(&self, pointer: &str) -> u64 {
        let mut lines = &self.lines;
        for token in pointer.split('/').skip(1) {
            let Some(below) = lines.below.get(&name(token)) else { break };
            lines = below;
        }
        lines.line
    }

    /// Kind and name of the object.
    pub fn object(&self) -> String {
        let name = self.text("/metadata/name").unwrap_or("(no name)");
        format!("{} {name}", self.text("/kind").unwrap_or("object"))
    }

    /// A finding on a field.
    pub fn finding(&self, pointer: &str, message: impl Into<String>) -> Finding {
        Finding {
            file: self.file.clone(),
            line: self.line(pointer),
            object: self.object(),
            field: field_path(pointer),
            message: message.into(),
        }
    }
}

/// An error of the parser in words. Its own text about limits has names of Rust.
fn explained(error: &str) -> String {
    if error.contains("budget breached") && (error.contains("Anchor") || error.contains("Alias")) {
        return "the aliases of this file stand for too many objects: write the fields out, without aliases (*name)"
            .to_owned();
    }
    if error.contains("budget breached") {
        return format!("the file is nested deeper than {MAX_DEPTH} levels, or larger than can be read: split it");
    }
    error.to_owned()
}

/// The name of a field as a part of a pointer.
pub fn token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn name(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// A pointer as manifests and messages have it: `spec.gpus[0].count`.
pub fn field_path(pointer: &str) -> String {
    let mut text = String::new();
    for token in pointer.split('/').skip(1) {
        match token.parse::<usize>() {
            Ok(index) => text.push_str(&format!("[{index}]")),
            Err(_) if text.is_empty() => text = name(token),
            Err(_) => text.push_str(&format!(".{}", name(token))),
        }
    }
    text
}

struct Node {
    value: Value,
    lines: Lines,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value: Content(value, below), referenced, .. } = Spanned::deserialize(deserializer)?;
        Ok(Self { value, lines: Lines { line: referenced.line(), below } })
    }
}

/// A value and the lines below it.
struct Content(Value, BTreeMap<String, Lines>);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

fn scalar(value: impl Into<Value>) -> Content {
    Content(value.into(), BTreeMap::new())
}

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Content, E> {
        Ok(scalar(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Content, E> {
        Ok(scalar(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Content, E> {
        Ok(scalar(v))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Content, E> {
        Ok(scalar(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<Content, E> {
        Ok(scalar(v))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(scalar(()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Content, A::Error> {
        let (mut items, mut below) = (Vec::new(), BTreeMap::new());
        while let Some(Node { value, lines }) = access.next_element()? {
            below.insert(items.len().to_string(), lines);
            items.push(value);
        }
        Ok(Content(Value::Array(items), below))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Content, A::Error> {
        let (mut fields, mut below) = (serde_json::Map::new(), BTreeMap::new());
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            let Node { value, lines } = access.next_value()?;
            below.insert(key.value.clone(), Lines { line: key.referenced.line(), ..lines });
            fields.insert(key.value, value);
        }
        Ok(Content(Value::Object(fields), below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn located_has_lines_of_keys_and_items() {
        let text = "a: 1\nb:\n  - {c: x}\n  - c/d: true\n    e: null\n";
        let documents = Located::read(&Text { name: "file".into(), text: text.into() }).unwrap();
        let [document] = &documents[..] else { panic!("{documents:?}") };
        assert_eq!(document.value, serde_json::json!({"a": 1, "b": [{"c": "x"}, {"c/d": true, "e": null}]}));
        for (pointer, line) in [("/a", 1), ("/b/0/c", 3), ("/b/1/c~1d", 4), ("/b/1/e", 5), ("/b/1/missing", 4)] {
            assert_eq!(document.line(pointer), line, "{pointer}");
        }
        assert_eq!(field_path("/b/1/c~1d"), "b[1].c/d");
    }
}
