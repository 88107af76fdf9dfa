//! Division of whole devices by weight.

use std::cmp::Reverse;

/// Splits `total` by these weights, by the largest remainder: each part is its exact share, rounded down or up, and the parts add up to `total`. Equal
/// remainders go to the earlier ones. Without any weight the first part gets all.
pub fn by_weight(total: i64, weights: &[i64]) -> Vec<i64> {
    let sum: i128 = weights.iter().map(|w| i128::from((*w).max(0))).sum();
    if sum == 0 || total <= 0 {
        let first = |n| if n == 0 { total.max(0) } else { 0 };
        return (0..weights.len()).map(first).collect();
    }
    let exact = |weight: &i64| i128::from((*weight).max(0)) * i128::from(total);
    let part = |(n, weight)| (n, i64::try_from(exact(weight) / sum).unwrap_or(i64::MAX), exact(weight) % sum);
    let mut parts: Vec<(usize, i64, i128)> = weights.iter().enumerate().map(part).collect();
    let left = total - parts.iter().map(|(_, part, _)| part).sum::<i64>();
    parts.sort_by_key(|(n, _, remainder)| (Reverse(*remainder), *n));
    for (_, part, _) in parts.iter_mut().take(usize::try_from(left).unwrap_or(0)) {
        *part += 1;
    }
    parts.sort_by_key(|(n, ..)| *n);
    parts.into_iter().map(|(_, part, _)| part).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn remainders_go_to_the_largest_and_then_to_the_first() {
        assert_eq!(by_weight(4, &[1, 3]), [1, 3]);
        assert_eq!(by_weight(2, &[1, 1, 1]), [1, 1, 0]);
        assert_eq!(by_weight(5, &[1, 2]), [2, 3]);
        assert_eq!(by_weight(3, &[0, 0]), [3, 0]);
        assert_eq!(by_weight(-1, &[1]), [0]);
    }

    proptest! {
        #[test]
        fn parts_add_up_and_are_within_one_of_their_share(total in 0_i64..100_000, weights in prop::collection::vec(0_i64..1000, 1..8)) {
            let (parts, sum) = (by_weight(total, &weights), weights.iter().sum::<i64>());
            prop_assert_eq!(parts.iter().sum::<i64>(), total);
            if sum > 0 {
                for (part, weight) in parts.iter().zip(&weights) {
                    prop_assert!((part * sum - total * weight).abs() < sum);
                }
            }
        }
    }
}
