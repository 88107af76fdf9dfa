//! Where rights are told: the log, and standard output.

use kube::Client;

use crate::{Report, Right, ask, lines, listed};

/// Asks about these rights, and prints the table; sentences about what is missing or unknown.
pub async fn print(client: &Client, rights: &[Right]) -> Vec<String> {
    let asked: Vec<&Right> = rights.iter().collect();
    let answers = ask(client, &asked).await;
    print!("{}", listed(rights, &answers));
    lines(rights, &answers)
}

/// Tells the log how a program stands with its rights.
pub(crate) fn log(report: &Report) {
    for right in &report.missing {
        if right.feature.is_none() {
            tracing::error!(%right, "{}", right.missing());
        } else {
            tracing::warn!(%right, "{}", right.missing());
        }
    }
    if let Some((count, why)) = &report.unknown {
        tracing::warn!(count, why, "it is not known of all rights whether they are there; asking again");
    }
    if report.is_complete() {
        tracing::info!(rights = report.granted, "all rights are there");
    }
}
