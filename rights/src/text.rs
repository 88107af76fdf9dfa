//! Rights and answers for people.

use crate::{Answer, Right};

/// A table of all rights: a line of headings, and a line for each.
pub fn listed(rights: &[Right], answers: &[Answer]) -> String {
    let mut rows: Vec<[String; 5]> = vec![["VERB", "RESOURCE", "WHERE", "HAS", "FOR"].map(str::to_owned)];
    for (right, answer) in rights.iter().zip(answers) {
        let place = right.namespace.clone().unwrap_or_else(|| "everywhere".to_owned());
        let has = match answer {
            Answer::Yes => "yes",
            Answer::No => "no",
            Answer::Unknown(_) => "unknown",
        };
        let name = right.name.as_ref().map(|n| format!(" \"{n}\"")).unwrap_or_default();
        let only = right.feature.map(|f| format!(" (only for {f})")).unwrap_or_default();
        let (verb, why) = (right.verb.to_owned(), format!("{}{only}", right.why));
        rows.push([verb, format!("{}{name}", right.what()), place, has.to_owned(), why]);
    }
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// A sentence for each right that is missing or of which there is no answer; empty: all are there.
pub fn lines(rights: &[Right], answers: &[Answer]) -> Vec<String> {
    let line = |(right, answer): (&Right, &Answer)| match answer {
        Answer::Yes => None,
        Answer::No => Some(right.missing()),
        Answer::Unknown(why) => Some(format!("nobody says whether it may {right}: {why}")),
    };
    rights.iter().zip(answers).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Line, Setting, rights};

    #[test]
    fn the_table_says_of_each_right_whether_it_is_there() {
        let table =
            [Line::new(&["watch", "patch"], "", "nodes", "pools").only_for("x"), Line::new(&["list"], "a", "b", "c")];
        let rights = rights(&table, &Setting { role: "agent", ..Setting::default() });
        let answers = [Answer::Yes, Answer::No, Answer::Unknown("busy".into())];
        assert_eq!(
            listed(&rights, &answers),
            "VERB   RESOURCE  WHERE       HAS      FOR\n\
             watch  nodes     everywhere  yes      pools (only for x)\n\
             patch  nodes     everywhere  no       pools (only for x)\n\
             list   b.a       everywhere  unknown  c\n"
        );
        let said = lines(&rights, &answers);
        assert_eq!(said.len(), 2);
        assert!(said.iter().any(|l| l == "nobody says whether it may list b.a: busy"), "{said:?}");
    }
}
