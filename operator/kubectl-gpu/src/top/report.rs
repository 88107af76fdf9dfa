//! The rows of `kubectl gpu top`: each device that a container has, with what it does, and processes on devices that their container does not have. Pure.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::Serialize;

use super::Gathered;
use crate::args::{Sort, TopArgs};
use gputenancy_cluster::agent_metrics::{Agent, Sample};

/// What pods do on their devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopReport {
    /// `gputenancy.io/v1alpha1`.
    pub api_version: String,
    /// `TopReport`.
    pub kind: String,
    /// Pods with devices, and pods with processes on devices that they do not have.
    pub pods: Vec<PodUse>,
    /// Nodes whose agent was not read, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_read: Vec<String>,
    /// What the user may not read, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_visible: Vec<String>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUse {
    /// Name of the tenant; empty outside of tenants.
    pub tenant: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub pod: String,
    /// What its containers do on each device.
    pub devices: Vec<DeviceUse>,
}

/// A container on a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceUse {
    /// Node.
    pub node: String,
    /// N of `/dev/nvidiaN`.
    pub gpu: String,
    /// UUID of the GPU.
    pub uuid: String,
    /// GPU instance id; empty without MIG.
    pub gpu_instance: String,
    /// Device id of the allocation, such as that of a share; empty for processes without a device.
    pub device: String,
    /// Extended resource; empty for processes without a device.
    pub resource: String,
    /// How the device is shared.
    pub mode: String,
    /// Container.
    pub container: String,
    /// Part of the time in which its kernels ran, 0 to 1; absent where no source shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// Part of the multiprocessors with work, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_active: Option<f64>,
    /// Where the utilization comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Bytes of its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// Bytes of the device, or of its share where it has a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total: Option<u64>,
    /// Processes that NVML lists.
    pub processes: u64,
    /// What a person should look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Above this part of the time a device looks busy, and below this part of its multiprocessors it is not: as in the agent.
const BUSY: f64 = 0.85;
const IDLE: f64 = 0.02;

/// The rows of these agents, filtered and sorted. An agent without a sample is not read: it lists processes before it knows the devices of their
/// containers.
pub fn report(gathered: Gathered, args: &TopArgs) -> TopReport {
    let Gathered { agents, mut not_read, not_visible } = gathered;
    let mut pods: BTreeMap<(String, String, String), Vec<DeviceUse>> = BTreeMap::new();
    for agent in &agents {
        if let Some(reason) = without_sample(agent) {
            not_read.push(format!("{}: {reason}", agent.node));
            continue;
        }
        let tenants: BTreeMap<&str, &str> = agent
            .of("gputenancy_allocation_info")
            .map(|allocation| (allocation.label("namespace"), allocation.label("tenant")))
            .collect();
        for (row, namespace, pod) in allocated(agent).into_iter().chain(unallocated(agent)) {
            let tenant = tenants.get(namespace.as_str()).copied().unwrap_or_default().to_owned();
            pods.entry((tenant, namespace, pod)).or_default().push(row);
        }
    }
    let wanted = |(tenant, namespace, _): &(String, String, String)| {
        args.tenant.as_ref().is_none_or(|wanted| wanted == tenant)
            && args.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
    };
    let of_pod = |((tenant, namespace, pod), devices)| PodUse { tenant, namespace, pod, devices };
    let mut pods: Vec<PodUse> = pods.into_iter().filter(|(key, _)| wanted(key)).map(of_pod).collect();
    match args.sort {
        Sort::Name => {}
        Sort::Utilization => pods.sort_by_key(|pod| Reverse(thousandths(pod.devices.iter().map(|d| d.utilization)))),
        Sort::Memory => pods.sort_by_key(|pod| Reverse(memory_used(pod))),
    }
    not_read.sort();
    TopReport { api_version: "gputenancy.io/v1alpha1".into(), kind: "TopReport".into(), pods, not_read, not_visible }
}

/// Why the series of an agent say nothing about devices.
fn without_sample(agent: &Agent) -> Option<&'static str> {
    let sampled = agent.of("gputenancy_usage_sample_seconds_count").any(|count| count.value > 0.0);
    let knows_devices = agent.of("gputenancy_device_info").next().is_some();
    match (sampled, knows_devices) {
        (true, true) => None,
        (true, false) => Some("its agent reports no GPU"),
        (false, _) => Some("its agent has not taken a sample yet"),
    }
}

