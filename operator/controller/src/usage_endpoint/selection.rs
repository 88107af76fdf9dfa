//! The series of one tenant among those of an agent. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use gputenancy_cluster::agent_metrics::{Sample, sample};

/// The only series that are shown without a tenant or a namespace: what a device is.
const DEVICE_INFO: &str = "gputenancy_device_info";

/// The tenant whose series are kept.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Its name.
    pub tenant: &'a str,
    /// Its namespaces.
    pub namespaces: &'a BTreeSet<String>,
}

impl Scope<'_> {
    /// Text that a line of the tenant's has at least one of.
    fn marks(self) -> Vec<String> {
        let namespaces = self.namespaces.iter().map(|namespace| format!("namespace=\"{namespace}\""));
        namespaces.chain([format!("tenant=\"{}\"", self.tenant), DEVICE_INFO.to_owned()]).collect()
    }

    fn has(self, sample: &Sample) -> bool {
        let (tenant, namespace) = (sample.label("tenant"), sample.label("namespace"));
        // both labels, if there are two: a namespace may have been another tenant's when the agent last looked
        let tenants = tenant.is_empty() || tenant == self.tenant;
        let ours = namespace.is_empty() || self.namespaces.contains(namespace);
        tenants && ours && !(tenant.is_empty() && namespace.is_empty())
    }
}

/// Metrics of several programs as one text: each family once.
#[derive(Debug, Default)]
pub struct Families(BTreeMap<String, Family>);

#[derive(Debug, Default)]
struct Family {
    /// `# HELP …` and `# TYPE …`.
    head: Vec<String>,
    samples: Vec<Sample>,
}

impl Families {
    /// Adds the tenant's series of the agent on a node.
    pub fn add_agent(&mut self, node: &str, text: &str, scope: Scope<'_>) {
        let all = parse(text, &scope.marks());
        let ours = || all.values().flat_map(|family| &family.samples).filter(|sample| scope.has(sample));
        let device = |sample: &Sample| (sample.label("uuid").to_owned(), sample.label("gpu_instance").to_owned());
        let devices: BTreeSet<_> = ours().map(device).filter(|(uuid, _)| !uuid.is_empty()).collect();
        let shown =
            |sample: &Sample| scope.has(sample) || (sample.name == DEVICE_INFO && devices.contains(&device(sample)));
        for (name, Family { head, samples }) in all {
            let samples: Vec<Sample> = samples.into_iter().filter(shown).collect();
            if samples.is_empty() {
                continue;
            }
            let family = self.0.entry(name).or_insert_with(|| Family { head, samples: Vec::new() });
            family.samples.extend(samples.into_iter().map(|mut sample| {
                sample.labels.insert("node".to_owned(), node.to_owned());
                sample
            }));
        }
    }

    /// Adds all series of a text that has only the tenant's.
    pub fn add_own(&mut self, text: &str) {
        self.0.extend(parse(text, &[]).into_iter().filter(|(_, family)| !family.samples.is_empty()));
    }

    /// Adds the nodes whose agent could not be read.
    pub fn add_unreadable<'n>(&mut self, nodes: impl Iterator<Item = &'n str>) {
        let name = "gputenancy_usage_agent_unreadable";
        let sample = |node: &str| Sample {
            name: name.to_owned(),
            labels: BTreeMap::from([("node".to_owned(), node.to_owned())]),
            value: 1.0,
        };
        let samples: Vec<Sample> = nodes.map(sample).collect();
        if !samples.is_empty() {
            let help = "1 for each node with pods of the tenant whose agent could not be read";
            let head = vec![format!("# HELP {name} {help}."), format!("# TYPE {name} gauge")];
            self.0.insert(name.to_owned(), Family { head, samples });
        }
    }
}

impl Families {
    /// Series in all families.
    pub fn series(&self) -> usize {
        self.0.values().map(|family| family.samples.len()).sum()
    }
}

impl fmt::Display for Families {
    /// The `OpenMetrics` text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Family { head, samples } in self.0.values() {
            head.iter().try_for_each(|line| writeln!(f, "{line}"))?;
            samples.iter().try_for_each(|sample| writeln!(f, "{sample}"))?;
        }
        f.write_str("# EOF\n")
    }
}

