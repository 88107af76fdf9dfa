//! A tenant as text.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    queue,
    style::{GREEN, RED, YELLOW, heading, hidden, styled, wrapped},
    table::{table, wide},
};
use crate::{
    inside::Inside,
    tenant::{ProfileBudget, QUOTA_EXCEEDED, ResourceBudget, Share, TenantReport, VirtualPod, Waiting},
    units::{counted, span},
};

/// The report: GPUs, what waits, and contracts; the limits of other resources if `with_limits`.
pub fn tenant(report: &TenantReport, with_limits: bool) -> String {
    let mut text = String::new();
    let trust = report.trust.as_ref().map(|t| format!(" (trust {t})")).unwrap_or_default();
    let ready = match report.ready.as_deref() {
        Some("True") => format!(": {}", styled(GREEN, "ready")),
        Some(_) => format!(": {}", styled(RED, "not ready")),
        None => String::new(),
    };
    let _ = writeln!(text, "Tenant {}{trust}{ready}", report.tenant);
    for problem in &report.problems {
        wrapped(&mut text, 2, "- ", &format!("{} ({}): {}", problem.condition, problem.reason, problem.message));
    }
    gpus(report, &mut text);
    waiting(report, &mut text);
    pods(report, &mut text);
    if with_limits {
        resources(report, &mut text);
    } else {
        full(report, &mut text);
    }
    contracts(report, &mut text);
    hidden(&mut text, &report.not_visible);
    text
}

fn gpus(report: &TenantReport, text: &mut String) {
    text.push('\n');
    heading(text, "GPUs");
    if report.profiles.is_empty() {
        let _ = writeln!(text, "  none: spec.gpus is empty");
        // also of a team that may not read its GpuTenant
        queued(report, text);
        return;
    }
    let lends = report.profiles.iter().any(|p| p.borrowed > 0 || p.lent > 0);
    let row = |p: &ProfileBudget| {
        let available = p.available.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let lent = if lends { vec![p.borrowed.to_string(), p.lent.to_string()] } else { Vec::new() };
        let resource = if p.resource_name.is_empty() { "(not in the catalog)" } else { &p.resource_name };
        let used = vec![p.profile.clone(), p.budget.to_string(), p.used.to_string()];
        [used, lent, vec![available, p.waiting.to_string(), resource.to_owned()]].concat()
    };
    let lent: &[&str] = if lends { &["BORROWED", "LENT"] } else { &[] };
    let header = [&["PROFILE", "BUDGET", "USED"][..], lent, &["AVAILABLE", "WAITING", "RESOURCE"]].concat();
    text.push_str(&table(&header, report.profiles.iter().map(row)));
    queued(report, text);
    if let Some(together) = &report.equivalents {
        let used = together.used.as_deref().unwrap_or("?");
        let shares = report.profiles.iter().filter_map(|p| Some(format!("{} {}", p.profile, p.share.as_ref()?)));
        let shares = shares.collect::<Vec<_>>().join(", ");
        let each = if shares.is_empty() { String::new() } else { format!("; a device counts as: {shares}") };
        text.push('\n');
        wrapped(text, 2, "", &format!("in total {used} of {} whole GPUs{each}", together.budget));
    }
    let rows: Vec<Vec<String>> =
        report.profiles.iter().flat_map(|p| p.namespaces.iter().map(|s| share(s, &p.profile))).collect();
    spread(rows, "PROFILE", text);
}

/// Jobs in the team's queue.
fn queued(report: &TenantReport, text: &mut String) {
    if let Some(queue) = &report.queue {
        text.push('\n');
        let jobs = counted(queue.waiting, "job");
        wrapped(text, 2, "", &format!("in the queue: {jobs} waiting, {} admitted", queue.admitted));
    }
    if let Some(order) = &report.queue_order {
        text.push_str(&queue::order(order));
    }
}

/// How many limits there are besides those of GPUs, and which of them are used up.
fn full(report: &TenantReport, text: &mut String) {
    if report.resources.is_empty() {
        return;
    }
    let used_up = |r: &&ResourceBudget| r.used != "0" && r.budget.as_ref() == Some(&r.used);
    let names: Vec<&str> = report.resources.iter().filter(used_up).map(|r| r.resource.as_str()).collect();
    let which = if names.is_empty() { "none is used up".to_owned() } else { format!("used up: {}", names.join(", ")) };
    text.push('\n');
    heading(text, "Other limits");
    wrapped(text, 2, "", &format!("{}; {which} (--limits lists them)", counted(report.resources.len(), "limit")));
}

fn resources(report: &TenantReport, text: &mut String) {
    if report.resources.is_empty() {
        return;
    }
    text.push('\n');
    heading(text, "Other limits");
    let (used, idle): (Vec<&ResourceBudget>, Vec<&ResourceBudget>) =
        report.resources.iter().partition(|r| r.written || r.used != "0");
    let row = |r: &&ResourceBudget| {
        vec![r.resource.clone(), r.budget.clone().unwrap_or_else(|| "?".to_owned()), r.used.clone()]
    };
    text.push_str(&table(&["RESOURCE", "BUDGET", "USED"], used.iter().chain(&idle).map(row)));
    let rows: Vec<Vec<String>> = used.iter().flat_map(|r| r.namespaces.iter().map(|s| share(s, &r.resource))).collect();
    // one namespace has what the table above has
    let spread_out = used.iter().any(|r| r.namespaces.len() > 1 || r.budget.is_none());
    spread(if spread_out { rows } else { Vec::new() }, "RESOURCE", text);
}