/// Bytes of a pod on all its devices; `None` if nothing is known, which is less than 0.
fn memory_used(pod: &PodUse) -> Option<u64> {
    pod.devices.iter().filter_map(|device| device.memory_used).reduce(u64::saturating_add)
}

/// Bytes of a series.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of memory are whole and fit")]
fn bytes(value: f64) -> u64 {
    value as u64
}

/// A sum that can be compared; `None` if nothing is known, which is less than 0.
#[allow(clippy::cast_possible_truncation, reason = "parts from 0 to 1")]
fn thousandths(values: impl Iterator<Item = Option<f64>>) -> Option<i128> {
    values.flatten().map(|value| (value * 1000.0).round() as i128).reduce(|a, b| a + b)
}

/// Whether a series is of the same container on the same device.
fn same(sample: &Sample, of: &Sample, labels: &[&str]) -> bool {
    labels.iter().all(|label| sample.label(label) == of.label(label))
}

/// A row for each device that a container has.
fn allocated(agent: &Agent) -> Vec<(DeviceUse, String, String)> {
    let container = ["uuid", "gpu_instance", "namespace", "pod", "container"];
    let row = |allocation: &Sample| {
        let figure = |name: &str| agent.samples.iter().find(|s| s.name == name && same(s, allocation, &container));
        let value = |name: &str| figure(name).map(|sample| sample.value);
        let info = agent.of("gputenancy_device_info").find(|s| same(s, allocation, &["uuid", "gpu_instance"]));
        let share = agent.of("gputenancy_agent_share_memory_limit_bytes").find(|sample| {
            sample.label("share") == allocation.label("device")
                && same(sample, allocation, &["namespace", "pod", "container"])
        });
        let total = agent
            .of("gputenancy_device_memory_total_bytes")
            .find(|sample| same(sample, allocation, &["uuid", "gpu_instance"]));
        let utilization = value("gputenancy_container_utilization_ratio");
        let sm_active = value("gputenancy_container_sm_active_ratio");
        let used = DeviceUse {
            node: agent.node.clone(),
            gpu: info.map(|info| info.label("gpu").to_owned()).unwrap_or_default(),
            uuid: allocation.label("uuid").to_owned(),
            gpu_instance: allocation.label("gpu_instance").to_owned(),
            device: allocation.label("device").to_owned(),
            resource: allocation.label("resource").to_owned(),
            mode: allocation.label("mode").to_owned(),
            container: allocation.label("container").to_owned(),
            utilization,
            sm_active,
            source: figure("gputenancy_container_utilization_ratio").map(|sample| sample.label("source").to_owned()),
            memory_used: value("gputenancy_container_memory_used_bytes").map(bytes),
            memory_total: share.or(total).map(|sample| bytes(sample.value)),
            processes: processes(agent, allocation),
            note: None,
        };
        let note = note(&used);
        let text = |label: &str| allocation.label(label).to_owned();
        (DeviceUse { note, ..used }, text("namespace"), text("pod"))
    };
    agent.of("gputenancy_allocation_info").map(row).collect()
}

/// Processes of the container on the GPU, or else those of containers of its pod that have no device there: an init container with the device
/// of a later one, or a container whose name the agent does not know.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
fn processes(agent: &Agent, of: &Sample) -> u64 {
    let here = || {
        let of_gpu = |sample: &&Sample| sample.label("gpu") == of.label("uuid");
        agent.of("gputenancy_agent_processes").filter(of_gpu)
    };
    let count = |samples: &mut dyn Iterator<Item = &Sample>| samples.map(|sample| sample.value as u64).sum();
    let own: u64 = count(&mut here().filter(|sample| same(sample, of, &["namespace", "pod", "container"])));
    if own > 0 {
        return own;
    }
    let has_device = |sample: &&Sample| {
        agent.of("gputenancy_allocation_info").any(|allocation| {
            allocation.label("uuid") == sample.label("gpu")
                && same(allocation, sample, &["namespace", "pod", "container"])
        })
    };
    count(&mut here().filter(|sample| same(sample, of, &["namespace", "pod"]) && !has_device(sample)))
}

