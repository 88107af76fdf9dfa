//! Exponential backoff of failed watches.

use std::time::Duration;

use backon::ExponentialBuilder;
use kube::runtime::watcher::ExponentialBackoff;

const MIN_DELAY: Duration = Duration::from_millis(800);

/// Delays of a failed watch: exponential up to `max`, plus jitter of at most as much again, without end.
///
/// kube's default waits up to a minute, which is too long after a restart of the API server.
pub fn watch(max: Duration) -> ExponentialBackoff {
    ExponentialBuilder::new().with_min_delay(MIN_DELAY).with_max_delay(max).with_jitter().without_max_times().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_backoff_never_ends_and_stays_below_twice_the_maximum() {
        let max = Duration::from_secs(10);
        let delays: Vec<Duration> = watch(max).take(100).collect();
        assert_eq!(delays.len(), 100);
        assert!(delays.iter().all(|delay| (MIN_DELAY..=2 * max).contains(delay)));
    }
}