/// The families of a text; a series belongs to the family whose head is above it. `marks`: lines without one of these are left out, unless there are none.
fn parse(text: &str, marks: &[String]) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP" | "TYPE" | "UNIT"), Some(name)) => {
                name.clone_into(&mut current);
                families.entry(current.clone()).or_default().head.push(line.to_owned());
            }
            (Some("#"), ..) => {}
            // before a line is parsed: nearly all are of others
            _ if !marks.is_empty() && marks.iter().all(|mark| !line.contains(mark)) => {}
            _ => {
                if let Some(sample) = sample(line).filter(|sample| sample.name.starts_with("gputenancy_")) {
                    families.entry(current.clone()).or_default().samples.push(sample);
                }
            }
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGENT: &str = "\
# HELP gputenancy_device_info 1 for each device.
# TYPE gputenancy_device_info gauge
gputenancy_device_info{uuid=\"GPU-a\",gpu_instance=\"\",product=\"A100\"} 1
gputenancy_device_info{uuid=\"GPU-b\",gpu_instance=\"7\",product=\"A100\"} 1
# HELP gputenancy_device_memory_used_bytes Memory of a device.
# TYPE gputenancy_device_memory_used_bytes gauge
gputenancy_device_memory_used_bytes{uuid=\"GPU-a\",gpu_instance=\"\"} 7
# HELP gputenancy_container_memory_used_bytes Memory of a container.
# TYPE gputenancy_container_memory_used_bytes gauge
gputenancy_container_memory_used_bytes{uuid=\"GPU-a\",gpu_instance=\"\",namespace=\"a\",pod=\"p\",container=\"c\"} 4
gputenancy_container_memory_used_bytes{uuid=\"GPU-a\",gpu_instance=\"\",namespace=\"b\",pod=\"q\",container=\"c\"} 3
# HELP gputenancy_device_seconds Seconds of devices.
# TYPE gputenancy_device_seconds counter
gputenancy_device_seconds_total{tenant=\"team-a\",mode=\"mig\"} 5
gputenancy_device_seconds_total{tenant=\"team-b\",mode=\"mig\"} 6
# HELP process_cpu_seconds Seconds.
# TYPE process_cpu_seconds counter
process_cpu_seconds_total 1
# EOF
";

    fn text(tenant: &str, namespace: &str) -> String {
        let namespaces = BTreeSet::from([namespace.to_owned()]);
        let mut families = Families::default();
        families.add_agent("n1", AGENT, Scope { tenant, namespaces: &namespaces });
        families
            .add_own("# TYPE gputenancy_tenant_waiting gauge\ngputenancy_tenant_waiting{tenant=\"team-a\"} 2\n# EOF\n");
        families.add_unreadable(["n2"].into_iter());
        families.to_string()
    }

    #[test]
    fn a_team_gets_its_series_what_its_devices_are_and_nodes_that_could_not_be_read() {
        insta::assert_snapshot!(text("team-a", "a"), @r#"
        # HELP gputenancy_container_memory_used_bytes Memory of a container.
        # TYPE gputenancy_container_memory_used_bytes gauge
        gputenancy_container_memory_used_bytes{container="c",gpu_instance="",namespace="a",node="n1",pod="p",uuid="GPU-a"} 4
        # HELP gputenancy_device_info 1 for each device.
        # TYPE gputenancy_device_info gauge
        gputenancy_device_info{gpu_instance="",node="n1",product="A100",uuid="GPU-a"} 1
        # HELP gputenancy_device_seconds Seconds of devices.
        # TYPE gputenancy_device_seconds counter
        gputenancy_device_seconds_total{mode="mig",node="n1",tenant="team-a"} 5
        # TYPE gputenancy_tenant_waiting gauge
        gputenancy_tenant_waiting{tenant="team-a"} 2
        # HELP gputenancy_usage_agent_unreadable 1 for each node with pods of the tenant whose agent could not be read.
        # TYPE gputenancy_usage_agent_unreadable gauge
        gputenancy_usage_agent_unreadable{node="n2"} 1
        # EOF
        "#);
    }

    #[test]
    fn series_of_a_namespace_that_another_tenant_had_are_not_shown() {
        let namespaces = BTreeSet::from(["a".to_owned()]);
        let scope = Scope { tenant: "team-a", namespaces: &namespaces };
        let mut families = Families::default();
        let line = |tenant: &str| {
            format!("gputenancy_allocation_info{{tenant=\"{tenant}\",namespace=\"a\",uuid=\"GPU-a\"}} 1\n")
        };
        families.add_agent("n1", &format!("# TYPE gputenancy_allocation_info gauge\n{}", line("team-b")), scope);
        assert_eq!(families.series(), 0);
        families.add_agent("n1", &format!("# TYPE gputenancy_allocation_info gauge\n{}", line("team-a")), scope);
        assert_eq!(families.series(), 1);
    }

    #[test]
    fn families_of_two_nodes_are_one() {
        let namespaces = BTreeSet::from(["a".to_owned()]);
        let mut families = Families::default();
        for node in ["n1", "n2"] {
            families.add_agent(node, AGENT, Scope { tenant: "team-a", namespaces: &namespaces });
        }
        let text = families.to_string();
        assert_eq!(text.matches("# TYPE gputenancy_device_seconds counter").count(), 1);
        assert_eq!(text.matches("gputenancy_device_seconds_total{").count(), 2);
    }

    proptest! {
        /// A team gets no series with another namespace or tenant, with any labels.
        #[test]
        fn no_series_of_another_namespace_or_tenant_is_shown(
            series in proptest::collection::vec((0..4_usize, 0..4_usize, 0..3_usize), 0..40)
        ) {
            let (tenants, namespaces, uuids) = (["", "a", "b", "a\\\"b"], ["", "a1", "b1", "a1 "], ["", "GPU-a", "GPU-b"]);
            let mut agent = "# TYPE gputenancy_x gauge\n".to_owned();
            for (tenant, namespace, uuid) in series {
                agent += &format!(
                    "gputenancy_x{{tenant=\"{}\",namespace=\"{}\",uuid=\"{}\"}} 1\n",
                    tenants[tenant], namespaces[namespace], uuids[uuid]
                );
            }
            let ours = BTreeSet::from(["a1".to_owned()]);
            let mut families = Families::default();
            families.add_agent("n", &agent, Scope { tenant: "a", namespaces: &ours });
            for shown in families.0.values().flat_map(|family| &family.samples) {
                let (tenant, namespace) = (shown.label("tenant"), shown.label("namespace"));
                prop_assert!(["", "a"].contains(&tenant) && ["", "a1"].contains(&namespace));
                prop_assert!(!tenant.is_empty() || !namespace.is_empty());
            }
        }
    }
}
