//! Counts and times NVML calls, and knows the one in progress.

use std::time::{Duration, Instant};

use gputenancy_nvml::Observer;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// The NVML call in progress, shared between the thread that makes it and the tasks that wait for it.
#[derive(Clone, Default)]
pub struct Calls {
    current: watch::Sender<Option<(&'static str, Instant)>>,
    metrics: Metrics,
}

impl Calls {
    /// Counts into these metrics.
    pub fn new(metrics: Metrics) -> Self {
        Self { current: watch::Sender::default(), metrics }
    }

    /// The call in progress and its duration so far.
    pub fn in_progress(&self) -> Option<(&'static str, Duration)> {
        self.current.borrow().map(|(call, since)| (call, since.elapsed()))
    }

    pub(super) fn set(&self, call: Option<&'static str>) {
        self.current.send_replace(call.map(|call| (call, Instant::now())));
    }
}

impl Observer for Calls {
    fn began(&self, call: &'static str) {
        self.set(Some(call));
    }

    fn ended(&self, call: &'static str, code: u32, took: Duration) {
        self.set(None);
        self.metrics.nvml_call(call, code, took);
    }
}
