//! The findings of reviews: for readiness and metrics, for the log, and as a table on standard output.

use kube::Client;

use super::{
    Right,
    review::{Verdict, review},
};

/// State of a program's rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of granted rights.
    pub granted: usize,
    /// Missing rights.
    pub missing: Vec<Right>,
    /// Number of unknown rights, and why the first of them is unknown.
    pub unknown: Option<(usize, String)>,
}

impl Report {
    /// Combines all rights with their verdicts.
    pub fn of(rights: &[Right], verdicts: &[Verdict]) -> Self {
        let mut report = Self::default();
        for (right, verdict) in rights.iter().zip(verdicts) {
            match verdict {
                Verdict::Granted => report.granted += 1,
                Verdict::Missing => report.missing.push(right.clone()),
                Verdict::Unknown(why) => report.unknown.get_or_insert_with(|| (0, why.clone())).0 += 1,
            }
        }
        report
    }

    /// Every right is granted.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_none()
    }

    /// Missing rights that the program needs, a line for each; rights of optional features are left out.
    pub fn blocking(&self) -> Option<String> {
        let needed = self.missing.iter().filter(|r| r.feature.is_none());
        let lines: Vec<String> = needed.map(Right::missing).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Logs what is missing or unknown, or that all rights are granted.
    pub(crate) fn log(&self) {
        for right in &self.missing {
            if right.feature.is_none() {
                tracing::error!(%right, remedy = right.missing(), "right missing");
            } else {
                tracing::warn!(%right, remedy = right.missing(), "right of an optional feature missing");
            }
        }
        if let Some((count, why)) = &self.unknown {
            tracing::warn!(count, why, "rights unknown, reviewing again");
        }
        if self.is_complete() {
            tracing::info!(rights = self.granted, "all rights granted");
        }
    }
}

/// Reviews these rights and prints the table; returns a sentence for each that is missing or unknown.
pub async fn print(client: &Client, rights: &[Right]) -> Vec<String> {
    let verdicts = review(client, &rights.iter().collect::<Vec<_>>()).await;
    print!("{}", table(rights, &verdicts));
    problems(rights, &verdicts)
}

/// A table of all rights with a heading.
fn table(rights: &[Right], verdicts: &[Verdict]) -> String {
    let mut rows: Vec<[String; 5]> = vec![["VERB", "RESOURCE", "WHERE", "HAS", "FOR"].map(str::to_owned)];
    for (right, verdict) in rights.iter().zip(verdicts) {
        let place = right.namespace.clone().unwrap_or_else(|| "everywhere".to_owned());
        let has = match verdict {
            Verdict::Granted => "yes",
            Verdict::Missing => "no",
            Verdict::Unknown(_) => "unknown",
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

/// A sentence for each right that is missing or unknown.
fn problems(rights: &[Right], verdicts: &[Verdict]) -> Vec<String> {
    let line = |(right, verdict): (&Right, &Verdict)| match verdict {
        Verdict::Granted => None,
        Verdict::Missing => Some(right.missing()),
        Verdict::Unknown(why) => Some(format!("it is unknown whether the program may {right}: {why}")),
    };
    rights.iter().zip(verdicts).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::{Line, Setting, table::rights};

    #[test]
    fn table_shows_the_verdict_of_each_right() {
        let table =
            [Line::new(&["watch", "patch"], "", "nodes", "pools").only_for("x"), Line::new(&["list"], "a", "b", "c")];
        let rights = rights(&table, &Setting { role: "agent", ..Setting::default() });
        let verdicts = [Verdict::Granted, Verdict::Missing, Verdict::Unknown("busy".into())];
        assert_eq!(
            super::table(&rights, &verdicts),
            "VERB   RESOURCE  WHERE       HAS      FOR\n\
             watch  nodes     everywhere  yes      pools (only for x)\n\
             patch  nodes     everywhere  no       pools (only for x)\n\
             list   b.a       everywhere  unknown  c\n"
        );
        let said = problems(&rights, &verdicts);
        assert_eq!(said.len(), 2);
        assert!(said.iter().any(|l| l == "it is unknown whether the program may list b.a: busy"), "{said:?}");
    }

    const TABLE: &[Line] = &[
        Line::new(&["watch"], "", "nodes", "pools"),
        Line::new(&["list"], "policy", "poddisruptionbudgets", "words").only_for("explanations"),
        Line::new(&["patch"], "", "nodes", "labels"),
    ];

    fn report(verdicts: &[Verdict]) -> Report {
        Report::of(&rights(TABLE, &Setting { role: "agent", ..Setting::default() }), verdicts)
    }

    #[test]
    fn missing_right_of_a_feature_is_reported_and_does_not_block() {
        let report = report(&[Verdict::Granted, Verdict::Missing, Verdict::Granted]);
        assert!(!report.is_complete());
        assert_eq!((report.granted, report.missing.len(), report.blocking()), (2, 1, None));
    }

    #[test]
    fn each_needed_right_has_its_own_line() {
        let blocking = report(&[Verdict::Missing, Verdict::Missing, Verdict::Missing]).blocking().unwrap();
        let lines: Vec<&str> = blocking.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|l| l.contains("ClusterRole agent lacks")), "{blocking}");
    }

    #[test]
    fn unknown_right_is_not_missing() {
        let report = report(&[Verdict::Unknown("a".into()), Verdict::Unknown("b".into()), Verdict::Granted]);
        assert_eq!(report.unknown, Some((2, "a".into())));
        assert!(!report.is_complete() && report.blocking().is_none());
    }
}