fn note(used: &DeviceUse) -> Option<String> {
    let above = |value: Option<f64>| value.is_some_and(|value| value > 0.0);
    let has_memory = used.memory_used.is_some_and(|bytes| bytes > 0);
    let note = match (used.utilization, used.sm_active) {
        (Some(utilization), Some(sm)) if utilization > BUSY && sm < IDLE => "busy but idle: small kernels",
        // a sample of utilization or memory may come before the first scan that finds the process
        (utilization, _) if used.processes == 0 && !above(utilization) && !has_memory => "no process",
        (None, _) => "no source of utilization",
        _ => return None,
    };
    Some(note.to_owned())
}

/// Containers with processes on a GPU without a device of it, such as those of a pod that did not end completely.
fn unallocated(agent: &Agent) -> Vec<(DeviceUse, String, String)> {
    let has = |processes: &Sample| {
        agent.of("gputenancy_allocation_info").any(|allocation| {
            allocation.label("uuid") == processes.label("gpu") && same(allocation, processes, &["namespace", "pod"])
        })
    };
    let row = |sample: &Sample| {
        let info = agent.of("gputenancy_device_info").find(|info| info.label("uuid") == sample.label("gpu"));
        let used = DeviceUse {
            node: agent.node.clone(),
            gpu: info.map(|info| info.label("gpu").to_owned()).unwrap_or_default(),
            uuid: sample.label("gpu").to_owned(),
            container: sample.label("container").to_owned(),
            processes: processes(agent, &of_gpu(sample)),
            note: Some("processes on a GPU without a device of it".to_owned()),
            ..DeviceUse::default()
        };
        (used, sample.label("namespace").to_owned(), sample.label("pod").to_owned())
    };
    let listed = agent.of("gputenancy_agent_processes").filter(|sample| sample.value > 0.0);
    listed.filter(|sample| !sample.label("pod").is_empty() && !has(sample)).map(row).collect()
}

