use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn cell(pool: &str, resource: &str) -> Cell {
    Cell { flavor: pool.into(), resource: resource.into() }
}

fn team(name: &str, rank: i32, gpus: &[(&str, i64, i64, i64)]) -> Team {
    let gpus = gpus.iter().map(|(resource, count, borrow, lend)| {
        ((*resource).to_owned(), Entitlement { count: *count, borrow: *borrow, lend: *lend })
    });
    Team { name: name.into(), rank, gpus: gpus.collect() }
}

fn supply(devices: &[(&str, &str, i64)]) -> Supply {
    Supply {
        devices: devices.iter().map(|(pool, resource, n)| (cell(pool, resource), *n)).collect(),
        ..Supply::default()
    }
}

fn nominal(shares: &Shares, team: &str, pool: &str) -> i64 {
    shares.teams[team].get(&cell(pool, "r")).map_or(0, |limits| limits.nominal)
}

#[test]
fn guarantees_are_nominal_and_the_rest_is_spare() {
    let teams = [team("a", 0, &[("r", 2, 2, 0)]), team("b", 0, &[("r", 3, 0, 1)])];
    let shares = divide(&teams, &supply(&[("p", "r", 8)]), &BTreeMap::new());
    assert_eq!(shares.teams["a"][&cell("p", "r")], Limits { nominal: 2, borrow: 2, lend: 0 });
    assert_eq!(shares.teams["b"][&cell("p", "r")], Limits { nominal: 3, borrow: 0, lend: 1 });
    assert_eq!(shares.spare[&cell("p", "r")], 3);
    assert!(shares.missing.is_empty());
}

#[test]
fn higher_ranks_are_served_first_and_equal_ones_in_proportion() {
    let teams = [team("a", 0, &[("r", 4, 0, 0)]), team("b", 1, &[("r", 2, 0, 0)]), team("c", 0, &[("r", 2, 0, 0)])];
    let shares = divide(&teams, &supply(&[("p", "r", 5)]), &BTreeMap::new());
    assert_eq!(["a", "b", "c"].map(|name| nominal(&shares, name, "p")), [2, 2, 1]);
    assert_eq!(shares.missing, [(("a".into(), "r".into()), 2), (("c".into(), "r".into()), 1)].into());
}

#[test]
fn team_keeps_its_pools_and_grows_where_most_is_left() {
    let teams = [team("a", 0, &[("r", 3, 0, 0)])];
    let had = Limits { nominal: 2, ..Limits::default() };
    let before = [("a".to_owned(), Table::from([(cell("p", "r"), had)]))].into();
    let shares = divide(&teams, &supply(&[("p", "r", 4), ("q", "r", 9)]), &before);
    assert_eq!((nominal(&shares, "a", "p"), nominal(&shares, "a", "q")), (2, 1));
    let first = divide(&teams, &supply(&[("p", "r", 4), ("q", "r", 9)]), &BTreeMap::new());
    assert_eq!((nominal(&first, "a", "p"), nominal(&first, "a", "q")), (0, 3));
}

#[test]
fn pods_of_no_queue_count_against_the_guarantee_and_against_the_devices() {
    let mut supply = supply(&[("p", "r", 6)]);
    supply.unqueued = [(("a".into(), cell("p", "r")), 1), ((String::new(), cell("p", "r")), 2)].into();
    let shares = divide(&[team("a", 0, &[("r", 4, 0, 4)])], &supply, &BTreeMap::new());
    assert_eq!(shares.teams["a"][&cell("p", "r")], Limits { nominal: 3, borrow: 0, lend: 3 });
    assert_eq!(shares.spare[&cell("p", "r")], 0);
}

#[test]
fn borrowing_over_two_pools_is_not_more_than_in_the_spec() {
    let teams = [team("a", 0, &[("r", 0, 3, 0)])];
    let shares = divide(&teams, &supply(&[("p", "r", 2), ("q", "r", 1)]), &BTreeMap::new());
    let borrow = |pool| shares.teams["a"][&cell(pool, "r")].borrow;
    assert_eq!((borrow("p"), borrow("q")), (2, 1));
}

#[test]
fn lowering_writes_come_before_raising_ones() {
    let table = |n| Table::from([(cell("p", "r"), Limits { nominal: n, ..Limits::default() })]);
    let live = BTreeMap::from([("a", table(1)), ("b", table(3))]);
    let writes = plan_writes(&live, &BTreeMap::from([("a", table(3)), ("b", table(1))]));
    assert_eq!((writes.lower, writes.raise), ([("b", table(1))].into(), [("a", table(3))].into()));
    let none = plan_writes(&live, &live);
    assert!(none.lower.is_empty() && none.raise.is_empty());
}

#[test]
fn queue_of_a_team_that_is_gone_is_lowered_to_nothing() {
    let table = |n| Table::from([(cell("p", "r"), Limits { nominal: n, ..Limits::default() })]);
    let writes = plan_writes(&BTreeMap::from([("a", table(3))]), &BTreeMap::new());
    assert_eq!((writes.lower, writes.raise), ([("a", table(0))].into(), BTreeMap::new()));
}

