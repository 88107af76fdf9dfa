//! Water-filling in whole units: an increase goes to the lowest values, a decrease comes from the highest.

/// Raises the lowest of these values until `amount` is spent or all have reached `cap`; returns the rest. Among equals the first get one
/// unit more.
pub fn raise_lowest(values: &mut [i128], among: &[usize], mut amount: i128, cap: i128) -> i128 {
    while amount > 0 {
        let below = among.iter().filter_map(|i| values.get(*i).copied()).filter(|value| *value < cap);
        let Some(low) = below.min() else { break };
        let lowest: Vec<usize> = among.iter().copied().filter(|i| values.get(*i) == Some(&low)).collect();
        let above = among.iter().filter_map(|i| values.get(*i).copied()).filter(|value| *value > low);
        let step = above.min().unwrap_or(cap).min(cap) - low;
        amount = move_equal(values, &lowest, amount, step, 1);
    }
    amount
}

/// Lowers the highest of these values until `amount` is taken or all have reached `floor`; returns the rest. Among equals the first give
/// one unit more.
pub fn lower_highest(values: &mut [i128], among: &[usize], mut amount: i128, floor: i128) -> i128 {
    while amount > 0 {
        let over = among.iter().filter_map(|i| values.get(*i).copied()).filter(|value| *value > floor);
        let Some(high) = over.max() else { break };
        let highest: Vec<usize> = among.iter().copied().filter(|i| values.get(*i) == Some(&high)).collect();
        let below = among.iter().filter_map(|i| values.get(*i).copied()).filter(|value| *value < high);
        let step = high - below.max().unwrap_or(floor).max(floor);
        amount = move_equal(values, &highest, amount, step, -1);
    }
    amount
}

/// Moves each of these equal values by `step` or by an equal part of the amount, whichever is less.
fn move_equal(values: &mut [i128], equal: &[usize], amount: i128, step: i128, sign: i128) -> i128 {
    let count = i128::try_from(equal.len()).unwrap_or(1).max(1);
    let each = step.min(amount / count);
    // less than one unit for each: one unit for the first ones
    let (each, moved) = if each > 0 { (each, count) } else { (1, amount) };
    let mut left = amount;
    for index in equal.iter().take(usize::try_from(moved).unwrap_or(equal.len())) {
        if let Some(value) = values.get_mut(*index) {
            *value += sign * each;
            left -= each;
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increase_goes_to_the_lowest_values_up_to_the_cap() {
        let mut values = [5, 0, 2, 9];
        assert_eq!(raise_lowest(&mut values, &[0, 1, 2], 4, 100), 0);
        assert_eq!(values, [5, 3, 3, 9]);
        assert_eq!(raise_lowest(&mut values, &[1, 2], 9, 6), 3);
        assert_eq!(values, [5, 6, 6, 9]);
        assert_eq!(raise_lowest(&mut values, &[], 1, 6), 1);
    }

    #[test]
    fn decrease_comes_from_the_highest_values_down_to_the_floor() {
        let mut values = [5, 0, 2, 9];
        assert_eq!(lower_highest(&mut values, &[0, 1, 2, 3], 6, 0), 0);
        assert_eq!(values, [4, 0, 2, 4]);
        assert_eq!(lower_highest(&mut values, &[0, 1, 2, 3], 100, 3), 98);
        assert_eq!(values, [3, 0, 2, 3]);
    }

    #[test]
    fn rest_below_one_unit_each_goes_to_the_first_values() {
        let mut values = [0; 3];
        assert_eq!(raise_lowest(&mut values, &[0, 1, 2], 5, i128::MAX), 0);
        assert_eq!(values, [2, 2, 1]);
    }
}
