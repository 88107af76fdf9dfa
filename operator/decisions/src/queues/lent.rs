//! Which team's idle devices others use.

use std::collections::BTreeMap;

use super::{Cell, Table, split::by_weight};

/// Devices of one team in use, as the scheduler counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// All.
    pub total: i64,
    /// Of these, above the nominal limit.
    pub borrowed: i64,
}

/// Devices in use by team.
pub type Uses = BTreeMap<String, BTreeMap<Cell, Used>>;

/// Devices of each team that others use, by resource. What is borrowed comes from the spare devices first; the rest is attributed to the teams that
/// lend, in proportion to what each of them leaves idle: the scheduler does not say whose device a borrower has.
pub fn lent(
    tables: &BTreeMap<String, Table>,
    spare: &BTreeMap<Cell, i64>,
    uses: &Uses,
) -> BTreeMap<(String, String), i64> {
    let mut lent: BTreeMap<(String, String), i64> = BTreeMap::new();
    for cell in tables.values().flat_map(|table| table.keys()).collect::<std::collections::BTreeSet<_>>() {
        let borrowed: i64 = uses.values().filter_map(|of| of.get(cell)).map(|used| used.borrowed).sum();
        let of_teams = (borrowed - spare.get(cell).copied().unwrap_or(0)).max(0);
        let idle: Vec<(&String, i64)> = tables
            .iter()
            .filter_map(|(team, table)| {
                let limits = table.get(cell)?;
                let own = uses.get(team).and_then(|of| of.get(cell)).map_or(0, |used| used.total - used.borrowed);
                Some((team, limits.lend.min(limits.nominal - own).max(0)))
            })
            .collect();
        let weights: Vec<i64> = idle.iter().map(|(_, idle)| *idle).collect();
        let parts = by_weight(of_teams.min(weights.iter().sum()), &weights);
        for ((team, _), part) in idle.into_iter().zip(parts).filter(|(_, part)| *part > 0) {
            *lent.entry((team.clone(), cell.resource.clone())).or_default() += part;
        }
    }
    lent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::Limits;

    #[test]
    fn what_exceeds_the_spare_devices_is_attributed_to_the_teams_that_lend() {
        let cell = Cell { flavor: "p".into(), resource: "r".into() };
        let table = |nominal, lend| Table::from([(cell.clone(), Limits { nominal, borrow: 0, lend })]);
        let tables =
            [("a".to_owned(), table(1, 0)), ("b".to_owned(), table(4, 4)), ("c".to_owned(), table(2, 2))].into();
        let of = |total, borrowed| BTreeMap::from([(cell.clone(), Used { total, borrowed })]);
        let uses = Uses::from([("a".to_owned(), of(5, 4)), ("b".to_owned(), of(2, 0))]);
        let lent = lent(&tables, &[(cell.clone(), 1)].into(), &uses);
        assert_eq!(lent, [(("b".into(), "r".into()), 2), (("c".into(), "r".into()), 1)].into());
    }
}
