//! Levelling in whole units: what is added goes to the lowest, what is taken comes from the highest.

/// Raises the lowest of these levels until `amount` is spent or all of them have reached `cap`; gives back what is left. Of
/// equals the first ones get a unit more.
pub fn pour(levels: &mut [i128], among: &[usize], mut amount: i128, cap: i128) -> i128 {
    while amount > 0 {
        let below = among.iter().filter_map(|i| levels.get(*i).copied()).filter(|level| *level < cap);
        let Some(low) = below.min() else { break };
        let lowest: Vec<usize> = among.iter().copied().filter(|i| levels.get(*i) == Some(&low)).collect();
        let above = among.iter().filter_map(|i| levels.get(*i).copied()).filter(|level| *level > low);
        let step = above.min().unwrap_or(cap).min(cap) - low;
        amount = spread(levels, &lowest, amount, step, 1);
    }
    amount
}

/// Lowers the highest of these levels until `amount` is taken or all of them have come down to `floor`; gives back what could
/// not be taken. Of equals the first ones give a unit more.
pub fn drain(levels: &mut [i128], among: &[usize], mut amount: i128, floor: i128) -> i128 {
    while amount > 0 {
        let over = among.iter().filter_map(|i| levels.get(*i).copied()).filter(|level| *level > floor);
        let Some(high) = over.max() else { break };
        let highest: Vec<usize> = among.iter().copied().filter(|i| levels.get(*i) == Some(&high)).collect();
        let below = among.iter().filter_map(|i| levels.get(*i).copied()).filter(|level| *level < high);
        let step = high - below.max().unwrap_or(floor).max(floor);
        amount = spread(levels, &highest, amount, step, -1);
    }
    amount
}

/// Moves each of these equal levels by `step` or by an even part of the amount, whichever is less.
fn spread(levels: &mut [i128], equal: &[usize], amount: i128, step: i128, sign: i128) -> i128 {
    let count = i128::try_from(equal.len()).unwrap_or(1).max(1);
    let each = step.min(amount / count);
    // too little for all of them: a unit for the first ones
    let (each, movers) = if each > 0 { (each, count) } else { (1, amount) };
    let mut left = amount;
    for index in equal.iter().take(usize::try_from(movers).unwrap_or(equal.len())) {
        if let Some(level) = levels.get_mut(*index) {
            *level += sign * each;
            left -= each;
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_goes_to_the_lowest_and_stops_at_the_cap() {
        let mut levels = [5, 0, 2, 9];
        assert_eq!(pour(&mut levels, &[0, 1, 2], 4, 100), 0);
        assert_eq!(levels, [5, 3, 3, 9]);
        assert_eq!(pour(&mut levels, &[1, 2], 9, 6), 3);
        assert_eq!(levels, [5, 6, 6, 9]);
        assert_eq!(pour(&mut levels, &[], 1, 6), 1);
    }

    #[test]
    fn what_is_taken_comes_from_the_highest_and_stops_at_the_floor() {
        let mut levels = [5, 0, 2, 9];
        assert_eq!(drain(&mut levels, &[0, 1, 2, 3], 6, 0), 0);
        assert_eq!(levels, [4, 0, 2, 4]);
        assert_eq!(drain(&mut levels, &[0, 1, 2, 3], 100, 3), 98);
        assert_eq!(levels, [3, 0, 2, 3]);
    }

    #[test]
    fn too_little_for_all_goes_to_the_first_ones() {
        let mut levels = [0; 3];
        assert_eq!(pour(&mut levels, &[0, 1, 2], 5, i128::MAX), 0);
        assert_eq!(levels, [2, 2, 1]);
    }
}
