//! What pods do on their devices, as a table: tenant, pod and device, each named once.

use std::collections::{BTreeMap, VecDeque};

use super::{
    style::{YELLOW, heading, printable, styled, wrapped},
    table::wide,
};
use crate::top::{DeviceUse, PodUse, TopReport};

/// Heights of a line of samples.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Names a row of the table from one reading to the next.
pub fn trend_key(pod: &PodUse, device: &DeviceUse) -> [String; 5] {
    [&device.uuid, &device.gpu_instance, &pod.namespace, &pod.pod, &device.container].map(Clone::clone)
}

/// The table, with a column of the last samples if there are any.
pub fn top(found: &TopReport, trends: Option<&BTreeMap<[String; 5], VecDeque<Option<f64>>>>) -> String {
    let mut header = vec!["TENANT", "POD", "DEVICE", "MODE", "UTIL", "SM", "MEMORY", "SOURCE", "NOTE"];
    if trends.is_some() {
        header.insert(5, "TREND");
    }
    let (mut rows, mut last) = (Vec::new(), (None, None));
    for pod in &found.pods {
        for device in &pod.devices {
            let tenant = if pod.tenant.is_empty() { "-".to_owned() } else { pod.tenant.clone() };
            let name = format!("{}/{}", pod.namespace, pod.pod);
            let same_tenant = last.0.as_ref() == Some(&tenant);
            let same_pod = same_tenant && last.1.as_ref() == Some(&name);
            let mut row = vec![
                if same_tenant { String::new() } else { tenant.clone() },
                if same_pod { String::new() } else { name.clone() },
                place(device),
                or_dash(&device.mode),
                percent(device.utilization),
                percent(device.sm_active),
                memory(device),
                or_dash(device.source.as_deref().unwrap_or_default()),
                device.note.as_deref().map(|note| styled(YELLOW, note)).unwrap_or_default(),
            ];
            if let Some(trends) = trends {
                row.insert(5, trends.get(&trend_key(pod, device)).map(line).unwrap_or_default());
            }
            rows.push(row);
            last = (Some(tenant), Some(name));
        }
    }
    let mut text = if rows.is_empty() { "No pod has a device.\n".to_owned() } else { wide(&header, rows) };
    if !found.not_read.is_empty() {
        text.push('\n');
        heading(&mut text, "Nodes that were not read");
        found.not_read.iter().for_each(|node| wrapped(&mut text, 2, "- ", node));
    }
    // also of `--watch`, which writes to the terminal itself
    printable(&text)
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// Node, GPU and instance.
fn place(device: &DeviceUse) -> String {
    let gpu = if device.gpu.is_empty() { device.uuid.clone() } else { device.gpu.clone() };
    let instance = if device.gpu_instance.is_empty() { String::new() } else { format!(":{}", device.gpu_instance) };
    let resource = if device.resource.is_empty() { String::new() } else { format!(" {}", device.resource) };
    format!("{}/{gpu}{instance}{resource}", device.node)
}

/// A part from 0 to 1; `?` where it is not known, which is not 0.
fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| format!("{:.0}%", value * 100.0))
}

fn memory(device: &DeviceUse) -> String {
    const GIB: f64 = 1_073_741_824.0;
    let gib = |bytes: f64| format!("{:.1}", bytes / GIB);
    match (device.memory_used, device.memory_total) {
        (Some(used), Some(total)) => format!("{}/{}Gi", gib(used), gib(total)),
        (Some(used), None) => format!("{}Gi", gib(used)),
        (None, _) => "?".to_owned(),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part from 0 to 1")]
fn line(samples: &VecDeque<Option<f64>>) -> String {
    let bar = |value: f64| BARS.get((value.clamp(0.0, 1.0) * 7.0).round() as usize).copied().unwrap_or(' ');
    samples.iter().map(|value| value.map_or('·', bar)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trend_has_a_bar_for_each_sample_and_a_dot_where_nothing_is_known() {
        assert_eq!(line(&[Some(0.0), Some(0.5), None, Some(1.0)].into()), "▁▅·█");
    }

    #[test]
    fn tenant_and_pod_are_named_once_and_the_unknown_is_not_zero() {
        let device = |gpu: &str, utilization| DeviceUse {
            node: "n1".into(),
            gpu: gpu.into(),
            uuid: format!("GPU-{gpu}"),
            resource: "nvidia.com/gpu".into(),
            mode: "exclusive".into(),
            container: "main".into(),
            utilization,
            memory_used: Some(2_147_483_648.0),
            memory_total: Some(85_899_345_920.0),
            processes: 1,
            ..DeviceUse::default()
        };
        let pod = |pod: &str, devices| PodUse { tenant: "a".into(), namespace: "a1".into(), pod: pod.into(), devices };
        let pods = vec![pod("x", vec![device("0", Some(0.973)), device("1", None)]), pod("y", vec![device("2", None)])];
        let report = TopReport { pods, not_read: vec!["n2: no answer within 30 s".into()] };
        insta::assert_snapshot!(anstream::adapter::strip_str(&top(&report, None)).to_string());
    }
}
