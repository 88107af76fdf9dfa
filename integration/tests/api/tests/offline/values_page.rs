//! The page of the chart's values: each with the default and the comment of `values.yaml`, and the choices of the schema.

use std::{collections::HashSet, fs};

use e2e::product;
use serde_json::Value;

use crate::offline::{assert_current, chart::chart};

const HEAD: &str = "# Values of the chart

All values of the chart, generated from the comments of [`values.yaml`](../../helm/gputenancy/values.yaml).
[`values.schema.json`](../../helm/gputenancy/values.schema.json) refuses others, and names the value. `null` takes a default away; *missing property* means that the chart needs
the value. Lists in your values replace the default, maps are merged with it.
";
/// Longest default that a table shows.
const LONGEST: usize = 240;

/// A key of the file.
struct Entry {
    /// The keys that lead to it.
    path: Vec<String>,
    /// The comment above it, in one line.
    text: String,
    /// Whether its value is in the same line.
    inline: bool,
}

/// The keys of a file of values in their order. Those inside of lists are no values of the chart, and have paths that lead nowhere.
fn entries(file: &str) -> Vec<Entry> {
    let (mut found, mut above, mut comment) = (Vec::new(), Vec::<(usize, String)>::new(), Vec::new());
    for line in file.lines() {
        let (text, indent) = (line.trim_start(), line.len() - line.trim_start().len());
        if let Some(words) = text.strip_prefix('#') {
            comment.push(words.trim().to_owned());
            continue;
        }
        let words = std::mem::take(&mut comment).join(" ");
        let Some((key, value)) = text.split_once(':').filter(|_| !text.starts_with("- ")) else { continue };
        above.retain(|(outer, _)| *outer < indent);
        above.push((indent, key.to_owned()));
        let path = above.iter().map(|(_, key)| key.clone()).collect();
        found.push(Entry { path, text: words, inline: !value.trim().is_empty() });
    }
    found
}

fn below<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// A comment as the text of a cell, with links to the pages that it names.
fn prose(text: &str) -> String {
    let escaped = text.replace('|', "\\|").replace('*', "\\*").replace('<', "&lt;");
    let link = |word: &str| {
        let Some(start) = word.find("docs/") else { return word.to_owned() };
        let (before, rest) = word.split_at(start);
        let end = rest.find([')', ',', ';', ':']).unwrap_or_else(|| rest.trim_end_matches('.').len());
        let (page, after) = rest.split_at(end);
        format!("{before}[{page}](../{}){after}", page.trim_start_matches("docs/"))
    };
    escaped.split(' ').map(link).collect::<Vec<_>>().join(" ")
}

fn default_of(value: &Value) -> String {
    let json = value.to_string();
    match value {
        Value::Array(list) if json.len() > LONGEST => {
            format!("{} {}", list.len(), if list.len() == 1 { "entry" } else { "entries" })
        }
        Value::Object(map) if json.len() > LONGEST => format!("{} keys", map.len()),
        Value::String(text) if text.is_empty() => String::new(),
        Value::String(text) => format!("`{text}`"),
        _ => format!("`{}`", json.replace('|', "\\|")),
    }
}

fn choices(schema: &Value) -> String {
    let texts = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).map(|text| format!("`{text}`")).collect();
    if texts.is_empty() { String::new() } else { format!(" One of {}.", texts.join(", ")) }
}

/// The page, and the values that lack a comment.
fn page(file: &str, schema: &Value) -> (String, Vec<String>) {
    let values: Value = serde_saphyr::from_str(file).unwrap();
    let (mut text, mut silent, mut leaves) = (HEAD.to_owned(), Vec::new(), HashSet::<Vec<String>>::new());
    let table = "\n| value | default | meaning |\n|---|---|---|\n";
    let mut open = false;
    for Entry { path, text: words, inline } in entries(file) {
        let Some(value) = below(&values, &path) else { continue };
        if leaves.iter().any(|leaf| path.starts_with(leaf)) {
            continue;
        }
        let known = path.iter().try_fold(schema, |schema, key| schema["properties"].get(key));
        let known = known.unwrap_or(&Value::Null);
        let (name, is_map) = (path.join("."), value.is_object() && !inline && known["properties"].is_object());
        if !is_map {
            leaves.insert(path.clone());
        }
        if is_map && path.len() == 1 {
            text += &format!("\n## `{name}`\n\n{}\n", prose(&words));
            open = false;
            continue;
        }
        // a map inside of a section says nothing of its own unless it has a comment
        if is_map && words.is_empty() {
            continue;
        }
        if words.is_empty() {
            silent.push(name.clone());
        }
        if !open {
            text += table;
            open = true;
        }
        let default = if is_map { String::new() } else { default_of(value) };
        text += &format!("| `{name}` | {default} | {}{} |\n", prose(&words), choices(known)).replace("|  |", "| |");
    }
    (text, silent)
}

#[test]
fn page_lists_each_value_with_its_default_and_meaning() {
    let file = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let schema = serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap();
    let (text, silent) = page(&file, &schema);
    assert_eq!(silent, Vec::<String>::new(), "values without a comment in values.yaml");
    for section in schema["properties"].as_object().unwrap().keys() {
        let listed = [format!("\n## `{section}`\n"), format!("\n| `{section}` |")].iter().any(|l| text.contains(l));
        assert!(listed, "{section}");
    }
    assert_current(&product::root().join("docs/reference/values.md"), &text);
}

#[test]
fn page_reads_comments_maps_and_lists() {
    let file = "# Not of a value.\n\n# Of one.\none: 1\n# A map,\n# see docs/a.md#b.\nmap:\n  # Two | three*.\n  two: {a: b}\n  \
                list:\n    - three: 4\n      five: 6\n";
    let schema = serde_json::json!({"properties": {"one": {"enum": ["", "x", "y"]},
        "map": {"properties": {"two": {"properties": {"a": {}}}, "list": {}}}}});
    let (text, silent) = page(file, &schema);
    let table = "\n| value | default | meaning |\n|---|---|---|\n";
    let expected = format!(
        "{HEAD}{table}| `one` | `1` | Of one. One of `x`, `y`. |\n\n## `map`\n\nA map, see [docs/a.md#b](../a.md#b).\n{table}\
         | `map.two` | `{{\"a\":\"b\"}}` | Two \\| three\\*. |\n| `map.list` | `[{{\"five\":6,\"three\":4}}]` | |\n"
    );
    assert_eq!(text, expected);
    assert_eq!(silent, ["map.list"]);
}
