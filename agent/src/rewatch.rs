//! How soon a watch that failed is started again.

use std::time::Duration;

use backon::ExponentialBuilder;
use kube::runtime::watcher::ExponentialBackoff;

/// Longer and longer, up to 10 s and chance on top of it, at most as much again. kube's own wait is up to a minute, and the first answer of
/// an API server that starts is a refusal as well. Thousands of agents come back to it at once, hence no shorter one.
pub fn patience() -> ExponentialBackoff {
    let (least, most) = (Duration::from_millis(800), Duration::from_secs(10));
    ExponentialBuilder::new().with_min_delay(least).with_max_delay(most).with_jitter().without_max_times().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_watch_is_tried_again_within_twenty_seconds_however_often_it_has_failed() {
        let waits: Vec<Duration> = patience().take(100).collect();
        assert_eq!(waits.len(), 100, "it is never given up");
        assert!(waits.iter().all(|wait| (Duration::from_millis(800)..=Duration::from_secs(20)).contains(wait)));
    }
}