/// A series of processes as one with the label of usage.
fn of_gpu(sample: &Sample) -> Sample {
    let mut sample = sample.clone();
    if let Some(uuid) = sample.labels.get("gpu").cloned() {
        sample.labels.insert("uuid".into(), uuid);
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"gputenancy_device_info{node="n1",pool="p",product="H100",uuid="GPU-a",gpu="0",gpu_instance="",profile="",mode="exclusive",resource="nvidia.com/gpu"} 1
gputenancy_device_info{node="n1",pool="p",product="H100",uuid="GPU-b",gpu="1",gpu_instance="7",profile="1g.10gb",mode="mig",resource="nvidia.com/mig-1g.10gb"} 1
gputenancy_allocation_info{uuid="GPU-a",gpu_instance="",device="GPU-a",mode="exclusive",resource="nvidia.com/gpu",tenant="a",namespace="a1",pod="tiny",container="main"} 1
gputenancy_allocation_info{uuid="GPU-b",gpu_instance="7",device="MIG-b",mode="mig",resource="nvidia.com/mig-1g.10gb",tenant="b",namespace="b1",pod="busy",container="main"} 1
gputenancy_container_utilization_ratio{uuid="GPU-a",gpu_instance="",namespace="a1",pod="tiny",container="main",source="gpm"} 0.99
gputenancy_container_sm_active_ratio{uuid="GPU-a",gpu_instance="",namespace="a1",pod="tiny",container="main",source="gpm"} 0.008
gputenancy_container_memory_used_bytes{uuid="GPU-a",gpu_instance="",namespace="a1",pod="tiny",container="main"} 100
gputenancy_device_memory_total_bytes{uuid="GPU-a",gpu_instance=""} 1000
gputenancy_agent_processes{gpu="GPU-a",namespace="a1",pod="tiny",container="main"} 1
gputenancy_agent_processes{gpu="GPU-b",namespace="b1",pod="busy",container="main"} 2
gputenancy_agent_processes{gpu="GPU-a",namespace="b1",pod="zombie",container="main"} 1
gputenancy_agent_processes{gpu="GPU-a",namespace="",pod="",container=""} 1
gputenancy_usage_sample_seconds_count 3
"#;

    fn of_text(text: &str, args: &TopArgs) -> TopReport {
        report(Gathered { agents: vec![Agent::parse("n1", text)], ..Gathered::default() }, args)
    }

    fn found(args: &TopArgs) -> TopReport {
        of_text(TEXT, args)
    }

    /// An agent's series before its first sample: processes, and neither devices nor allocations.
    fn before_the_first_sample() -> String {
        let lines = TEXT.lines().filter(|line| line.starts_with("gputenancy_agent_processes"));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    fn rows(found: &TopReport) -> Vec<(&str, &str, Option<&str>)> {
        found
            .pods
            .iter()
            .flat_map(|p| p.devices.iter().map(|d| (p.tenant.as_str(), p.pod.as_str(), d.note.as_deref())))
            .collect()
    }

    #[test]
    fn allocation_processes_and_activity_are_one_row_and_a_mismatch_is_named() {
        assert_eq!(
            rows(&found(&TopArgs::default())),
            [
                ("a", "tiny", Some("busy but idle: small kernels")),
                ("b", "busy", Some("no source of utilization")),
                ("b", "zombie", Some("processes on a GPU without a device of it")),
            ]
        );
        let tiny = &found(&TopArgs::default()).pods[0].devices[0];
        assert_eq!((tiny.gpu.as_str(), tiny.processes), ("0", 1));
        assert_eq!((tiny.memory_used, tiny.memory_total), (Some(100), Some(1000)));
        assert_eq!(tiny.device, "GPU-a");
    }

    #[test]
    fn processes_are_not_judged_before_the_first_sample_of_their_agent() {
        let text = before_the_first_sample();
        for count in ["", "gputenancy_usage_sample_seconds_count 0\n"] {
            let found = of_text(&(text.clone() + count), &TopArgs::default());
            assert!(rows(&found).is_empty());
            assert_eq!(found.not_read, ["n1: its agent has not taken a sample yet"]);
        }
        let without_devices = of_text(&(text + "gputenancy_usage_sample_seconds_count 1\n"), &TopArgs::default());
        assert!(rows(&without_devices).is_empty());
        assert_eq!(without_devices.not_read, ["n1: its agent reports no GPU"]);
        assert!(found(&TopArgs::default()).not_read.is_empty());
    }

    #[test]
    fn processes_of_an_init_container_are_those_of_the_container_with_its_device() {
        let main = r#"processes{gpu="GPU-a",namespace="a1",pod="tiny",container="main"}"#;
        let text = TEXT.replace(main, &main.replace("main", "init"));
        let of_a = of_text(&text, &TopArgs { tenant: Some("a".into()), ..TopArgs::default() });
        let json = serde_json::to_value(of_a).unwrap();
        assert_eq!(json["pods"][0]["devices"][0]["processes"].as_u64(), Some(1), "{json}");
    }

    #[test]
    fn document_has_a_kind_and_whole_bytes() {
        let json = serde_json::to_value(found(&TopArgs { tenant: Some("a".into()), ..TopArgs::default() })).unwrap();
        assert_eq!(json["apiVersion"], "gputenancy.io/v1alpha1");
        assert_eq!(json["kind"], "TopReport");
        assert_eq!(json["pods"][0]["devices"][0]["memoryUsed"].as_u64(), Some(100));
        assert!(json.get("notVisible").is_none());
    }

    #[test]
    fn pods_are_filtered_by_tenant_and_namespace() {
        let of_b = TopArgs { tenant: Some("b".into()), ..TopArgs::default() };
        assert_eq!(rows(&found(&of_b)).len(), 2);
        let none = TopArgs { namespace: Some("c".into()), ..TopArgs::default() };
        assert!(found(&none).pods.is_empty());
    }

    #[test]
    fn pod_without_a_process_on_its_device_is_marked() {
        let idle = TEXT.replace("pod=\"busy\",container=\"main\"} 2", "pod=\"busy\",container=\"main\"} 0");
        let found = of_text(&idle, &TopArgs::default());
        assert!(rows(&found).contains(&("b", "busy", Some("no process"))));
    }
}