fn share(share: &Share, of: &str) -> Vec<String> {
    vec![share.namespace.clone(), of.to_owned(), share.limit.clone(), share.used.clone()]
}

/// Quota by namespace.
fn spread(mut rows: Vec<Vec<String>>, what: &str, text: &mut String) {
    if !rows.is_empty() {
        rows.sort();
        text.push('\n');
        text.push_str(&table(&["NAMESPACE", what, "LIMIT NOW", "USED"], rows));
    }
}

/// Pods of a virtual cluster, whose host names are others than the team's.
fn pods(report: &TenantReport, text: &mut String) {
    if report.pods.is_empty() {
        return;
    }
    text.push('\n');
    heading(text, "Pods with devices in the virtual cluster");
    let row = |pod: &VirtualPod| {
        let (shown, host) = Inside::shown(pod.inside.as_ref(), format!("{}/{}", pod.namespace, pod.name));
        vec![shown, pod.profiles.join(", "), pod.node.clone(), host.unwrap_or_else(|| "not made inside".to_owned())]
    };
    text.push_str(&wide(&["POD", "PROFILES", "NODE", "NOTE"], report.pods.iter().map(row)));
}

fn waiting(report: &TenantReport, text: &mut String) {
    text.push('\n');
    heading(text, "Waiting");
    if report.waiting.is_empty() {
        let _ = writeln!(text, "  nothing");
    }
    let groups = alike(&report.waiting);
    for alike in groups.iter().take(MOST_WAITING) {
        let Some((first, others)) = alike.split_first() else { continue };
        let more = if others.is_empty() { String::new() } else { format!(" and {} more like it", others.len()) };
        let (object, notes) = object(first);
        let _ = writeln!(text, "  {object}{more}{notes}");
        wrapped(text, 4, "", &format!("{}: {}", styled(YELLOW, &first.reason), first.message));
    }
    if let Some(more) = groups.len().checked_sub(MOST_WAITING).filter(|more| *more > 0) {
        let _ = writeln!(text, "  and {more} others: -o json has all");
    }
    if let Some(count) = report.waiting_unnamed {
        let _ = writeln!(text, "  and {count} more in the virtual cluster that the quota refuses");
    }
}

/// Most groups of what waits that are shown. A team can write as many events as etcd holds.
const MOST_WAITING: usize = 50;

/// What waits for the same reason, such as the replicas of a Deployment, in the order of the first of each.
fn alike(all: &[Waiting]) -> Vec<Vec<&Waiting>> {
    let mut groups: Vec<Vec<&Waiting>> = Vec::new();
    let mut known = BTreeMap::new();
    for one in all {
        // namespace and kind, as they are shown
        let place = object(one).0.rsplit_once('/').map(|(place, _)| place.to_owned());
        let next = groups.len();
        let at = *known.entry((&one.reason, &one.message, place)).or_insert(next);
        match groups.get_mut(at) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// The object, and since when it waits or what it is called elsewhere.
fn object(one: &Waiting) -> (String, String) {
    let when = one.seconds.map(|s| format!("{} ago", span(s)));
    let pod = one.object.starts_with("Pod/");
    // only a pod inside is refused by the quota itself, and not its controller
    let refused = one.inside.is_some() && one.reason == QUOTA_EXCEEDED;
    let when = when.map(|w| match (refused, pod) {
        (true, _) => format!("first refused {w}"),
        (false, true) => format!("created {w}"),
        (false, false) => format!("refused {w}"),
    });
    let host = format!("{}/{}", one.namespace, one.object);
    let (object, note) = match &one.inside {
        Some(Inside::Pod { namespace, name }) if refused => {
            (format!("{namespace}/Pod/{name}"), Some("in the virtual cluster, no pod on the host".to_owned()))
        }
        Some(Inside::Pod { namespace, name }) => {
            (format!("{namespace}/Pod/{name}"), Some(format!("on the host {host}")))
        }
        Some(Inside::Suspicious { reason }) => (host, Some(format!("suspicious: {reason}"))),
        None => (host, None),
    };
    let notes = when.into_iter().chain(note).collect::<Vec<_>>().join("; ");
    (object, if notes.is_empty() { notes } else { format!(" ({notes})") })
}

fn contracts(report: &TenantReport, text: &mut String) {
    let known: Vec<_> = report.profiles.iter().filter_map(|p| Some((p, p.contract.as_ref()?))).collect();
    if known.is_empty() {
        return;
    }
    text.push('\n');
    heading(text, "Contracts");
    for (profile, contract) in known {
        let kept = match (&contract.isolation, &contract.enforcement) {
            (Some(isolation), Some(by)) => format!(": isolation {isolation}; limits enforced by: {by}"),
            _ => String::new(),
        };
        wrapped(text, 2, "", &format!("{}{kept}", profile.profile));
        for (word, words) in [("expected", &contract.expected), ("incident", &contract.incident)] {
            if !words.is_empty() {
                wrapped(text, 4, &format!("{word}: "), words);
            }
        }
    }
}
