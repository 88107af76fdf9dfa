//! The figures of one size, and the table that compares sizes.

use std::time::Duration;

use super::{
    operator::{Memory, Reading},
    watchers::Observed,
};

/// Figures of one size.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Nodes.
    pub nodes: usize,
    /// Tenants.
    pub tenants: usize,
    /// How often the operator ended and was started again while the fleet was filled.
    pub restarts: usize,
    /// Without any change.
    pub rest: Period,
    /// With one changed status a second.
    pub slow: Period,
    /// With many.
    pub fast: Period,
    /// From the raise of a guarantee to the first spec write, several times.
    pub delays: Vec<Duration>,
    /// Memory afterwards.
    pub memory: Memory,
    /// Health endpoint and lease over the whole time.
    pub observed: Observed,
}

/// What happened in a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Period {
    /// Its length in seconds.
    pub seconds: f64,
    /// Statuses changed by the benchmark.
    pub changes: f64,
    /// Requests of the operator to the API server.
    pub requests: f64,
    before: Reading,
    after: Reading,
}

impl Period {
    /// Between two readings.
    pub fn new(seconds: f64, changes: f64, requests: f64, before: Reading, after: Reading) -> Self {
        Self { seconds, changes, requests, before, after }
    }

    /// Percent of a core.
    fn share(&self) -> f64 {
        self.cpu() / self.seconds * 100.0
    }

    fn cpu(&self) -> f64 {
        self.after.cpu - self.before.cpu
    }

    fn reconciles(&self) -> f64 {
        self.after.reconciles - self.before.reconciles
    }

    /// Mean milliseconds of a reconcile; not a number without any.
    fn decision(&self) -> f64 {
        (self.after.seconds - self.before.seconds) * 1000.0 / self.reconciles()
    }
}

/// Prints the figures side by side, with the ratio of each size to the first.
pub fn print(all: &[Figures]) {
    let row = |name: &str, cells: Vec<String>| {
        println!("  {name:<52}{}", cells.iter().map(|cell| pad(cell)).collect::<Vec<_>>().concat());
    };
    let text = |name: &str, value: &dyn Fn(&Figures) -> String| row(name, all.iter().map(value).collect());
    let number = |name: &str, value: &dyn Fn(&Figures) -> f64| {
        let base = all.first().map_or(f64::NAN, value);
        text(name, &|f| {
            let ratio = value(f) / base;
            let ratio = if ratio.is_finite() { format!("({ratio:.1})") } else { "(–)".into() };
            format!("{} {ratio:>7}", significant(value(f)))
        });
    };
    println!(
        "fleet: 8 A100-80GB in 56 instances of 1g.10gb and four pods on each node; in brackets the ratio to the first size"
    );
    text("nodes", &|f| f.nodes.to_string());
    text("tenants", &|f| f.tenants.to_string());
    text("restarts of the operator while the fleet was filled", &|f| f.restarts.to_string());
    number("reconcile of the fleet, mean, ms", &|f| f.slow.decision());
    number("CPU for a changed status, at 1 a second, ms", &|f| f.slow.cpu() * 1000.0 / f.slow.changes);
    number("CPU at rest, % of a core", &|f| f.rest.share());
    text("statuses changed a second, achieved", &|f| format!("{:.1}", f.fast.changes / f.fast.seconds));
    number("  CPU meanwhile, % of a core", &|f| f.fast.share());
    number("  reconciles a second", &|f| f.fast.reconciles() / f.fast.seconds);
    number("  reconcile, mean, ms", &|f| f.fast.decision());
    number("requests to the API server at rest, a second", &|f| f.rest.requests / f.rest.seconds);
    number("requests for a changed status, at 1 a second", &|f| f.slow.requests / f.slow.changes);
    number("raised guarantee to first spec write, median, ms", &|f| median(&f.delays));
    text("  each, ms", &|f| f.delays.iter().map(|d| d.as_millis().to_string()).collect::<Vec<_>>().join(" "));
    number("resident memory, MiB", &|f| f.memory.now);
    number("  highest", &|f| f.memory.peak);
    number("health endpoint silent, longest, ms", &|f| f.observed.silent.as_secs_f64() * 1000.0);
    number("oldest renewal of the lease, s", &|f| f.observed.lease_age.as_secs_f64());
    text("lease kept", &|f| if f.observed.lost { "no" } else { "yes" }.to_owned());
}

fn pad(cell: &str) -> String {
    format!("{cell:>22}")
}

/// About three digits.
fn significant(value: f64) -> String {
    match value.abs() {
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        x if x >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn median(values: &[Duration]) -> f64 {
    crate::many::quantile(values, 0.5).as_secs_f64() * 1000.0
}
