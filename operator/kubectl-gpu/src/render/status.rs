//! The fleet as text: a summary, the pools, a bar for each GPU, and a row for each device.

use std::fmt::Write as _;

use gputenancy_crds::OtherLimit;

use super::{
    slices::slices,
    style::{GREEN, RED, heading, hidden, styled, wrapped},
    table::{table, wide},
};
use crate::{
    inside::Inside,
    status::{DeviceCounts, DeviceState, DeviceStatus, FleetStatus, GpuStatus, NodeStatus, Unallocated},
    units::counted,
};

/// The whole report, with the containers on each device if `processes`.
pub fn status(report: &FleetStatus, with_processes: bool) -> String {
    let mut text = String::new();
    let DeviceCounts { total, used, free, withdrawn } = report.devices;
    let size = format!("{}, {}", counted(report.node_count, "node"), counted(report.gpu_count, "GPU"));
    let devices = format!("{}: {used} used, {free} free, {withdrawn} withdrawn", counted(total, "device"));
    wrapped(&mut text, 0, "", &format!("Fleet: {size}, {devices}"));
    let agents = match report.silent_agents {
        0 => styled(GREEN, "all agents report"),
        1 => styled(RED, "1 agent is silent"),
        n => styled(RED, &format!("{n} agents are silent")),
    };
    let _ = writeln!(text, "Agents: {agents}");
    attention(report, &mut text);
    pools(report, &mut text);
    slices(report, &mut text);
    let rows: Vec<Vec<String>> = report.nodes.iter().flat_map(of_node).collect();
    if !rows.is_empty() {
        text.push('\n');
        heading(&mut text, "Devices");
        text.push_str(&wide(&["NODE", "GPU", "DEVICE", "STATE", "POD", "TENANT", "RESOURCE", "NOTE"], rows));
    }
    if with_processes {
        processes(report, &mut text);
    }
    other_limits(report, &mut text);
    hidden(&mut text, &report.not_visible);
    text
}

/// The containers with processes on each device.
fn processes(report: &FleetStatus, text: &mut String) {
    let devices = report.nodes.iter().flat_map(|node| {
        node.gpus.iter().flat_map(move |gpu| gpu.devices.iter().map(move |device| (node, gpu.gpu, device)))
    });
    let rows: Vec<Vec<String>> =
        devices.flat_map(|(node, gpu, device)| of_processes(&node.node, gpu, device)).collect();
    if !rows.is_empty() {
        text.push('\n');
        heading(text, "Processes by container, as NVML lists them");
        text.push_str(&wide(&["NODE", "GPU", "DEVICE", "POD", "CONTAINER", "TENANT", "PROCESSES", "MEMORY"], rows));
    }
}

fn of_processes(node: &str, gpu: i32, device: &DeviceStatus) -> Vec<Vec<String>> {
    let row = |[pod, container, tenant, count, memory]: [String; 5]| {
        vec![node.to_owned(), gpu.to_string(), device.device.clone(), pod, container, tenant, count, memory]
    };
    let dash = || "-".to_owned();
    let listed = device.containers.iter().map(|found| {
        let (pod, container) = found.container.as_ref().map_or_else(
            || ("(none)".to_owned(), dash()),
            |owner| (format!("{}/{}", owner.namespace, owner.pod), owner.container.clone()),
        );
        let memory = found.memory.as_ref().map_or_else(dash, ToString::to_string);
        row([pod, container, found.tenant.clone().unwrap_or_else(dash), found.count.to_string(), memory])
    });
    let more = (device.more_containers > 0).then(|| {
        let what = format!("and {} more", counted(usize::try_from(device.more_containers).unwrap_or(0), "container"));
        row([what, dash(), dash(), dash(), dash()])
    });
    listed.chain(more).collect()
}

/// Limits that other products give to pods.
fn other_limits(report: &FleetStatus, text: &mut String) {
    let limits = report.nodes.iter().flat_map(|node| node.other_limits.iter().map(move |limit| (node, limit)));
    let rows: Vec<Vec<String>> = limits.map(|(node, limit)| of_limit(node, limit)).collect();
    if !rows.is_empty() {
        text.push('\n');
        heading(text, "Limits of other products, as their pods state them");
        text.push_str(&wide(&["NODE", "POD", "CONTAINER", "GPU", "MEMORY", "COMPUTE", "SOURCE"], rows));
    }
}

