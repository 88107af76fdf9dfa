//! How evenly what is borrowed is divided among those that want it.

use std::collections::BTreeMap;

/// What a team borrows.
#[derive(Clone, Debug, PartialEq)]
pub struct Borrower {
    /// Its group.
    pub group: String,
    /// Its weight.
    pub weight: i32,
    /// Devices that it borrows.
    pub borrowed: i64,
    /// Jobs of it wait: it would borrow more.
    pub waits: bool,
}

/// Jain's index of each group, from 1/n to 1: 1 where all teams that borrow or wait have borrowed in proportion to their weights. Absent for a group
/// with fewer than two of them, and for one that borrows nothing. Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness", DEC-TR-301, 1984.
pub fn fairness(borrowers: &[Borrower]) -> BTreeMap<&str, f64> {
    let mut groups: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for Borrower { group, weight, borrowed, waits } in borrowers {
        if *borrowed > 0 || *waits {
            // devices are few: no number here needs more than 53 bits
            let borrowed = f64::from(i32::try_from(*borrowed).unwrap_or(i32::MAX));
            groups.entry(group).or_default().push(borrowed / f64::from((*weight).max(1)));
        }
    }
    let index = |parts: &[f64]| {
        let (sum, squares) = (parts.iter().sum::<f64>(), parts.iter().map(|part| part * part).sum::<f64>());
        let count = f64::from(u32::try_from(parts.len()).unwrap_or(u32::MAX));
        (parts.len() > 1 && squares > 0.0).then(|| sum * sum / (count * squares))
    };
    groups.into_iter().filter_map(|(group, parts)| Some((group, index(&parts)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn borrower(group: &str, weight: i32, borrowed: i64, waits: bool) -> Borrower {
        Borrower { group: group.into(), weight, borrowed, waits }
    }

    #[test]
    fn index_is_one_when_borrowed_by_weight_and_one_over_n_when_one_has_all() {
        let all = [
            borrower("even", 1, 1, true),
            borrower("even", 3, 3, false),
            borrower("one", 1, 4, false),
            borrower("one", 1, 0, true),
            borrower("single", 1, 4, true),
            borrower("idle", 1, 0, false),
            borrower("nothing", 1, 0, true),
            borrower("nothing", 1, 0, true),
        ];
        let found = fairness(&all);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), ["even", "one"]);
        assert!((found["even"] - 1.0).abs() < 1e-9 && (found["one"] - 0.5).abs() < 1e-9, "{found:?}");
    }
}
