//! Requests that write, by resource, from the API server's metrics.

use std::{collections::BTreeMap, fmt, time::Duration};

use e2e::{
    Result, World,
    wait::{PATIENCE, eventually},
};

/// Heartbeats, which a cluster writes at rest too. `pods/status` is written by kubelets only: operator and agent have no right on it.
const AT_REST: [&str; 4] = ["leases", "nodes", "nodes/status", "pods/status"];
const WRITING: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

/// Requests that write, by resource and subresource, including refused and repeated ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Writes {
    work: BTreeMap<String, f64>,
    heartbeats: BTreeMap<String, f64>,
}

impl Writes {
    /// Since the API server's start.
    pub async fn of(world: &World) -> Result<Self> {
        Ok(Self::read(&world.lab.apiserver_metrics().await?))
    }

    /// Waits until the API server has few writes.
    pub async fn become_few(world: &World) -> Result<()> {
        eventually("few writes of the API server", PATIENCE, || async {
            let before = Self::of(world).await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            let more = Self::of(world).await?.since(&before, 1).sum();
            Ok(if more < 5.0 { Ok(()) } else { Err(format!("{more} writes in three seconds")) })
        })
        .await
    }

    fn read(metrics: &str) -> Self {
        let mut all = Self::default();
        for line in metrics.lines().filter(|l| l.starts_with("apiserver_request_total{")) {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\""))?;
                rest.split_once('"').map(|(value, _)| value)
            };
            let count = line.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok());
            let (Some(verb), Some(resource), Some(count)) = (label("verb"), label(",resource"), count) else {
                continue;
            };
            // not the label `subresource`
            let what = match label("subresource") {
                Some(sub) if !sub.is_empty() => format!("{resource}/{sub}"),
                _ => resource.to_owned(),
            };
            if WRITING.contains(&verb) {
                let kind = if AT_REST.contains(&what.as_str()) { &mut all.heartbeats } else { &mut all.work };
                *kind.entry(what).or_default() += count;
            }
        }
        all
    }

    /// The difference to an earlier reading, per tenant.
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    pub fn since(&self, before: &Self, tenants: usize) -> Self {
        let since = |now: &BTreeMap<String, f64>, before: &BTreeMap<String, f64>| {
            let each = |(what, count): (&String, &f64)| {
                let more = count - before.get(what).unwrap_or(&0.0);
                (more > 0.0).then(|| (what.clone(), more / tenants as f64))
            };
            now.iter().filter_map(each).collect()
        };
        Self { work: since(&self.work, &before.work), heartbeats: since(&self.heartbeats, &before.heartbeats) }
    }

    /// Sum without heartbeats.
    pub fn sum(&self) -> f64 {
        // the sum of nothing is -0
        self.work.values().sum::<f64>() + 0.0
    }

    /// These without one resource.
    pub fn without(&self, resource: &str) -> Self {
        let mut rest = self.clone();
        rest.work.remove(resource);
        rest
    }

    /// The heartbeats, as text.
    pub fn heartbeats(&self) -> String {
        text(&self.heartbeats)
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.work))
    }
}

fn text(counts: &BTreeMap<String, f64>) -> String {
    // smaller amounts are background work
    let each = counts.iter().filter(|(_, count)| **count >= 0.05);
    each.map(|(what, count)| format!("{what} {count:.1}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, resource: &str, sub: &str, code: u32, count: u32) -> String {
        format!(
            "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"{resource}\",scope=\"resource\",subresource=\"{sub}\",verb=\"{verb}\",version=\"v1\"}} {count}\n"
        )
    }

    #[test]
    fn writes_are_counted_per_resource_and_tenant() {
        let before = Writes::read(&line("POST", "resourcequotas", "", 201, 10));
        let after = [
            line("POST", "resourcequotas", "", 201, 30),
            line("APPLY", "resourcequotas", "", 200, 10),
            line("PUT", "resourcequotas", "status", 200, 20),
            line("PUT", "resourcequotas", "status", 409, 5),
        ];
        let each = Writes::read(&after.concat()).since(&before, 10);
        assert_eq!(each.to_string(), "resourcequotas 3.0, resourcequotas/status 2.5");
        assert!((each.sum() - 5.5).abs() < 1e-9);
        assert_eq!(each.without("resourcequotas/status").to_string(), "resourcequotas 3.0");
    }

    #[test]
    fn writes_exclude_reads_and_heartbeats() {
        let lines = [
            line("GET", "secrets", "", 200, 7),
            line("WATCH", "pods", "", 200, 7),
            line("PUT", "leases", "", 200, 7),
            line("PATCH", "nodes", "status", 200, 7),
            line("PATCH", "pods", "status", 200, 2),
            "apiserver_request_duration_seconds_count{verb=\"POST\",resource=\"pods\"} 9\n".to_owned(),
        ];
        let all = Writes::read(&lines.concat()).since(&Writes::default(), 1);
        assert_eq!(
            (all.to_string(), all.heartbeats()),
            (String::new(), "leases 7.0, nodes/status 7.0, pods/status 2.0".to_owned())
        );
        assert!(all.sum() < f64::EPSILON);
    }
}
