//! The page of rights lists exactly the rules that the chart gives to each `ServiceAccount`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use e2e::product;
use serde_json::Value;

use crate::offline::{assert_current, chart::rendered};

/// Values that a rule may need, each with the value that takes the rule away.
const FEATURES: [(&str, &str); 6] = [
    ("tenants.imagePullSecrets", "tenants.imagePullSecrets=null"),
    ("budget.wakeControllers", "budget.wakeControllers=false"),
    ("tenants.ownersReadTenant", "tenants.ownersReadTenant=false"),
    ("usageEndpoint.enabled", "usageEndpoint.enabled=false"),
    ("virtualClusters.enabled", "virtualClusters.enabled=false"),
    ("queueing.kueue.enabled", "queueing.kueue.enabled=false"),
];
/// Values with which the chart renders every rule, and namespaces that the page names by their value.
const EVERYTHING: [&str; 6] = [
    "tenants.imagePullSecrets={of-the-list}",
    "usageEndpoint.enabled=true",
    "virtualClusters.enabled=true",
    "queueing.kueue.enabled=true",
    "migManager.namespace=of-mig-manager",
    "devicePlugin.namespace=of-device-plugin",
];
/// What the page calls namespaces and names.
const PLACES: [(&str, &str); 3] = [
    (product::NAMESPACE, "the release's namespace"),
    ("of-mig-manager", "`migManager.namespace`"),
    ("of-device-plugin", "`devicePlugin.namespace`"),
];
const VIRTUAL_CLUSTERS: &str = "gputenancy-virtual-clusters";

/// A right of an account: the account, where it holds, verb, resource.
type Grant = (String, String, String, String);

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// The single rights of a role's rules: verb, and resource with its group and name.
fn rights(role: &Value) -> Vec<(String, String)> {
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let names = texts(&rule["resourceNames"]);
        for (group, resource) in texts(&rule["apiGroups"])
            .iter()
            .flat_map(|g| texts(&rule["resources"]).into_iter().map(move |r| (g.clone(), r)))
        {
            let (plain, sub) =
                resource.split_once('/').map_or((&*resource, String::new()), |(r, s)| (r, format!("/{s}")));
            let resource = if group.is_empty() { resource.clone() } else { format!("{plain}.{group}{sub}") };
            let object = |name: &String| match name.as_str() {
                "of-the-list" => format!("`{resource}` of `tenants.imagePullSecrets`"),
                name => format!("`{resource}` \"{name}\""),
            };
            let objects =
                if names.is_empty() { vec![format!("`{resource}`")] } else { names.iter().map(object).collect() };
            rights.extend(objects.iter().flat_map(|o| texts(&rule["verbs"]).into_iter().map(move |v| (v, o.clone()))));
        }
    }
    rights
}

/// All rights that the chart gives to its accounts with these values.
fn grants(sets: &[&str]) -> BTreeSet<Grant> {
    let all: Vec<Value> = serde_saphyr::from_multiple(&rendered("", sets)).unwrap();
    let text = |object: &Value, at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    let role = |kind: &str, namespace: &str, name: &str| {
        let is = |o: &&Value| {
            text(o, "/kind") == kind && text(o, "/metadata/name") == name && text(o, "/metadata/namespace") == namespace
        };
        all.iter().find(is).unwrap_or_else(|| panic!("the chart has no {kind} {name}"))
    };
    let mut found = BTreeSet::new();
    let mut give = |account: &str, place: &str, role: &Value| {
        found.extend(rights(role).into_iter().map(|(verb, what)| (account.to_owned(), place.to_owned(), verb, what)));
    };
    for binding in all.iter().filter(|object| text(object, "/kind").ends_with("RoleBinding")) {
        let (kind, namespace) = (text(binding, "/roleRef/kind"), text(binding, "/metadata/namespace"));
        let known = PLACES.iter().find(|(name, _)| *name == namespace).map(|(_, words)| (*words).to_owned());
        let place = match namespace.as_str() {
            "" => "everywhere".to_owned(),
            other => known.unwrap_or_else(|| format!("`{other}`")),
        };
        for subject in binding["subjects"].as_array().into_iter().flatten().filter(|s| s["kind"] == "ServiceAccount") {
            let home = if kind == "Role" { &*namespace } else { "" };
            give(&text(subject, "/name"), &place, role(&kind, home, &text(binding, "/roleRef/name")));
        }
    }
    // the operator writes this binding
    if all.iter().any(|object| text(object, "/metadata/name") == VIRTUAL_CLUSTERS) {
        let place = "namespaces with a virtual cluster";
        give(VIRTUAL_CLUSTERS, place, role("ClusterRole", "", "gputenancy:virtual-clusters"));
    }
    found
}

/// The values that each right needs.
fn needs() -> BTreeMap<Grant, Vec<&'static str>> {
    let all = grants(&EVERYTHING);
    let mut needs: BTreeMap<Grant, Vec<&'static str>> = all.iter().map(|grant| (grant.clone(), Vec::new())).collect();
    for (value, off) in FEATURES {
        let without = grants(&[&EVERYTHING[..], &[off]].concat());
        assert!(without.is_subset(&all), "{off}: {:?}", without.difference(&all));
        assert_ne!(without, all, "{off}");
        for (grant, values) in needs.iter_mut().filter(|(grant, _)| !without.contains(*grant)) {
            // said once, for the whole table
            if grant.0 != VIRTUAL_CLUSTERS || value != "virtualClusters.enabled" {
                values.push(value);
            }
        }
    }
    needs
}

/// Account, place, values of the chart, and verbs of a row.
type Row = (String, String, Vec<&'static str>, BTreeSet<String>);

/// The tables of the page.
fn tables() -> String {
    let mut rows: BTreeMap<(String, String, Vec<&str>, String), BTreeSet<String>> = BTreeMap::new();
    for ((account, place, verb, what), needs) in needs() {
        rows.entry((account, place, needs, what)).or_default().insert(verb);
    }
    let mut merged: BTreeMap<Row, Vec<String>> = BTreeMap::new();
    for ((account, place, needs, what), verbs) in rows {
        merged.entry((account, place, needs, verbs)).or_default().push(what);
    }
    let (mut text, mut last) = (String::new(), String::new());
    for ((account, place, needs, verbs), what) in merged {
        if account != last {
            let title = match account.as_str() {
                VIRTUAL_CLUSTERS => " (only with `virtualClusters.enabled`)",
                "gputenancy-release-finalizers" => " (only while the chart is being uninstalled)",
                _ => "",
            };
            text += &format!("\n## `{account}`{title}\n\n| where | resources | verbs | with |\n|---|---|---|---|\n");
            last = account;
        }
        let verbs: Vec<String> = verbs.into_iter().collect();
        let needs: Vec<String> = needs.iter().map(|value| format!("`{value}`")).collect();
        let row = format!("| {place} | {} | {} | {} |", what.join(", "), verbs.join(", "), needs.join(", "));
        text += &format!("{}\n", row.replace("|  |", "| |"));
    }
    text
}

#[test]
fn page_lists_exactly_the_rights_that_the_chart_gives_its_programs() {
    let path = product::root().join("docs/reference/rights.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, _) = page.split_once("\n## ").unwrap_or((&page, ""));
    let text = head.to_owned() + &tables();
    for account in ["operator", "agent", "virtual-clusters", "release-finalizers"] {
        assert!(text.contains(&format!("\n## `gputenancy-{account}`")), "{text}");
    }
    assert_current(&path, &text);
}
