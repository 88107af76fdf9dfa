//! When changes of a pool may begin.

use gputenancy_crds::{GpuPool, MaintenanceWindow};
use gputenancy_decisions::change::{Window, Windows};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use crate::units::{self, span};

/// State of a pool's windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowState {
    pub words: String,
    /// Changes may begin now; `None`: not known.
    pub open: Option<bool>,
    /// The window that is open, or else the next one.
    pub next: Option<(Timestamp, Timestamp)>,
    /// Why the windows cannot be read.
    pub error: Option<String>,
}

/// The windows of a pool at a time.
pub(super) fn of(pool: &GpuPool, now: Option<Timestamp>) -> WindowState {
    let windows = &pool.spec.disruption.windows;
    if windows.is_empty() {
        return WindowState { words: "any time".into(), open: Some(true), ..WindowState::default() };
    }
    let written = windows.iter().map(words).collect::<Vec<_>>().join(" and ");
    let read = Windows::read(windows, now.unwrap_or(Timestamp::UNIX_EPOCH));
    let (words, open, next) = match (&read, now) {
        (Err(_), _) => (format!("never ({written})"), None, None),
        (Ok(_), None) => (written, None, None),
        (Ok(windows), Some(now)) => match windows.at(now) {
            Window::Always => (format!("any time ({written})"), Some(true), None),
            Window::Open { since, until, .. } => {
                (format!("now, until {until} ({written})"), Some(true), Some((since, until)))
            }
            Window::Closed { next: Some((start, end)) } => {
                (format!("not before {start} ({written})"), Some(false), Some((start, end)))
            }
            Window::Closed { next: None } => (format!("never again ({written})"), Some(false), None),
        },
    };
    WindowState { words, open, next, error: read.err().map(|e| e.to_string()) }
}

fn words(window: &MaintenanceWindow) -> String {
    format!("{} for {} {}", window.schedule.trim(), window.duration, window.time_zone)
}

impl WindowState {
    /// A note if the changes take longer than a window.
    pub fn note(&self, pool: &GpuPool, seconds: u64) -> Option<String> {
        let (start, end) = self.next?;
        let lasts = units::seconds(end.duration_since(start));
        let name = pool.name_any();
        (seconds > lasts).then(|| {
            format!(
                "pool {name}: the changes take up to {}, a window {}; changes that have not begun when it closes wait for the next one",
                span(seconds),
                span(lasts)
            )
        })
    }
}
