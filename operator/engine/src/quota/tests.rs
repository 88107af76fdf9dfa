//! The splitter without a cluster: where budgets lie, and what may happen while they move.

mod cap_allocation;
mod cap_commitment;
mod schedule;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

use super::{target::Want, *};

const GPU: &str = "requests.nvidia.com/gpu";

fn seat(used: i128, limit: i128) -> Seat {
    Seat { open: true, used, limit: Some(limit), wants: Vec::new() }
}

fn wanting(used: i128, limit: i128, amount: i128) -> Seat {
    Seat { wants: vec![Want { amount, stage: Stage::Open }], ..seat(used, limit) }
}

fn closed(used: i128) -> Seat {
    Seat { open: false, ..seat(used, 0) }
}

#[test]
fn a_new_budget_is_spread_in_whole_units_and_nothing_of_it_is_lost() {
    let new = vec![Seat { open: true, ..Seat::default() }; 3];
    assert_eq!(target(8, 1, &new), [3, 3, 2]);
    assert_eq!(target(2, 1, &new), [1, 1, 0]);
    assert_eq!(target(0, 1, &new), [0, 0, 0]);
    assert_eq!(target(1000, 64, &new), [360, 320, 320], "what is no whole unit goes to the first");
    assert_eq!(target(1000, 64, &new[..1]), [1000]);
}

#[test]
fn a_namespace_that_has_used_its_room_up_gets_more_from_those_that_do_not_use_theirs() {
    assert_eq!(target(8, 1, &[seat(4, 4), seat(0, 4)]), [6, 2]);
    assert_eq!(target(8, 1, &[seat(6, 6), seat(0, 2)]), [7, 1]);
    assert_eq!(target(8, 1, &[seat(7, 7), seat(0, 1)]), [7, 1], "the last one is not moved on a guess");
}

#[test]
fn while_there_is_room_nothing_moves() {
    assert_eq!(target(9, 1, &[seat(2, 3), seat(0, 3), seat(1, 3)]), [3, 3, 3]);
    assert_eq!(target(64, 1, &[seat(20, 32), seat(0, 32)]), [32, 32]);
}

#[test]
fn room_goes_where_pods_wait_and_others_keep_one_device_while_there_is_enough() {
    let others = || [seat(0, 2), seat(0, 2), seat(0, 1), seat(0, 1)];
    let with = |first: Seat, rest: [Seat; 4]| -> Vec<Seat> { std::iter::once(first).chain(rest).collect() };
    assert_eq!(target(8, 1, &with(wanting(2, 2, 1), others())), [4, 1, 1, 1, 1]);
    assert_eq!(target(8, 1, &with(wanting(4, 4, 1), [1; 4].map(|n| seat(0, n)))), [8, 0, 0, 0, 0]);
    assert_eq!(target(8, 1, &with(wanting(0, 2, 8), others())), [8, 0, 0, 0, 0], "one pod may want all of it");
}

#[test]
fn a_request_that_can_never_fit_takes_nothing_from_anybody() {
    assert_eq!(target(8, 1, &[wanting(2, 4, 9), seat(2, 4)]), [4, 4]);
    assert_eq!(target(8, 1, &[seat(5, 6), wanting(2, 2, 2)]), [6, 2]);
}

#[test]
fn of_those_who_wait_the_one_that_uses_least_comes_first() {
    assert_eq!(target(8, 1, &[wanting(4, 4, 1), wanting(3, 3, 1), seat(0, 1)]), [4, 4, 0]);
    assert_eq!(target(8, 1, &[wanting(3, 3, 1), wanting(3, 3, 1), seat(0, 2)]), [4, 4, 0]);
}

#[test]
fn room_that_a_pod_is_expected_for_is_not_taken_by_another() {
    let held = Seat { wants: vec![Want { amount: 1, stage: Stage::Held }], ..seat(2, 4) };
    assert_eq!(target(8, 1, &[held.clone(), wanting(4, 4, 1)]), [3, 5]);
    assert_eq!(target(8, 1, &[held, seat(4, 4)]), [4, 4], "and the other's room is not refilled meanwhile");
}

#[test]
fn what_is_used_in_closed_namespaces_counts() {
    assert_eq!(target(8, 1, &[closed(3), seat(0, 8)]), [0, 5]);
    assert_eq!(target(8, 1, &[closed(9), seat(0, 8)]), [0, 0]);
}

#[test]
fn beyond_the_budget_nobody_gets_anything_new_even_when_a_pod_ends() {
    assert_eq!(target(4, 1, &[seat(5, 6), seat(3, 4)]), [1, 0]);
    assert_eq!(target(8, 1, &[seat(5, 6), seat(3, 2)]), [5, 3], "exactly used up is not over");
}

fn limits(n: i128) -> Limits {
    [(GPU.to_owned(), Quantity(n.to_string()))].into()
}

