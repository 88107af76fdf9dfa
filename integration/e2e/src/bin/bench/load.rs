//! What the API server did, by its own count.

use std::{collections::BTreeMap, fmt};

use e2e::{Error, Result, World};

/// Requests and processor time, since the API server's start or between two looks.
#[derive(Clone, Debug)]
pub struct Load {
    /// Requests that write, of everybody, by verb and resource: controllers and kubelets too.
    writes: BTreeMap<String, f64>,
    /// Requests that read, watches included.
    reads: f64,
    /// Seconds of processor time.
    seconds: f64,
}

impl Load {
    /// Since the start.
    pub async fn of(world: &World) -> Result<Self> {
        let text = world.kubectl(&["get", "--raw", "/metrics"]).await?;
        let value = |line: &str| line.rsplit_once(' ').and_then(|(_, v)| v.parse::<f64>().ok()).unwrap_or(0.0);
        let requests = |verbs: &'static [&str]| {
            let all = text.lines().filter(|l| l.starts_with("apiserver_request_total{"));
            all.filter(move |l| label(l, "verb").is_some_and(|verb| verbs.contains(&verb)))
        };
        let mut writes = BTreeMap::new();
        for line in requests(&["POST", "PUT", "PATCH", "APPLY", "DELETE"]) {
            let of = |name| label(line, name).unwrap_or_default();
            let (verb, resource, sub) = (of("verb"), of("resource"), of("subresource"));
            let slash = if sub.is_empty() { "" } else { "/" };
            *writes.entry(format!("{verb} {resource}{slash}{sub}")).or_default() += value(line);
        }
        let reads = requests(&["GET", "LIST", "WATCH"]).map(value).sum();
        let cpu = text.lines().find(|l| l.starts_with("process_cpu_seconds_total"));
        let cpu = cpu.ok_or_else(|| Error::Wrong("the API server does not tell its processor time".into()))?;
        Ok(Self { writes, reads, seconds: value(cpu) })
    }

    /// What came after an earlier look.
    pub fn since(mut self, before: &Self) -> Self {
        let Self { writes, reads, seconds } = before;
        for (what, number) in writes {
            *self.writes.entry(what.clone()).or_default() -= number;
        }
        Self { writes: self.writes, reads: self.reads - reads, seconds: self.seconds - seconds }
    }

    /// The writes by verb and resource, most first, each divided by a number of things; what is less than a twentieth is left out.
    pub fn writes_each(&self, things: usize) -> String {
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let each = |number: f64| number / things as f64;
        let mut all: Vec<_> = self.writes.iter().map(|(what, number)| (what, each(*number))).collect();
        all.retain(|(_, number)| *number >= 0.05);
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let all: Vec<_> = all.iter().map(|(what, number)| format!("{what} {number:.1}")).collect();
        all.join(", ")
    }
}

/// The value of a label in a line of metrics.
fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = line.split_once(&format!("{name}=\""))?;
    after.split_once('"').map(|(value, _)| value)
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { writes, reads, seconds } = self;
        let writes: f64 = writes.values().sum();
        write!(f, "API server: {writes:.0} writes, {reads:.0} reads, {seconds:.1} s of processor time")
    }
}
