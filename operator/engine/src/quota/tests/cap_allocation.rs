//! How a cap lies on resources. Weights are in eighths of a GPU, as on an A100 with MIG.

use super::{
    super::cap_allocation::{Line, allot},
    *,
};

const ONE: i128 = 1;
const HALF: i128 = 4;
const WHOLE: i128 = 8;

/// A resource in one namespace, in devices.
fn line(weight: i128, most: i128, seat: Seat) -> Line {
    let milli = |n: i128| n * 1000;
    let Seat { open, used, limit, wants } = seat;
    let wants = wants.into_iter().map(|w| Want { amount: milli(w.amount), ..w }).collect();
    let seat = Seat { open, used: milli(used), limit: limit.map(milli), wants };
    Line { weight, most: milli(most), seats: vec![seat] }
}

/// The budget of each line in devices, under a cap in eighths.
fn budgets(cap: i128, lines: &[Line]) -> Vec<i128> {
    allot(cap * 1000, lines).into_iter().map(|n| n / 1000).collect()
}

fn fresh() -> Seat {
    Seat { open: true, ..Seat::default() }
}

#[test]
fn a_new_cap_is_spread_by_weight_and_no_resource_gets_more_than_its_budget() {
    assert_eq!(budgets(28, &[line(ONE, 14, fresh()), line(HALF, 4, fresh())]), [14, 3], "two eighths fit nobody");
    assert_eq!(budgets(28, &[line(ONE, 4, fresh()), line(HALF, 7, fresh())]), [4, 6]);
    assert_eq!(budgets(28, &[line(ONE, 99, fresh()), line(HALF, 0, fresh())]), [28, 0]);
    assert_eq!(budgets(800, &[line(ONE, 14, fresh()), line(HALF, 4, fresh())]), [14, 4], "a cap above all is none");
    assert_eq!(budgets(4, &[line(WHOLE, 2, fresh()), line(ONE, 9, fresh())]), [0, 4]);
}

#[test]
fn while_there_is_room_nothing_moves_and_a_resource_that_is_short_gets_some_of_those_that_are_not() {
    assert_eq!(budgets(16, &[line(ONE, 16, seat(2, 8)), line(HALF, 4, seat(0, 2))]), [8, 2]);
    assert_eq!(budgets(16, &[line(ONE, 16, seat(8, 8)), line(HALF, 4, seat(0, 2))]), [12, 1]);
    assert_eq!(budgets(16, &[line(ONE, 16, seat(15, 15)), line(HALF, 4, seat(0, 0))]), [16, 0]);
    assert_eq!(
        budgets(8, &[line(ONE, 8, seat(0, 0)), line(HALF, 2, seat(1, 2))]),
        [0, 2],
        "the last one is not moved on a guess"
    );
}

#[test]
fn room_goes_to_the_resource_that_pods_wait_for() {
    assert_eq!(
        budgets(28, &[line(ONE, 28, seat(14, 14)), line(HALF, 7, wanting(3, 3, 1))]),
        [16, 3],
        "two eighths are too little for it"
    );
    assert_eq!(budgets(28, &[line(ONE, 28, wanting(14, 14, 1)), line(HALF, 7, seat(0, 3))]), [24, 1]);
    assert_eq!(
        budgets(28, &[line(ONE, 28, wanting(0, 14, 28)), line(HALF, 7, seat(0, 3))]),
        [28, 0],
        "one pod wants all"
    );
    assert_eq!(
        budgets(28, &[line(ONE, 28, wanting(0, 14, 29)), line(HALF, 7, seat(0, 3))]),
        [16, 3],
        "never to be had"
    );
    assert_eq!(
        budgets(28, &[line(ONE, 4, wanting(3, 3, 1)), line(HALF, 7, seat(0, 6))]),
        [4, 6],
        "others keep the rest"
    );
}

#[test]
fn of_resources_that_pods_wait_for_the_one_whose_use_weighs_least_comes_first() {
    assert_eq!(budgets(16, &[line(ONE, 16, wanting(8, 8, 6)), line(HALF, 4, wanting(1, 1, 1))]), [8, 2]);
    assert_eq!(budgets(16, &[line(ONE, 16, wanting(3, 3, 6)), line(HALF, 4, wanting(1, 1, 1))]), [12, 1]);
    assert_eq!(budgets(16, &[line(ONE, 16, wanting(8, 8, 1)), line(HALF, 4, wanting(0, 0, 1))]), [12, 1]);
}

