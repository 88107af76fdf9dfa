//! The catalog as text for a terminal.

use std::fmt::Write as _;

use super::{
    style::{heading, styled, wrapped},
    table::wide,
};
use crate::catalog::{Catalog, CatalogEntry};

/// A row for each profile, then its details.
pub fn catalog(catalog: &Catalog) -> String {
    let mut text = String::new();
    if catalog.entries.is_empty() {
        text.push_str("no profiles: a GpuProfile adds one\n");
    } else {
        text.push_str(&wide(&OVERVIEW, catalog.entries.iter().map(overview)));
    }
    catalog.entries.iter().for_each(|e| entry(e, &mut text));
    if !catalog.not_visible.is_empty() {
        text.push('\n');
        heading(&mut text, "Not visible to you");
        catalog.not_visible.iter().for_each(|hidden| wrapped(&mut text, 2, "- ", hidden));
    }
    text
}

/// Columns of the overview.
pub(super) const OVERVIEW: [&str; 7] = ["PROFILE", "DEVICE", "ISOLATION", "TRUST", "PRICE", "FREE/TOTAL", "RESOURCE"];

/// A profile in the overview.
pub(super) fn overview(entry: &CatalogEntry) -> Vec<String> {
    let free = entry.devices.map_or_else(|| "?".to_owned(), |d| format!("{}/{}", d.free, d.total));
    let (price, trust) = (price(entry).unwrap_or_else(|| "-".to_owned()), entry.trust.clone());
    vec![
        entry.profile.clone(),
        entry.device.clone(),
        entry.isolation.clone(),
        trust,
        price,
        free,
        entry.resource_name.clone(),
    ]
}

/// The price of one device for one hour.
pub(super) fn price(entry: &CatalogEntry) -> Option<String> {
    entry.price.as_ref().map(|p| format!("{} {}/h", p.per_hour, p.currency))
}

/// Which tenants may use it.
pub(super) fn trust(entry: &CatalogEntry) -> String {
    let level = match entry.trust.as_str() {
        "Untrusted" => "every tenant".to_owned(),
        "Internal" => "tenants with trust Internal or Trusted".to_owned(),
        other => format!("tenants with trust {other}"),
    };
    let acknowledged = " that have acknowledged in spec.sharing.acknowledgedBy what is not isolated";
    if entry.needs_acknowledgement { level + acknowledged } else { level }
}

/// Facts of an entry that are lists or optional, each with its name.
pub(super) fn facts(entry: &CatalogEntry) -> Vec<(&'static str, String)> {
    let list = |names: &[String], none: &str| if names.is_empty() { none.to_owned() } else { names.join(", ") };
    let most = entry.max_per_pod.map_or_else(|| "as many as the team's budget".to_owned(), |n| n.to_string());
    let devices = entry.devices.map_or_else(
        || "not known".to_owned(),
        |d| format!("{} free of {}; {} used, {} withdrawn", d.free, d.total, d.used, d.withdrawn),
    );
    let mut facts = vec![
        ("resource", entry.resource_name.clone()),
        ("price", price(entry).unwrap_or_else(|| "none".to_owned())),
        ("devices", devices),
        ("most in a pod", most),
        ("for", trust(entry)),
        ("boards", list(&entry.products, "every board that can")),
        (
            "pools",
            entry.pools.as_ref().map_or_else(|| "not visible to you".to_owned(), |p| list(p, "none: no pod gets it")),
        ),
    ];
    facts.extend(entry.maturity.iter().map(|maturity| ("stage", maturity.clone())));
    facts
}

fn entry(entry: &CatalogEntry, text: &mut String) {
    text.push('\n');
    wrapped(text, 0, "", &format!("{}: {}", styled(super::style::BOLD, &entry.profile), entry.device));
    for (name, value) in facts(entry) {
        wrapped(text, 2, &format!("{name}: "), &value);
    }
    if entry.isolated.is_empty() {
        wrapped(text, 2, "isolated: ", "nothing");
    }
    for (name, sentences) in [("isolated", &entry.isolated), ("NOT isolated", &entry.not_isolated)] {
        for sentence in sentences {
            wrapped(text, 2, &format!("{name}: "), sentence);
        }
    }
    wrapped(text, 2, "expected: ", &entry.expected);
    wrapped(text, 2, "incident: ", &entry.incident);
    entry.pending.iter().for_each(|line| wrapped(text, 2, "does not start: ", line));
    text.push_str("  pod template:\n");
    entry.pod_template.lines().for_each(|line| {
        let _ = writeln!(text, "    {line}");
    });
}
