//! The rows of `kubectl gpu top`: each device that a container has, with what it does, and processes on devices that their container does not have. Pure.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::Serialize;

use crate::args::{Sort, TopArgs};
use gputenancy_cluster::agent_metrics::{Agent, Sample};

/// What pods do on their devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopReport {
    /// Pods with devices, and pods with processes on devices that they do not have.
    pub pods: Vec<PodUse>,
    /// Nodes whose agent was not read, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_read: Vec<String>,
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
    pub memory_used: Option<f64>,
    /// Bytes of the device, or of its share where it has a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total: Option<f64>,
    /// Processes that NVML lists.
    pub processes: u64,
    /// What a person should look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Above this part of the time a device looks busy, and below this part of its multiprocessors it is not: as in the agent.
const BUSY: f64 = 0.85;
const IDLE: f64 = 0.02;

/// The rows of these agents, filtered and sorted.
pub fn report(agents: &[Agent], not_read: Vec<String>, args: &TopArgs) -> TopReport {
    let mut pods: BTreeMap<(String, String, String), Vec<DeviceUse>> = BTreeMap::new();
    for agent in agents {
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
        Sort::Memory => pods.sort_by_key(|pod| Reverse(thousandths(pod.devices.iter().map(|d| d.memory_used)))),
    }
    TopReport { pods, not_read }
}

/// A sum that can be compared; `None` if nothing is known, which is less than 0.
#[allow(clippy::cast_possible_truncation, reason = "bytes of memory fit")]
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
            resource: allocation.label("resource").to_owned(),
            mode: allocation.label("mode").to_owned(),
            container: allocation.label("container").to_owned(),
            utilization,
            sm_active,
            source: figure("gputenancy_container_utilization_ratio").map(|sample| sample.label("source").to_owned()),
            memory_used: value("gputenancy_container_memory_used_bytes"),
            memory_total: share.or(total).map(|sample| sample.value),
            processes: processes(agent, allocation),
            note: None,
        };
        let note = note(&used);
        let text = |label: &str| allocation.label(label).to_owned();
        (DeviceUse { note, ..used }, text("namespace"), text("pod"))
    };
    agent.of("gputenancy_allocation_info").map(row).collect()
}

/// Processes of the container on the GPU.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
fn processes(agent: &Agent, of: &Sample) -> u64 {
    let here = |sample: &&Sample| {
        sample.label("gpu") == of.label("uuid") && same(sample, of, &["namespace", "pod", "container"])
    };
    agent.of("gputenancy_agent_processes").filter(here).map(|sample| sample.value as u64).sum()
}

fn note(used: &DeviceUse) -> Option<String> {
    let above = |value: Option<f64>| value.is_some_and(|value| value > 0.0);
    let note = match (used.utilization, used.sm_active) {
        (Some(utilization), Some(sm)) if utilization > BUSY && sm < IDLE => "busy but idle: small kernels",
        // a sample of utilization or memory may come before the first scan that finds the process
        (utilization, _) if used.processes == 0 && !above(utilization) && !above(used.memory_used) => "no process",
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
"#;

    fn found(args: &TopArgs) -> TopReport {
        report(&[Agent::parse("n1", TEXT)], Vec::new(), args)
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
        assert_eq!((tiny.memory_used, tiny.memory_total), (Some(100.0), Some(1000.0)));
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
        let found = report(&[Agent::parse("n1", &idle)], Vec::new(), &TopArgs::default());
        assert!(rows(&found).contains(&("b", "busy", Some("no process"))));
    }
}
