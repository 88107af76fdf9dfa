//! Limits in the form in which objects of Kueue have them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::quantity::Amount;
use gputenancy_decisions::queues::{Cell, Limits, Table, Used};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Whose limits they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A team's queue.
    Team,
    /// A group of teams, which lends nothing to other groups.
    Group,
    /// The devices of no guarantee.
    Spare,
}

/// `spec.resourceGroups[]` of a `ClusterQueue` or a `Cohort`.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceGroup {
    covered_resources: Vec<String>,
    flavors: Vec<FlavorQuotas>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct FlavorQuotas {
    name: String,
    resources: Vec<ResourceQuota>,
}

/// Quantities, of which Kueue stores whole numbers as texts.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct ResourceQuota {
    name: String,
    nominal_quota: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    borrowing_limit: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lending_limit: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FlavorUsage {
    name: String,
    resources: Vec<ResourceUsage>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ResourceUsage {
    name: String,
    total: Value,
    borrowed: Value,
}

/// The limits of a table: each flavor lists each resource, in the same order, 0 where it has none.
pub fn groups(table: &Table, owner: Owner) -> Vec<ResourceGroup> {
    let resources: BTreeSet<&String> = table.keys().map(|cell| &cell.resource).collect();
    let flavors: BTreeSet<&String> = table.keys().map(|cell| &cell.flavor).collect();
    let quota = |flavor: &String, resource: &String| {
        let cell = Cell { flavor: flavor.clone(), resource: resource.clone() };
        let Limits { nominal, borrow, lend } = table.get(&cell).copied().unwrap_or_default();
        let text = |n: i64| Value::String(n.to_string());
        ResourceQuota {
            name: resource.clone(),
            nominal_quota: text(nominal),
            borrowing_limit: (owner == Owner::Team).then(|| text(borrow)),
            lending_limit: (owner != Owner::Spare).then(|| text(if owner == Owner::Team { lend } else { 0 })),
        }
    };
    let flavors: Vec<FlavorQuotas> = flavors
        .iter()
        .map(|flavor| FlavorQuotas {
            name: (*flavor).clone(),
            resources: resources.iter().map(|resource| quota(flavor, resource)).collect(),
        })
        .collect();
    let group = ResourceGroup { covered_resources: resources.iter().map(|r| (*r).clone()).collect(), flavors };
    if resources.is_empty() { Vec::new() } else { vec![group] }
}

/// What a `ClusterQueue` says is in use of each cell.
pub fn uses(status: Option<&Value>) -> BTreeMap<Cell, Used> {
    let flavors = status.and_then(|status| status.get("flavorsUsage").cloned()).unwrap_or_default();
    let flavors: Vec<FlavorUsage> = serde_json::from_value(flavors).unwrap_or_default();
    let cells = flavors.into_iter().flat_map(|flavor| {
        let name = flavor.name;
        flavor.resources.into_iter().map(move |of| {
            let used = Used { total: number(&of.total), borrowed: number(&of.borrowed) };
            (Cell { flavor: name.clone(), resource: of.name }, used)
        })
    });
    cells.collect()
}

/// Whole devices of a quantity, which is a number or a text such as `1k`.
pub fn number(quantity: &Value) -> i64 {
    let text = quantity.as_str().map_or_else(|| quantity.to_string(), str::to_owned);
    let whole = |amount: Amount| i64::try_from(amount.milli() / 1000).ok();
    Amount::parse(&Quantity(text)).and_then(whole).unwrap_or_default()
}

/// The limits that the spec of an object of Kueue has.
pub fn table(spec: Option<&Value>) -> Table {
    let groups = spec.and_then(|spec| spec.get("resourceGroups").cloned()).unwrap_or_default();
    // of an object that was not written by the operator anything may be unreadable
    let groups: Vec<ResourceGroup> = serde_json::from_value(groups).unwrap_or_default();
    let cells = groups.into_iter().flat_map(|group| group.flavors).flat_map(|flavor| {
        let name = flavor.name;
        flavor.resources.into_iter().map(move |quota| {
            let limits = Limits {
                nominal: number(&quota.nominal_quota),
                borrow: quota.borrowing_limit.as_ref().map_or(0, number),
                lend: quota.lending_limit.as_ref().map_or(0, number),
            };
            (Cell { flavor: name.clone(), resource: quota.name }, limits)
        })
    });
    cells.collect()
}
