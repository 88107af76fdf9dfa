//! One quota after the other under a cap: what one resource gives up is in force before another gets it.

use super::*;

const ONE: &str = "requests.nvidia.com/mig-1g.10gb";

/// One whole GPU: eight small devices, or the GPU itself.
fn cap() -> Cap {
    let weights = [(ONE.to_owned(), Weight::new(1, 8).unwrap())];
    Cap { whole: Amount::of_milli(1000), weights: weights.into() }
}

fn both(whole: i128, small: i128) -> Limits {
    [(GPU, whole), (ONE, small)].map(|(key, n)| (key.to_owned(), Quantity(n.to_string()))).into()
}

fn quota(written: Limits, in_force: Limits, used: Limits) -> Account {
    Account {
        presence: Presence::There { standing: Standing { written, in_force, used }, firm: true },
        ..bare(Presence::Bare)
    }
}

/// Its small devices have gone, and a controller was refused the GPU.
fn moving(written: Limits, in_force: Limits) -> Account {
    let wants = vec![Wanted { amounts: [(GPU.to_owned(), Amount::units(1))].into(), stage: Stage::Open }];
    Account { wants, ..quota(written, in_force, both(0, 0)) }
}

fn ordered(accounts: &[Account]) -> Vec<Order> {
    step_under(&both(1, 8), &cap(), accounts, false).orders
}

#[test]
fn in_one_quota_a_resource_is_lowered_and_confirmed_before_another_rises() {
    assert_eq!(ordered(&[moving(both(0, 8), both(0, 8))]), [Order::Write(both(0, 0))]);
    assert_eq!(ordered(&[moving(both(0, 0), both(0, 8))]), [Order::Leave], "eight may still be admitted");
    assert_eq!(ordered(&[moving(both(0, 0), both(0, 0))]), [Order::Write(both(1, 0))]);
    let unsteady = Account { steady: false, ..moving(both(0, 0), both(0, 0)) };
    let step = step_under(&both(1, 8), &cap(), &[unsteady], false);
    assert_eq!((step.orders, step.waits), (vec![Order::Leave], true), "one that was admitted may not be counted yet");
}

#[test]
fn nothing_rises_beside_a_quota_that_does_not_limit_all_of_it_yet() {
    let half = |n| limits(n);
    let new = quota(half(0), half(0), half(0));
    let orders = ordered(&[moving(both(0, 0), both(0, 0)), new.clone()]);
    assert_eq!(orders, [Order::Leave, Order::Write(both(0, 0))], "small devices are not limited in it");
    let free = step(&both(1, 8), &[moving(both(0, 0), both(0, 0)), new], false).orders;
    assert_eq!(free[0], Order::Write(both(1, 0)), "without a cap only its own resource counts");
}

#[test]
fn pods_that_the_quota_has_not_counted_yet_weigh_as_well() {
    let mut account = moving(both(0, 0), both(0, 0));
    account.held = [(ONE.to_owned(), Amount::units(1))].into();
    assert!(!ordered(&[account]).contains(&Order::Write(both(1, 0))));
}

#[test]
fn what_is_used_beyond_the_cap_is_said_in_whole_gpus() {
    let step = step_under(&both(1, 8), &cap(), &[quota(both(1, 8), both(1, 8), both(1, 2))], false);
    assert_eq!((step.over_cap, step.over), (Amount::of_milli(250), Amounts::new()));
    assert_eq!(step.orders, [Order::Write(both(0, 0))]);
}