fn account(written: i128, in_force: i128, used: i128, firm: bool) -> Account {
    let standing = Standing { written: limits(written), in_force: limits(in_force), used: limits(used) };
    Account {
        open: true,
        presence: Presence::There { standing, firm },
        steady: true,
        held: Amounts::new(),
        wants: Vec::new(),
    }
}

fn bare(presence: Presence) -> Account {
    Account { open: true, presence, steady: true, held: Amounts::new(), wants: Vec::new() }
}

fn orders(budget: i128, accounts: &[Account]) -> Vec<String> {
    let words = |order: Order| match order {
        Order::Leave => "leave".to_owned(),
        Order::Touch => "touch".to_owned(),
        Order::Write(limits) => limits.get(GPU).map(|q| q.0.clone()).unwrap_or_default(),
    };
    step(&limits(budget), accounts, false).orders.into_iter().map(words).collect()
}

#[test]
fn a_new_tenant_is_written_once() {
    assert_eq!(orders(8, &[bare(Presence::Fresh), bare(Presence::Fresh)]), ["4", "4"]);
    assert_eq!(orders(8, &[account(4, 4, 0, true), account(4, 4, 0, true)]), ["leave", "leave"]);
}

#[test]
fn lower_first_then_confirm_then_raise() {
    assert_eq!(orders(8, &[account(4, 4, 4, true), account(4, 4, 0, true)]), ["leave", "2"]);
    assert_eq!(orders(8, &[account(4, 4, 4, true), account(2, 4, 0, true)]), ["leave", "leave"]);
    assert_eq!(orders(8, &[account(4, 4, 4, true), account(2, 2, 0, true)]), ["6", "leave"]);
}

#[test]
fn nothing_is_raised_beside_a_quota_that_may_change_unseen() {
    assert_eq!(orders(8, &[account(4, 4, 4, false), account(2, 2, 0, false)]), ["leave", "touch"]);
    assert_eq!(orders(8, &[account(4, 4, 4, false), account(4, 4, 0, false)]), ["leave", "2"], "a write is a touch");
    assert_eq!(
        orders(8, &[account(4, 4, 4, false), account(2, 2, 0, true)]),
        ["6", "leave"],
        "its own version guards it"
    );
}

#[test]
fn a_quota_that_was_deleted_comes_back_at_zero_until_its_use_is_known() {
    assert_eq!(orders(8, &[bare(Presence::Bare), account(4, 4, 4, true)]), ["0", "leave"]);
    assert_eq!(orders(8, &[account(0, 0, 3, true), account(4, 4, 4, true)]), ["4", "leave"]);
}

#[test]
fn a_namespace_that_joins_gets_its_part_when_the_others_have_given_it() {
    assert_eq!(orders(8, &[account(8, 8, 0, true), bare(Presence::Fresh)]), ["4", "0"]);
    assert_eq!(orders(8, &[account(4, 4, 0, true), account(0, 0, 0, true)]), ["leave", "4"]);
}

#[test]
fn a_suspended_tenant_admits_nothing_and_a_resumed_one_does_again() {
    let accounts = [account(4, 4, 2, true), account(4, 4, 0, true)];
    let suspended = step(&limits(8), &accounts, true);
    assert_eq!(suspended.targets, [limits(0), limits(0)]);
    assert_eq!(orders(8, &[account(0, 0, 2, true), account(0, 0, 0, true)]), ["5", "3"]);
}

#[test]
fn a_resource_that_leaves_the_catalog_stays_limited_to_zero() {
    let gone = step(&Limits::new(), &[account(8, 8, 2, true)], false);
    assert_eq!(gone.orders, [Order::Write(limits(0))]);
}

#[test]
fn memory_and_cpu_are_split_into_round_amounts() {
    let budget: Limits =
        [("requests.memory", "1024Gi"), ("requests.cpu", "1"), ("limits.memory", "1000M"), ("pods", "20")]
            .map(|(key, text)| (key.to_owned(), Quantity(text.to_owned())))
            .into();
    let targets = step(&budget, &[bare(Presence::Fresh), bare(Presence::Fresh), bare(Presence::Fresh)], false).targets;
    let of = |key: &str| targets.iter().map(|t| t[key].0.clone()).collect::<Vec<_>>();
    assert_eq!(of("requests.memory"), ["349526Mi", "349525Mi", "349525Mi"]);
    assert_eq!(of("requests.cpu"), ["334m", "333m", "333m"]);
    assert_eq!(of("pods"), ["7", "7", "6"]);
    let whole: i128 = targets.iter().filter_map(|t| Amount::parse(&t["limits.memory"])).map(Amount::milli).sum();
    assert_eq!(whole, 1_000_000_000_000);
    assert_eq!(of("limits.memory")[1..], ["318Mi", "317Mi"]);
}

