//! The events of one watch, which starts again after a failure.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use backon::ExponentialBuilder;
use futures::Stream;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        utils::ResetTimerBackoff,
        watcher::{self, Event, ExponentialBackoff, watcher},
    },
};
use serde::de::DeserializeOwned;

use crate::error::{is_expired, sentence};

/// Shortest delay before a failed watch starts again.
const MIN_DELAY: Duration = Duration::from_millis(800);

/// Time without a failure after which the delay is the shortest again. A watch of objects that seldom change works without an event.
const RESET: Duration = Duration::from_mins(2);

/// The events of these objects, without end. The first ones are of the API server's cache, which may lag behind etcd. A failed watch starts again after
/// a delay that grows up to `longest`, plus jitter of at most as much again: kube's default waits up to a minute, which is too long after a restart
/// of the API server.
pub fn events<K>(
    api: Api<K>,
    config: watcher::Config,
    longest: Duration,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, config.streaming_lists()).backoff(backoff(longest))
}

/// The same for objects of which an old version would do harm: the first ones are read from etcd. Needs the right to list them.
pub fn confirmed_events<K>(
    api: Api<K>,
    config: watcher::Config,
    longest: Duration,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, config).backoff(backoff(longest))
}

fn backoff(longest: Duration) -> ResetTimerBackoff<ExponentialBackoff> {
    let delays = ExponentialBuilder::new().with_min_delay(MIN_DELAY).with_max_delay(longest);
    ResetTimerBackoff::new(delays.with_jitter().without_max_times().into(), RESET)
}

/// Logs why one watch starts again: the first failure and each one with another cause as a warning, until the watch works. A watch that works may have no
/// event for long, so that a failure long after another is a first one too.
#[derive(Debug)]
pub struct Restarts {
    resource: &'static str,
    meanwhile: Option<&'static str>,
    last: Option<(String, Instant)>,
}

impl Restarts {
    /// Of a watch of this resource, by its plural name.
    pub fn new(resource: &'static str) -> Self {
        Self { resource, meanwhile: None, last: None }
    }

    /// With what does not work while the watch does not, for the warning.
    #[must_use]
    pub fn meanwhile(self, meanwhile: &'static str) -> Self {
        Self { meanwhile: Some(meanwhile), ..self }
    }

    /// Logs a failure, and returns what is none.
    pub fn note<T>(&mut self, event: watcher::Result<T>) -> Option<T> {
        let Self { resource, meanwhile, last } = self;
        match event {
            Ok(event) => {
                *last = None;
                Some(event)
            }
            Err(error) if is_expired(&error) => {
                tracing::debug!(resource, "watch expired, restarting");
                None
            }
            Err(error) => {
                let error = sentence(&error);
                if last.as_ref().is_some_and(|(cause, at)| *cause == error && at.elapsed() < RESET) {
                    tracing::debug!(error, resource, "watch failed again, restarting");
                } else {
                    tracing::warn!(error, resource, meanwhile, "watch failed, restarting");
                }
                *last = Some((error, Instant::now()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_never_end_and_stay_below_twice_the_longest() {
        let longest = Duration::from_secs(10);
        let delays: Vec<Duration> = backoff(longest).take(100).collect();
        assert_eq!(delays.len(), 100);
        assert!(delays.iter().all(|delay| (MIN_DELAY..=2 * longest).contains(delay)));
    }

    #[test]
    fn failure_is_remembered_until_the_watch_works() {
        let mut restarts = Restarts::new("pods");
        assert_eq!(restarts.note::<()>(Err(watcher::Error::NoResourceVersion)), None);
        assert!(restarts.last.is_some());
        assert_eq!(restarts.note(Ok(7)), Some(7));
        assert_eq!(restarts.last, None);
    }

    #[tokio::test(start_paused = true)]
    async fn delay_is_short_again_after_time_without_a_failure() {
        let mut delays = backoff(Duration::from_secs(10));
        assert!(delays.by_ref().take(20).last().is_some_and(|delay| delay > 4 * MIN_DELAY));
        tokio::time::advance(2 * RESET).await;
        assert!(delays.next().is_some_and(|delay| delay <= 2 * MIN_DELAY));
    }
}
