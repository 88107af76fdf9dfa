//! A pool's disruption rules as numbers.

use gputenancy_crds::{Canary, Disruption, DoNotEvict, OnTimeout, UnmanagedPods};
use k8s_openapi::jiff::SignedDuration;

use super::window::Window;
use crate::duration::or_seconds;

/// How carefully GPUs are changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Owners are notified this long before they are evicted.
    pub notice: SignedDuration,
    /// How long pods may take to leave, after the notice.
    pub drain_timeout: SignedDuration,
    /// The action at the timeout.
    pub on_timeout: OnTimeout,
    /// Treatment of pods that no controller replaces.
    pub unmanaged_pods: UnmanagedPods,
    /// Whether pods may ask not to be evicted.
    pub do_not_evict: DoNotEvict,
    /// How long they may, after their creation.
    pub do_not_evict_for: SignedDuration,
    /// Whether the pool's maintenance windows allow a change to begin.
    pub window: Window,
    /// How long the agent may take to partition, and kubelet to agree.
    pub partition_timeout: SignedDuration,
    /// A layout that failed is retried after this time; each further failure doubles it.
    pub retry_after: SignedDuration,
    /// How new devices are verified before they are released.
    pub canary: Option<Canary>,
    /// Time between two attempts to evict a pod whose disruption budget refuses.
    pub eviction_retry: SignedDuration,
}

impl Default for Policy {
    fn default() -> Self {
        Self::from(&Disruption::default())
    }
}

impl From<&Disruption> for Policy {
    /// The window is open: it depends on the time, which the caller knows.
    fn from(disruption: &Disruption) -> Self {
        Self {
            notice: or_seconds(&disruption.notice, 0),
            drain_timeout: or_seconds(&disruption.drain_timeout, 1800),
            on_timeout: disruption.on_timeout,
            unmanaged_pods: disruption.unmanaged_pods,
            do_not_evict: disruption.do_not_evict,
            do_not_evict_for: or_seconds(&disruption.do_not_evict_for, 7 * 24 * 3600),
            window: Window::Always,
            partition_timeout: SignedDuration::from_mins(5),
            canary: None,
            retry_after: SignedDuration::from_mins(10),
            eviction_retry: SignedDuration::from_secs(10),
        }
    }
}
