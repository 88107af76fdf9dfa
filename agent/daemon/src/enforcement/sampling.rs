//! When the use of a share is sampled. Pure.

use std::time::Duration;

/// Shortest pause between two samples, in milliseconds.
const SHORTEST: u64 = 250;
/// By how much a pause can be longer, so that it is one second on average.
const SPREAD: u64 = 1_500;

/// The pause before the next sample, of a random number: a program that knew the time of the next sample could be within its limit then.
pub fn pause(random: u64) -> Duration {
    Duration::from_millis(SHORTEST + random % (SPREAD + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_samples_are_random_and_one_second_on_average() {
        let pauses = (0..=SPREAD).map(pause);
        let (shortest, longest) = (pauses.clone().min().unwrap(), pauses.clone().max().unwrap());
        assert_eq!((shortest.as_millis(), longest.as_millis()), (250, 1_750));
        assert_eq!(pauses.sum::<Duration>() / u32::try_from(SPREAD + 1).unwrap(), Duration::from_secs(1));
        assert!(pause(u64::MAX) <= longest);
    }
}
