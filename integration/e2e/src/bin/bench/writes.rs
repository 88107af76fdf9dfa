//! Requests that write, by what they write, as the API server counts them.

use std::{collections::BTreeMap, fmt};

use e2e::{Result, World};

/// What is written at rest too, by a cluster of this size, and is no work for a tenant.
const AT_REST: [&str; 3] = ["leases", "nodes", "nodes/status"];
const WRITING: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

/// Requests that write by resource and subresource; refused ones and those of clients that try again are among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Writes(BTreeMap<String, f64>);

impl Writes {
    /// Since the API server's start.
    pub async fn of(world: &World) -> Result<Self> {
        Ok(Self::read(&world.lab.apiserver_metrics().await?))
    }

    fn read(metrics: &str) -> Self {
        let mut all = BTreeMap::new();
        for line in metrics.lines().filter(|l| l.starts_with("apiserver_request_total{")) {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\""))?;
                rest.split_once('"').map(|(value, _)| value)
            };
            let count = line.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok());
            let (Some(verb), Some(resource), Some(count)) = (label("verb"), label(",resource"), count) else {
                continue;
            };
            // `subresource` is a label of its own
            let what = match label("subresource") {
                Some(sub) if !sub.is_empty() => format!("{resource}/{sub}"),
                _ => resource.to_owned(),
            };
            if WRITING.contains(&verb) && !AT_REST.contains(&what.as_str()) {
                *all.entry(what).or_default() += count;
            }
        }
        Self(all)
    }

    /// What came after an earlier look, for each of so many tenants.
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    pub fn since(&self, before: &Self, tenants: usize) -> Self {
        let each = |(what, count): (&String, &f64)| {
            let more = count - before.0.get(what).unwrap_or(&0.0);
            (more > 0.0).then(|| (what.clone(), more / tenants as f64))
        };
        Self(self.0.iter().filter_map(each).collect())
    }

    /// All together.
    pub fn sum(&self) -> f64 {
        self.0.values().sum()
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // below that it is what happens beside: a pod, a lease
        let each = self.0.iter().filter(|(_, count)| **count >= 0.05);
        let words: Vec<_> = each.map(|(what, count)| format!("{what} {count:.1}")).collect();
        write!(f, "{}", words.join(", "))
    }
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
    fn writes_are_counted_by_resource_and_subresource_and_for_each_tenant() {
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
    }

    #[test]
    fn reads_and_what_a_cluster_writes_at_rest_are_left_out() {
        let lines = [
            line("GET", "secrets", "", 200, 7),
            line("WATCH", "pods", "", 200, 7),
            line("PUT", "leases", "", 200, 7),
            line("PATCH", "nodes", "status", 200, 7),
            "apiserver_request_duration_seconds_count{verb=\"POST\",resource=\"pods\"} 9\n".to_owned(),
        ];
        assert_eq!(Writes::read(&lines.concat()), Writes::default());
    }
}
