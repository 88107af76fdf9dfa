//! Every NVML call, counted and timed; and the one that does not return, by name.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use gputenancy_nvml::Observer;

use crate::metrics::Metrics;

/// The NVML call under way, if any; shared between the thread that makes it and whoever asks why nothing moves.
#[derive(Clone, Default)]
pub struct Calls {
    under_way: Arc<Mutex<Option<(&'static str, Instant)>>>,
    metrics: Metrics,
}

impl Calls {
    /// Counts into these metrics.
    pub fn new(metrics: Metrics) -> Self {
        Self { under_way: Arc::default(), metrics }
    }

    /// The call under way and for how long.
    pub fn under_way(&self) -> Option<(&'static str, Duration)> {
        let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.map(|(call, since)| (call, since.elapsed()))
    }

    pub(super) fn set(&self, call: Option<&'static str>) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        *under_way = call.map(|call| (call, Instant::now()));
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
