//! The order of writes.

use std::collections::BTreeMap;

use super::{Limits, Table};

/// The limits to write, by object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueWrites<K> {
    /// First: they lower nominal limits, and raise none.
    pub lower: BTreeMap<K, Table>,
    /// Then: the wanted limits of the objects that differ from them after that.
    pub raise: BTreeMap<K, Table>,
}

/// The writes that turn the limits in force into the wanted ones. All that lower a nominal limit come before the first that raises one, and an object
/// that does both is written twice: the sum over all objects never exceeds the larger one of before and after. An object that is not wanted any more
/// is lowered to nothing; its deletion may wait for running work.
pub fn plan_writes<K: Clone + Ord>(live: &BTreeMap<K, Table>, wanted: &BTreeMap<K, Table>) -> QueueWrites<K> {
    let nothing = Table::new();
    let lower: BTreeMap<K, Table> = live
        .iter()
        .filter_map(|(key, table)| Some((key.clone(), lowered(table, wanted.get(key).unwrap_or(&nothing))?)))
        .collect();
    let after = |key: &K| lower.get(key).or_else(|| live.get(key));
    let raise = wanted.iter().filter(|(key, table)| after(key) != Some(table));
    QueueWrites { raise: raise.map(|(key, table)| (key.clone(), table.clone())).collect(), lower }
}

/// The wanted limits, with nominal limits that are not above those in force; `None`: no nominal limit is lowered.
fn lowered(live: &Table, wanted: &Table) -> Option<Table> {
    let of = |table: &Table, cell| table.get(cell).copied().unwrap_or_default();
    if live.iter().all(|(cell, limits)| limits.nominal <= of(wanted, cell).nominal) {
        return None;
    }
    let cells = live.keys().chain(wanted.keys());
    let limits = cells.map(|cell| {
        let (had, wants) = (of(live, cell), of(wanted, cell));
        let nominal = had.nominal.min(wants.nominal);
        (cell.clone(), Limits { nominal, lend: wants.lend.min(nominal), ..wants })
    });
    // a queue keeps the cells of its spec: one that is left out would end the work that was admitted there
    Some(limits.collect())
}
