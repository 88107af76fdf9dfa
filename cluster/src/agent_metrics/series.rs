//! Prometheus' text format, as far as the agents use it: gauges and counters, a line each.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

/// The metrics of one agent.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    /// Its node.
    pub node: String,
    /// The series.
    pub samples: Vec<Sample>,
}

/// A value of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

impl Agent {
    /// The metrics in this text; lines that are none of the product's are left out.
    pub fn parse(node: &str, text: &str) -> Self {
        let lines = text.lines().filter(|line| line.starts_with("gputenancy_"));
        Self { node: node.to_owned(), samples: lines.filter_map(sample).collect() }
    }

    /// The samples of a metric.
    pub fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }
}

impl Sample {
    /// The value of a label; empty if it has none, as Prometheus has it.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

impl fmt::Display for Sample {
    /// A line of the text format, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, labels, value } = self;
        f.write_str(name)?;
        for (at, (label, text)) in labels.iter().enumerate() {
            write!(f, "{}{label}=\"", if at == 0 { '{' } else { ',' })?;
            for character in text.chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    '"' => f.write_str("\\\"")?,
                    '\n' => f.write_str("\\n")?,
                    other => f.write_char(other)?,
                }
            }
            f.write_char('"')?;
        }
        write!(f, "{} {value}", if labels.is_empty() { "" } else { "}" })
    }
}

/// Reads a line `name{label="value",…} number`; `None`: it is none.
pub fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        while !rest.starts_with('}') {
            let (label, value) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, after) = quoted(value)?;
            labels.insert(label.to_owned(), value);
            rest = after;
        }
        rest = rest.get(1..)?;
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The text up to the next quotation mark that is not escaped, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut escaped) = (String::new(), false);
    for (at, character) in text.char_indices() {
        match (escaped, character) {
            (false, '\\') => escaped = true,
            (false, '"') => return Some((value, text.get(at + 1..)?)),
            (true, 'n') => {
                value.push('\n');
                escaped = false;
            }
            (_, other) => {
                value.push(other);
                escaped = false;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_with_escapes_and_lines_without_labels_are_read() {
        let text = "# HELP gputenancy_x X.\n# TYPE gputenancy_x gauge\ngputenancy_x{uuid=\"GPU-a\",pod=\"a\\\"b,c}\\\\\"} 0.5\n\
            gputenancy_usage_sample_seconds_count 3\nother{a=\"b\"} 1\ngputenancy_broken{a=\"b} 1\ngputenancy_y{} 1e3\n# EOF\n";
        let agent = Agent::parse("n", text);
        let names: Vec<(&str, f64)> = agent.samples.iter().map(|s| (s.name.as_str(), s.value)).collect();
        assert_eq!(
            names,
            [("gputenancy_x", 0.5), ("gputenancy_usage_sample_seconds_count", 3.0), ("gputenancy_y", 1000.0)]
        );
        let written: Vec<String> = agent.samples.iter().map(ToString::to_string).collect();
        assert_eq!(Agent::parse("n", &written.join("\n")).samples, agent.samples);
        assert_eq!((agent.samples[0].label("pod"), agent.samples[0].label("none")), ("a\"b,c}\\", ""));
    }
}