const POOLS: [&str; 3] = ["p", "q", "s"];
const RESOURCES: [&str; 2] = ["r", "t"];
const TEAMS: [&str; 4] = ["a", "b", "c", "d"];

/// One moment of a history: devices, teams, pods that no queue has admitted.
fn moment() -> impl Strategy<Value = (Vec<Team>, Supply)> {
    let entitlement = (0_i64..6, 0_i64..5, 0_i64..6).prop_map(|(count, borrow, lend)| Entitlement {
        count,
        borrow,
        lend: lend.min(count),
    });
    let gpus =
        prop::collection::btree_map(prop::sample::select(&RESOURCES[..]).prop_map(String::from), entitlement, 0..3);
    let teams = prop::collection::btree_map(prop::sample::select(&TEAMS[..]), (-1_i32..2, gpus), 0..5);
    let cells =
        || (prop::sample::select(&POOLS[..]), prop::sample::select(&RESOURCES[..])).prop_map(|(p, r)| cell(p, r));
    let devices = prop::collection::btree_map(cells(), 0_i64..9, 0..6);
    let holder = prop::sample::select(&["", "a", "b"][..]).prop_map(String::from);
    let unqueued = prop::collection::btree_map((holder, cells()), 0_i64..4, 0..3);
    (teams, devices, unqueued).prop_map(|(teams, devices, unqueued)| {
        let teams =
            teams.into_iter().map(|(name, (rank, gpus))| Team { name: name.into(), rank, gpus }).collect::<Vec<_>>();
        (teams, Supply { devices, unqueued })
    })
}

/// Sum of nominal limits of a cell over all objects.
fn sum(objects: &BTreeMap<Option<String>, Table>, cell: &Cell) -> i64 {
    objects.values().filter_map(|table| table.get(cell)).map(|limits| limits.nominal).sum()
}

fn wanted(shares: &Shares) -> BTreeMap<Option<String>, Table> {
    let spare = shares.spare.iter().map(|(cell, n)| (cell.clone(), Limits { nominal: *n, ..Limits::default() }));
    let teams = shares.teams.iter().map(|(name, table)| (Some(name.clone()), table.clone()));
    teams.chain([(None, spare.collect())]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000), ..ProptestConfig::default() })]

    /// Over any history of devices and teams, and after every single write: sums stay within the devices, guarantees within the spec.
    #[test]
    fn limits_never_exceed_devices_guarantees_and_what_is_lent(history in prop::collection::vec(moment(), 1..6)) {
        let mut live: BTreeMap<Option<String>, Table> = BTreeMap::new();
        for (teams, supply) in history {
            let before: BTreeMap<String, Table> =
                live.iter().filter_map(|(key, table)| Some((key.clone()?, table.clone()))).collect();
            let shares = divide(&teams, &supply, &before);
            let wanted = wanted(&shares);
            let mut cells: Vec<Cell> = supply.devices.keys().cloned().collect();
            cells.extend(live.values().flat_map(|table| table.keys().cloned()));
            let start = live.clone();
            let QueueWrites { lower, raise } = plan_writes(&live, &wanted);
            let writes = lower.into_iter().map(|write| (write, false)).chain(raise.into_iter().map(|write| (write, true)));
            for ((key, table), raising) in writes {
                live.insert(key, table);
                for cell in &cells {
                    let devices = supply.devices.get(cell).copied().unwrap_or(0);
                    let limit = if raising { devices } else { devices.max(sum(&start, cell)) };
                    prop_assert!(sum(&live, cell) <= limit, "{cell:?}: {} of {devices}", sum(&live, cell));
                }
            }
            live.retain(|key, _| wanted.contains_key(key));
            prop_assert_eq!(&live, &wanted);
            let again = plan_writes(&live, &wanted);
            prop_assert!(again.lower.is_empty() && again.raise.is_empty());
            for team in &teams {
                let table = &shares.teams[&team.name];
                for (resource, Entitlement { count, borrow, lend }) in &team.gpus {
                    let total = |of: fn(&Limits) -> i64| -> i64 {
                        table.iter().filter(|(cell, _)| &cell.resource == resource).map(|(_, limits)| of(limits)).sum()
                    };
                    let lacks = shares.missing.get(&(team.name.clone(), resource.clone())).copied().unwrap_or(0);
                    let used: i64 = supply.unqueued.iter()
                        .filter(|((name, cell), _)| name == &team.name && &cell.resource == resource).map(|(_, n)| n).sum();
                    prop_assert_eq!(total(|l| l.nominal) + lacks, (count - used).max(0));
                    prop_assert!(total(|l| l.lend) <= *lend && table.values().all(|l| l.lend <= l.nominal));
                    prop_assert!(total(|l| l.borrow) <= *borrow);
                }
                prop_assert!(table.keys().all(|cell| team.gpus.contains_key(&cell.resource)));
            }
            // the same observation gives the same division
            prop_assert_eq!(&divide(&teams, &supply, &before), &shares);
        }
    }

    /// A division that is in force is kept.
    #[test]
    fn division_in_force_is_kept((teams, supply) in moment()) {
        let shares = divide(&teams, &supply, &BTreeMap::new());
        prop_assert_eq!(divide(&teams, &supply, &shares.teams), shares);
    }
}
