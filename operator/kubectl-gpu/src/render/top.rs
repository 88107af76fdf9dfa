//! What pods do on their devices, as a table.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal as _},
};

use super::{
    fit::{fitted, whole},
    style::{YELLOW, heading, hidden, printable, styled, wrapped},
    table::stacked,
    width,
};
use crate::top::{DeviceUse, PodUse, TopReport, Trends};

/// Heights of a line of samples.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Names a row of the table from one reading to the next.
pub fn trend_key(pod: &PodUse, device: &DeviceUse) -> [String; 5] {
    [&device.uuid, &device.gpu_instance, &pod.namespace, &pod.pod, &device.container].map(Clone::clone)
}

/// The table, with a column of the last samples if there are any.
pub fn top(found: &TopReport, trends: Option<&Trends>) -> String {
    shown(found, trends, width::row(), io::stdout().is_terminal())
}

/// The table in this width. On a terminal tenant and pod are named once; elsewhere each row has them, such as for `grep`.
fn shown(found: &TopReport, trends: Option<&Trends>, width: Option<u16>, terminal: bool) -> String {
    let mut text = match (found.pods.is_empty(), found.not_read.is_empty()) {
        (true, true) => "No pod has a device.\n".to_owned(),
        (true, false) => "No pod has a device on the nodes that were read.\n".to_owned(),
        (false, _) => in_columns(found, trends, width, terminal),
    };
    if !found.not_read.is_empty() {
        text.push('\n');
        heading(&mut text, "Nodes that were not read");
        found.not_read.iter().for_each(|node| wrapped(&mut text, 2, "- ", node));
    }
    hidden(&mut text, &found.not_visible);
    // also of `--watch`, which writes to the terminal itself
    printable(&text)
}

fn in_columns(found: &TopReport, trends: Option<&Trends>, width: Option<u16>, terminal: bool) -> String {
    let mut header = vec!["TENANT", "POD", "DEVICE", "MODE", "UTIL", "SM", "MEMORY", "SOURCE", "NOTE"];
    if trends.is_some() {
        header.insert(5, "TREND");
    }
    let rows = rows(found, trends);
    let named_once = if terminal { without_repeated_names(&rows) } else { rows.clone() };
    let Some(width) = width else { return whole(&header, &named_once) };
    let in_blocks = || {
        let styled_note = |mut row: Vec<String>| {
            if let Some(note) = row.last_mut().filter(|note| !note.is_empty()) {
                *note = styled(YELLOW, note);
            }
            row
        };
        let rows: Vec<Vec<String>> = rows.into_iter().map(styled_note).collect();
        stacked(&header, &rows, width)
    };
    fitted(&header, &named_once, width.into()).unwrap_or_else(in_blocks)
}

/// A row for each device of a pod.
fn rows(found: &TopReport, trends: Option<&Trends>) -> Vec<Vec<String>> {
    let row = |pod: &PodUse, device: &DeviceUse| {
        let mut row = vec![
            or_dash(&pod.tenant),
            format!("{}/{}", pod.namespace, pod.pod),
            place(device),
            or_dash(&device.mode),
            percent(device.utilization),
            percent(device.sm_active),
            memory(device),
            or_dash(device.source.as_deref().unwrap_or_default()),
            device.note.clone().unwrap_or_default(),
        ];
        if let Some(trends) = trends {
            row.insert(5, trends.get(&trend_key(pod, device)).map(line).unwrap_or_default());
        }
        row
    };
    found.pods.iter().flat_map(|pod| pod.devices.iter().map(move |device| row(pod, device))).collect()
}

