//! Load of the API server, from its metrics.

use std::fmt;

use e2e::{Error, Result, World};

/// Requests and processor time, since the API server's start or between two readings.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests that write, of all clients.
    writes: f64,
    /// Requests that read, watches included.
    reads: f64,
    /// Seconds of processor time.
    seconds: f64,
}

impl Load {
    /// Since the start of the API server.
    pub async fn of(world: &World) -> Result<Self> {
        let text = world.kubectl(&["get", "--raw", "/metrics"]).await?;
        let value = |line: &str| line.rsplit_once(' ').and_then(|(_, v)| v.parse::<f64>().ok()).unwrap_or(0.0);
        let requests = |verbs: &[&str]| -> f64 {
            let of = |line: &&str| verbs.iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")));
            text.lines().filter(|l| l.starts_with("apiserver_request_total{")).filter(of).map(value).sum()
        };
        let cpu = text.lines().find(|l| l.starts_with("process_cpu_seconds_total"));
        let cpu = cpu.ok_or_else(|| Error::Wrong("the API server does not report its processor time".into()))?;
        Ok(Self {
            writes: requests(&["POST", "PUT", "PATCH", "APPLY", "DELETE"]),
            reads: requests(&["GET", "LIST", "WATCH"]),
            seconds: value(cpu),
        })
    }

    /// The difference to an earlier reading.
    pub fn since(self, before: &Self) -> Self {
        let Self { writes, reads, seconds } = *before;
        Self { writes: self.writes - writes, reads: self.reads - reads, seconds: self.seconds - seconds }
    }

    /// Reads, and milliseconds of processor time, per tenant.
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    pub fn each(&self, tenants: usize) -> (f64, f64) {
        (self.reads / tenants as f64, self.seconds * 1000.0 / tenants as f64)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { writes, reads, seconds } = self;
        write!(f, "API server: {writes:.0} writes, {reads:.0} reads, {seconds:.1} s of processor time")
    }
}
