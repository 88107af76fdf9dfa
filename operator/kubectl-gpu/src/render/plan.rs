//! A preview as text: manifests, changes with reasons, evictions, capacity, estimate, problems.

use std::fmt::Write as _;

use super::{
    style::{GREEN, RED, YELLOW, heading, styled, wrapped},
    table::table,
};
use crate::{
    inside::Inside,
    preview::{Action, BeforeAfter, GpuChange, Instance, Outcome, PlanPreview},
    units::{counted, span},
};

/// The whole preview; styles are stripped by a stream that is no terminal.
pub fn plan(preview: &PlanPreview) -> String {
    let mut text = String::new();
    manifests(preview, &mut text);
    changes(preview, &mut text);
    evictions(preview, &mut text);
    capacity(preview, &mut text);
    estimate(preview, &mut text);
    findings(preview, &mut text);
    let _ = writeln!(text, "{}", verdict(preview));
    text
}

fn manifests(preview: &PlanPreview, text: &mut String) {
    if preview.manifests.is_empty() {
        return;
    }
    heading(text, "Manifests");
    for manifest in preview.manifests.iter().filter(|m| m.action != Action::Unchanged) {
        let action = match manifest.action {
            Action::Create => styled(GREEN, "create"),
            Action::Update => styled(YELLOW, "update"),
            Action::Delete | Action::Unchanged => styled(RED, "delete"),
        };
        let source = manifest.source.as_ref().map(|s| format!("  ({s})")).unwrap_or_default();
        let _ = writeln!(text, "  {action} {} {}{source}", manifest.kind, manifest.name);
        for field in &manifest.fields {
            wrapped(text, 9, "", field);
        }
    }
    let same = preview.manifests.iter().filter(|m| m.action == Action::Unchanged).count();
    if same > 0 {
        let _ = writeln!(
            text,
            "  {} as the cluster has {}",
            counted(same, "object"),
            if same == 1 { "it" } else { "them" }
        );
    }
    text.push('\n');
}

fn changes(preview: &PlanPreview, text: &mut String) {
    let mut pools: Vec<Option<&str>> = preview.changes.iter().map(|c| c.pool.as_deref()).collect();
    pools.sort_unstable();
    pools.dedup();
    for pool in pools {
        let rules = preview.pools.iter().find(|p| Some(p.pool.as_str()) == pool);
        heading(text, &pool.map_or_else(|| "No pool".to_owned(), |p| format!("Pool {p}")));
        if let Some(rules) = rules {
            let notice =
                if rules.notice == "0s" { "not notified".into() } else { format!("notified {}", rules.notice) };
            let limit = if rules.node_by_node {
                "one node at a time".to_owned()
            } else {
                format!("at most {} at once", gpus(&rules.max_unavailable))
            };
            wrapped(text, 2, "", &format!("changes: {}; {limit}; owners are {notice} before", rules.window));
        }
        for change in preview.changes.iter().filter(|c| c.pool.as_deref() == pool) {
            one_change(change, text);
        }
        text.push('\n');
    }
}

fn gpus(limit: &str) -> String {
    match limit {
        "1" => "1 GPU".to_owned(),
        percent if percent.ends_with('%') => format!("{percent} of the GPUs"),
        n => format!("{n} GPUs"),
    }
}

fn one_change(change: &GpuChange, text: &mut String) {
    let when = match (&change.phase, change.step) {
        (Some(phase), _) => format!("now ({phase})"),
        (None, 0) => "when idle".to_owned(),
        (None, step) => format!("step {step}"),
    };
    wrapped(text, 2, "", &format!("{when}: {} GPU {} ({})", change.node, change.gpu, change.product));
    match change.mig_mode {
        Some(mode) => {
            let reset = if mode.reset { ", the GPU is reset" } else { "" };
            let action = match mode.enabled {
                true => "~ turn MIG on".to_owned(),
                false if change.to == "whole" => "~ turn MIG off, one whole device".to_owned(),
                false => format!("~ turn MIG off, {}", change.to),
            };
            wrapped(text, 4, "", &styled(YELLOW, &format!("{action}{reset}")));
        }
        None if change.destroy.is_empty() && change.create.is_empty() => {
            wrapped(text, 4, "", &styled(YELLOW, &format!("~ {} → {}", change.from, change.to)));
        }
        None => {}
    }
    for (style, mark, instances) in [(RED, "-", &change.destroy), (GREEN, "+", &change.create)] {
        for line in grouped(instances) {
            wrapped(text, 4, "", &styled(style, &format!("{mark} {line}")));
        }
    }
    for reason in &change.reasons {
        wrapped(text, 4, "because ", because(reason));
    }
    for wait in &change.waits_for {
        wrapped(text, 4, "waits for: ", wait);
    }
}

/// The part of a reason that other lines do not have: actions are above it, evictions below.
fn because(reason: &str) -> &str {
    let why = reason.split_once("because ").map_or(reason, |(_, why)| why);
    why.split_once("; ").map_or(why, |(why, _)| why)
}