#[test]
fn canonical_forms_of_the_server_are_no_drift() {
    let of = |text: &str| Limits::from([("requests.memory".to_owned(), Quantity(text.into()))]);
    assert!(same(&of("1024Mi"), &of("1Gi")));
    assert!(!same(&of("1Gi"), &of("2Gi")));
    assert!(!same(&of("1Gi"), &Limits::new()));
}

fn any_seat() -> impl Strategy<Value = Seat> {
    let stage = prop_oneof![Just(Stage::Open), Just(Stage::Held), Just(Stage::Lingering)];
    let want = (1..12_i128, stage).prop_map(|(amount, stage)| Want { amount, stage });
    (prop::bool::weighted(0.85), 0..12_i128, prop::option::weighted(0.9, 0..20_i128), prop::collection::vec(want, 0..3))
        .prop_map(|(open, used, limit, wants)| Seat { open, used, limit, wants })
}

fn moved(seats: &[Seat], limits: &[i128], only_down: bool) -> Vec<Seat> {
    let follow = |(seat, limit): (&Seat, &i128)| {
        let raised = *limit > seat.limit.unwrap_or(0);
        let limit = if only_down && raised { seat.limit } else { Some(*limit) };
        Seat { limit, ..seat.clone() }
    };
    seats.iter().zip(limits).map(follow).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(4000), ..ProptestConfig::default() })]

    /// Within the budget, all of it, nobody below what it uses, closed ones at nothing.
    #[test]
    fn targets_are_the_budget_and_leave_everybody_what_it_uses(
        budget in 0..60_i128, unit in prop_oneof![Just(1_i128), Just(4)], seats in prop::collection::vec(any_seat(), 1..6)
    ) {
        let limits = target(budget, unit, &seats);
        let used: i128 = seats.iter().map(|s| s.used).sum();
        let counted: i128 = limits.iter().zip(&seats).map(|(l, s)| if s.open { *l } else { s.used }).sum();
        if used <= budget {
            prop_assert!(counted <= budget, "{limits:?}");
            let anybody = seats.iter().any(|s| s.open);
            prop_assert!(!anybody || counted == budget, "something is nobody's: {limits:?}");
            for (limit, seat) in limits.iter().zip(&seats) {
                prop_assert!(if seat.open { *limit >= seat.used } else { *limit == 0 }, "{limits:?}");
            }
        } else {
            let over = used - budget;
            for (limit, seat) in limits.iter().zip(&seats) {
                prop_assert!(*limit <= (seat.used - over).max(0), "{limits:?}");
            }
        }
    }

    /// Reached targets are targets, and so are half-reached ones: lowered limits change nobody's mind.
    #[test]
    fn a_target_that_is_reached_or_half_reached_stays(
        budget in 0..60_i128, unit in prop_oneof![Just(1_i128), Just(4)], seats in prop::collection::vec(any_seat(), 1..6)
    ) {
        let used: i128 = seats.iter().filter(|s| !s.open).map(|s| s.used).sum();
        let had: i128 = seats.iter().filter(|s| s.open).map(|s| s.limit.unwrap_or(0).max(s.used)).sum();
        // limits that are too high, by an edit or a smaller budget, come down first
        let seats = if had + used <= budget { seats } else { moved(&seats, &target(budget, unit, &seats), false) };
        let limits = target(budget, unit, &seats);
        let mut reached = moved(&seats, &limits, false);
        if unit == 1 {
            prop_assert_eq!(&target(budget, unit, &reached), &limits, "reached");
            prop_assert_eq!(&target(budget, unit, &moved(&seats, &limits, true)), &limits, "half reached");
        }
        // parts of units, which come with odd use, may add up to one that moves once more
        for _ in 0..seats.len() {
            reached = moved(&reached, &target(budget, unit, &reached), false);
        }
        let last: Vec<i128> = reached.iter().map(|s| s.limit.unwrap_or(0)).collect();
        prop_assert_eq!(target(budget, unit, &reached), last, "in the end");
    }

    /// Whoever waits for what is free, or held by nobody who is expected, gets it.
    #[test]
    fn one_who_waits_alone_can_have_all_that_is_not_used(
        budget in 1..60_i128, seats in prop::collection::vec((0..12_i128, 0..20_i128), 1..6), amount in 1..20_i128
    ) {
        let mut seats: Vec<Seat> = seats.into_iter().map(|(used, limit)| seat(used, limit)).collect();
        let free = budget - seats.iter().map(|s| s.used).sum::<i128>();
        seats[0].wants = vec![Want { amount, stage: Stage::Open }];
        let limits = target(budget, 1, &seats);
        prop_assert_eq!(limits[0] >= seats[0].used + amount, amount <= free, "{:?} of {}", limits, free);
    }
}

/// How many cases are tried; `SPLIT_CASES` asks for more.
fn cases(default: u32) -> u32 {
    std::env::var("SPLIT_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}