/// The rows, without a tenant and a pod that the row above names.
fn without_repeated_names(rows: &[Vec<String>]) -> Vec<Vec<String>> {
    let mut shown = rows.to_vec();
    for (row, above) in shown.iter_mut().skip(1).zip(rows) {
        // the pod is repeated where the tenant differs
        for (cell, above) in row.iter_mut().zip(above).take(2) {
            if cell != above {
                break;
            }
            cell.clear();
        }
    }
    shown
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

/// A part from 0 to 1; `?` where it is not known, which is not 0. Below 10 % it has one decimal, and is not rounded up: what is less than the 2 % of
/// a note must not look like 2 %.
fn percent(value: Option<f64>) -> String {
    let Some(percent) = value.map(|value| value * 100.0) else { return "?".to_owned() };
    if percent > 0.0 && percent < 10.0 {
        // a product of decimals may be a little less than its exact value
        return format!("{:.1}%", (percent * 10.0 + 1e-6).floor() / 10.0);
    }
    format!("{percent:.0}%")
}

#[allow(clippy::cast_precision_loss, reason = "one decimal of GiB is shown")]
fn memory(device: &DeviceUse) -> String {
    const GIB: f64 = 1_073_741_824.0;
    let gib = |bytes: u64| format!("{:.1}", bytes as f64 / GIB);
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
    fn percent_below_ten_has_a_decimal_and_is_not_rounded_up() {
        let all: Vec<String> = [0.0, 0.008, 0.0196, 0.02, 0.0999, 0.1, 0.973].map(|part| percent(Some(part))).into();
        assert_eq!(all, ["0%", "0.8%", "1.9%", "2.0%", "9.9%", "10%", "97%"]);
        assert_eq!(percent(None), "?");
    }

    fn device(gpu: &str, utilization: Option<f64>) -> DeviceUse {
        DeviceUse {
            node: "n1".into(),
            gpu: gpu.into(),
            uuid: format!("GPU-{gpu}"),
            resource: "nvidia.com/gpu".into(),
            mode: "exclusive".into(),
            container: "main".into(),
            utilization,
            memory_used: Some(2_147_483_648),
            memory_total: Some(85_899_345_920),
            processes: 1,
            ..DeviceUse::default()
        }
    }

    fn pod(pod: &str, devices: Vec<DeviceUse>) -> PodUse {
        PodUse { tenant: "a".into(), namespace: "a1".into(), pod: pod.into(), devices }
    }

    fn plain(report: &TopReport, width: Option<u16>, terminal: bool) -> String {
        anstream::adapter::strip_str(&shown(report, None, width, terminal)).to_string()
    }

    fn two_pods() -> TopReport {
        let pods = vec![pod("x", vec![device("0", Some(0.973)), device("1", None)]), pod("y", vec![device("2", None)])];
        TopReport { pods, not_read: vec!["n2: no answer within 30 s".into()], ..TopReport::default() }
    }

    #[test]
    fn tenant_and_pod_are_named_once_and_the_unknown_is_not_zero() {
        insta::assert_snapshot!(plain(&two_pods(), None, true));
    }

    #[test]
    fn tenant_and_pod_are_in_each_row_where_there_is_no_terminal() {
        let text = plain(&two_pods(), None, false);
        assert_eq!(text.lines().filter(|line| line.starts_with("  a       a1/")).count(), 3, "{text}");
    }

    #[test]
    fn table_without_rows_names_what_is_not_known() {
        let report = TopReport {
            not_read: vec!["n1: no pod of the agent".into()],
            not_visible: vec!["gpunodes".into()],
            ..TopReport::default()
        };
        let expected = "No pod has a device on the nodes that were read.\n\nNodes that were not read\n  - n1: no pod of the agent\n\n\
            Not visible to you\n  - gpunodes\n";
        assert_eq!(plain(&report, None, true), expected);
        assert_eq!(plain(&TopReport::default(), None, true), "No pod has a device.\n");
    }

    /// Two pods with names of a usual length; one has two instances and a note.
    fn usual() -> TopReport {
        let mut slice = DeviceUse { gpu_instance: "7".into(), mode: "mig".into(), ..device("1", Some(0.99)) };
        slice.node = "gpu-1".into();
        slice.resource = "nvidia.com/mig-1g.10gb".into();
        slice.note = Some("busy but idle: small kernels".into());
        let other = DeviceUse { gpu_instance: "8".into(), note: None, ..slice.clone() };
        let pods = vec![pod("notebook-7c9f4-abcde-12345", vec![slice, other]), pod("y", vec![device("2", None)])];
        TopReport { pods, ..TopReport::default() }
    }

    #[test]
    fn table_of_a_wide_terminal_has_all_columns_and_a_line_for_each_row() {
        let text = plain(&usual(), Some(200), true);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("SOURCE") && text.contains("MODE"), "{text}");
        assert!(text.contains(" gpu-1/1:7 nvidia.com/mig-1g.10gb  mig ") && text.contains("small kernels"), "{text}");
        assert_eq!(text, plain(&usual(), None, true));
    }

    #[test]
    fn narrow_terminal_drops_source_and_mode_and_shortens_names() {
        for width in [100, 80] {
            let text = plain(&usual(), Some(width), true);
            assert!(text.lines().all(|line| line.chars().count() <= width.into()), "{text}");
            assert!(text.starts_with("  TENANT  POD ") && !text.contains("TENANT: "), "{text}");
            assert!(!text.contains("SOURCE") && !text.contains("MODE"), "{text}");
            assert!(text.contains(" gpu-1/1:7 ") && text.contains('…'), "{text}");
        }
        assert!(plain(&usual(), Some(100), true).contains("a1/notebook-7c9f4-abcde-12345"));
    }

    #[test]
    fn blocks_of_the_narrowest_terminal_have_all_names() {
        let text = plain(&usual(), Some(50), true);
        assert_eq!(text.lines().filter(|line| *line == "  TENANT: a").count(), 3, "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("POD: a1/notebook")).count(), 2, "{text}");
    }

    #[test]
    fn trend_is_shortened_to_its_last_samples_and_dropped_where_it_does_not_fit() {
        let report = usual();
        let trends: Trends = report
            .pods
            .iter()
            .flat_map(|pod| pod.devices.iter().map(move |device| trend_key(pod, device)))
            .map(|key| (key, VecDeque::from(vec![Some(1.0); 30])))
            .collect();
        let has_trend = |width| shown(&report, Some(&trends), Some(width), true).contains("TREND");
        assert!(has_trend(200) && has_trend(110));
        assert!(!has_trend(80));
    }
}