/// Instances of one profile in one line: `2 × 3g.40gb at 0, 4`.
fn grouped(instances: &[Instance]) -> Vec<String> {
    let mut profiles: Vec<&str> = instances.iter().map(|i| i.profile.as_str()).collect();
    profiles.sort_unstable();
    profiles.dedup();
    let line = |profile: &str| {
        let starts: Vec<String> =
            instances.iter().filter(|i| i.profile == profile).map(|i| i.start.to_string()).collect();
        format!("{} × {profile} at {}", starts.len(), starts.join(", "))
    };
    profiles.into_iter().map(line).collect()
}

fn evictions(preview: &PlanPreview, text: &mut String) {
    if preview.evictions.is_empty() {
        return;
    }
    heading(text, "Evicted");
    for eviction in &preview.evictions {
        let owner =
            eviction.controller.as_ref().map_or("no controller replaces it".to_owned(), |c| format!("{c} replaces it"));
        let tenant = eviction.tenant.as_ref().map(|t| format!(", tenant {t}")).unwrap_or_default();
        let host = format!("{}/{}", eviction.namespace, eviction.pod);
        let (pod, host) = Inside::shown(eviction.inside.as_ref(), host);
        let host = host.map(|host| format!(", {host}")).unwrap_or_default();
        let _ = writeln!(text, "  {} ({owner}{tenant}{host})", styled(RED, &pod));
        wrapped(text, 4, "has ", &eviction.devices.join(", "));
        for wait in &eviction.waits_for {
            wrapped(text, 4, "waits: ", wait);
        }
    }
    text.push('\n');
}

fn capacity(preview: &PlanPreview, text: &mut String) {
    let arrow = |n: BeforeAfter| {
        if n.before == n.after { n.after.to_string() } else { format!("{} → {}", n.before, n.after) }
    };
    let interesting = |p: &&crate::preview::ProfileCapacity| {
        [p.guaranteed.before, p.guaranteed.after, p.devices.before, p.devices.after, p.held].iter().any(|n| *n > 0)
    };
    let profiles = preview.profiles.iter().filter(interesting);
    let profiles = profiles.map(|p| {
        vec![p.profile.clone(), arrow(p.devices), arrow(p.guaranteed), p.held.to_string(), p.resource.clone()]
    });
    let tenants = preview
        .tenants
        .iter()
        .map(|t| vec![t.tenant.clone(), t.profile.clone(), arrow(t.guaranteed), arrow(t.served), t.held.to_string()]);
    let differs = |n: BeforeAfter| n.before != n.after;
    let stranded = preview.pools.iter().filter(|p| differs(p.stranded_memory) || differs(p.stranded_compute));
    let stranded = stranded.map(|p| vec![p.pool.clone(), arrow(p.stranded_memory), arrow(p.stranded_compute)]);
    let tables: [(&[&str], Vec<Vec<String>>); 3] = [
        (&["PROFILE", "DEVICES", "GUARANTEED", "IN USE", "RESOURCE"], profiles.collect()),
        (&["TENANT", "PROFILE", "GUARANTEED", "SERVED", "IN USE"], tenants.collect()),
        (&["POOL", "STRANDED MEMORY SLICES", "STRANDED COMPUTE SLICES"], stranded.collect()),
    ];
    if tables.iter().any(|(_, rows)| !rows.is_empty()) {
        heading(text, "Capacity");
    }
    for (header, rows) in tables.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        text.push_str(&table(header, rows));
        text.push('\n');
    }
}

fn estimate(preview: &PlanPreview, text: &mut String) {
    let estimate = &preview.estimate;
    if estimate.basis.is_empty() {
        return;
    }
    heading(text, &format!("Takes at most {}", span(estimate.seconds)));
    estimate.basis.iter().for_each(|line| wrapped(text, 2, "- ", line));
    match estimate.not_counted.len() {
        0 => {}
        1 => wrapped(text, 2, "- ", "not counted: the wait listed above"),
        n => wrapped(text, 2, "- ", &format!("not counted: {n} waits listed above")),
    }
    text.push('\n');
}

fn findings(preview: &PlanPreview, text: &mut String) {
    for problem in &preview.problems {
        let known = if problem.known { ", also without these manifests" } else { "" };
        let _ = writeln!(text, "{}", styled(RED, &format!("{}{known}:", problem.reason)));
        wrapped(text, 2, "", &problem.message);
    }
    for note in &preview.notes {
        wrapped(text, 0, "note: ", note);
    }
    if !(preview.problems.is_empty() && preview.notes.is_empty()) {
        text.push('\n');
    }
}

/// The last line: the outcome.
fn verdict(preview: &PlanPreview) -> String {
    let gpus = match preview.changes.len() {
        0 => "no GPU changes".to_owned(),
        1 => "1 GPU changes".to_owned(),
        n => format!("{n} GPUs change"),
    };
    let pods = match preview.evictions.len() {
        0 => "no pod is evicted".to_owned(),
        1 => "1 pod is evicted".to_owned(),
        n => format!("{n} pods are evicted"),
    };
    match preview.outcome {
        Outcome::NothingToDo => styled(GREEN, "Nothing to do."),
        Outcome::Changes => styled(GREEN, &format!("Result: {gpus}, {pods}.")),
        Outcome::Evictions => styled(YELLOW, &format!("Result: {gpus}, {pods}.")),
        Outcome::Unmet => {
            let open = counted(preview.problems.len(), "problem");
            styled(RED, &format!("Result: {gpus}, {pods}; {open}."))
        }
    }
}