#[test]
fn what_weighs_too_much_admits_nothing_new_of_any_resource_before_as_much_has_ended() {
    assert_eq!(budgets(16, &[line(ONE, 16, seat(10, 12)), line(HALF, 4, seat(2, 2))]), [8, 1]);
    assert_eq!(budgets(16, &[line(ONE, 16, seat(1, 12)), line(WHOLE, 4, seat(2, 2))]), [0, 1]);
    assert_eq!(budgets(16, &[line(ONE, 16, seat(8, 12)), line(HALF, 4, seat(2, 2))]), [8, 2], "exactly used up");
}

fn any_line() -> impl Strategy<Value = Line> {
    let weight = prop_oneof![Just(ONE), Just(2), Just(3), Just(HALF), Just(WHOLE)];
    (weight, 0..20_i128, any_seat()).prop_map(|(weight, most, seat)| line(weight, most, seat))
}

fn reached(lines: &[Line], budgets: &[i128], only_down: bool) -> Vec<Line> {
    let follow = |(line, budget): (&Line, &i128)| {
        let seat = line.seats[0].clone();
        let raised = *budget > seat.limit.unwrap_or(0).max(seat.used);
        let limit = if only_down && raised { seat.limit } else { Some(*budget) };
        Line { seats: vec![Seat { limit, ..seat }], ..line.clone() }
    };
    lines.iter().zip(budgets).map(follow).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(4000), ..ProptestConfig::default() })]

    /// Within the cap and each budget, nothing that fits is kept back, nobody below what is used.
    #[test]
    fn what_is_allotted_is_the_cap(cap in 0..100_i128, lines in prop::collection::vec(any_line(), 1..6)) {
        let allotted = allot(cap * 1000, &lines);
        let used: i128 = lines.iter().map(|l| l.seats[0].used * l.weight).sum();
        let weighs: i128 = allotted.iter().zip(&lines).map(|(n, l)| (*n).max(l.seats[0].used) * l.weight).sum();
        for (n, line) in allotted.iter().zip(&lines) {
            prop_assert!(*n <= line.most.max(0) && n % 1000 == 0, "{allotted:?}");
        }
        if used <= cap * 1000 {
            prop_assert!(weighs <= cap * 1000, "{allotted:?}");
            for (n, line) in allotted.iter().zip(&lines) {
                let most = if line.seats[0].open { line.most } else { line.seats[0].used.min(line.most) };
                prop_assert!(*n >= line.seats[0].used.min(line.most), "{allotted:?}");
                // while somebody waits, what nobody had may be kept back
                let waits = lines.iter().any(|l| l.seats[0].wants.iter().any(|w| w.stage == Stage::Open));
                prop_assert!(waits || *n >= most || weighs + line.weight * 1000 > cap * 1000, "{allotted:?}");
            }
        } else {
            for (n, line) in allotted.iter().zip(&lines) {
                let left = (line.seats[0].used - n) * line.weight;
                prop_assert!(*n == 0 || left >= used - cap * 1000, "{allotted:?}");
            }
        }
    }

    /// What is reached stays, and so does what is half reached: lowered limits change nobody's mind.
    #[test]
    fn what_is_allotted_and_reached_or_half_reached_stays(
        cap in 0..100_i128, lines in prop::collection::vec(any_line(), 1..6)
    ) {
        let had = |l: &Line| {
            let seat = &l.seats[0];
            if seat.open { seat.limit.unwrap_or(0).max(seat.used) } else { seat.used }
        };
        let too_high = lines.iter().any(|l| had(l) > l.most.max(l.seats[0].used));
        let too_heavy = lines.iter().map(|l| had(l) * l.weight).sum::<i128>() > cap * 1000;
        // limits that are too high, by an edit or a smaller cap, come down first
        let first = reached(&lines, &allot(cap * 1000, &lines), false);
        let lines = if too_high || too_heavy { first } else { lines };
        let allotted = allot(cap * 1000, &lines);
        prop_assert_eq!(&allot(cap * 1000, &reached(&lines, &allotted, false)), &allotted, "reached");
        prop_assert_eq!(&allot(cap * 1000, &reached(&lines, &allotted, true)), &allotted, "half reached");
    }
}