fn of_limit(node: &NodeStatus, limit: &OtherLimit) -> Vec<String> {
    let OtherLimit { namespace, pod, container, gpu, device, memory, compute, source } = limit;
    let index = |uuid: &String| {
        let known = node.gpus.iter().find(|known| known.uuid == *uuid);
        known.map_or_else(|| uuid.clone(), |known| known.gpu.to_string())
    };
    let number = || device.map(|number| format!("device {number}"));
    let cells = [
        container.clone(),
        gpu.as_ref().map(index).or_else(number),
        memory.as_ref().map(ToString::to_string),
        compute.map(|percent| format!("{percent} %")),
        Some(source.clone()),
    ];
    let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
    [node.node.clone(), format!("{namespace}/{pod}")].into_iter().chain(cells).collect()
}

fn attention(report: &FleetStatus, text: &mut String) {
    if !report.attention.is_empty() {
        text.push('\n');
        heading(text, "Needs attention");
        report.attention.iter().for_each(|line| wrapped(text, 2, "- ", line));
    }
}

fn pools(report: &FleetStatus, text: &mut String) {
    if report.pools.is_empty() {
        return;
    }
    text.push('\n');
    heading(text, "Pools");
    let rows = report.pools.iter().map(|p| {
        let DeviceCounts { total, used, free, withdrawn } = p.devices;
        let numbers = [p.nodes, p.silent_agents, p.gpus, total, used, free, withdrawn, p.stranded_slices];
        std::iter::once(p.pool.clone()).chain(numbers.iter().map(ToString::to_string)).collect()
    });
    let header = ["POOL", "NODES", "SILENT", "GPUS", "DEVICES", "USED", "FREE", "WITHDRAWN", "STRANDED SLICES"];
    text.push_str(&table(&header, rows));
}

fn of_node(node: &NodeStatus) -> Vec<Vec<String>> {
    if node.gpus.is_empty() {
        let remark = node.agent.cause.clone().unwrap_or_else(|| "the agent reports no GPU".to_owned());
        return vec![row(&node.node, "-", ["-", "no GPU", "-", "-", "-"], &remark)];
    }
    node.gpus.iter().flat_map(|gpu| of_gpu(&node.node, gpu)).collect()
}

fn of_gpu(node: &str, gpu: &GpuStatus) -> Vec<Vec<String>> {
    let index = gpu.gpu.to_string();
    let devices = gpu.devices.iter().map(|device| of_device(node, &index, device));
    let unallocated = gpu.unallocated.iter().map(|part| of_part(node, &index, part));
    let mut rows: Vec<Vec<String>> = devices.chain(unallocated).collect();
    if rows.is_empty() {
        let (state, remark) = match (gpu.managed, &gpu.change) {
            (false, _) => ("unmanaged", "not managed: neither changed nor advertised".to_owned()),
            (true, Some(phase)) => ("no device", format!("is changing ({phase})")),
            (true, None) => ("no device", String::new()),
        };
        rows.push(row(node, &index, ["-", state, "-", "-", "-"], &remark));
    }
    rows
}

fn of_device(node: &str, gpu: &str, device: &DeviceStatus) -> Vec<String> {
    let state = match device.state {
        DeviceState::Used => "used",
        DeviceState::Free => "free",
        DeviceState::Withdrawn => "withdrawn",
        DeviceState::Unmanaged => "unmanaged",
    };
    let pod = device.pod.as_ref().map(|p| Inside::shown(p.inside.as_ref(), format!("{}/{}", p.namespace, p.name)));
    let (pod, host) = pod.unwrap_or_else(|| ("-".to_owned(), None));
    let remark = device.note.iter().cloned().chain(host).collect::<Vec<_>>().join("; ");
    let tenant = device.tenant.as_deref().unwrap_or("-");
    let resource = if device.resource.is_empty() { "-" } else { &device.resource };
    row(node, gpu, [&device.device, state, &pod, tenant, resource], &remark)
}

fn of_part(node: &str, gpu: &str, part: &Unallocated) -> Vec<String> {
    let (state, remark) = if part.stranded {
        ("stranded", "no profile of the pool fits")
    } else {
        ("unallocated", "no device yet; a profile of the pool fits")
    };
    row(node, gpu, [&part.part, state, "-", "-", "-"], remark)
}

fn row(node: &str, gpu: &str, columns: [&str; 5], remark: &str) -> Vec<String> {
    let words = [node, gpu].into_iter().chain(columns).chain([remark]);
    words.map(str::to_owned).collect()
}
