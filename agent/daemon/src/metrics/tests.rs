use gputenancy_agent_core::{
    gpu::ObservedGpu,
    usage::{
        containers::{ContainerUse, GpuUse},
        seconds::Added,
    },
};
use gputenancy_crds::SharingMode;

use super::{
    usage::{GpuShown, Held},
    *,
};
use crate::mps::share::tests::device;

#[test]
fn shares_are_counted_by_means_and_a_means_without_shares_is_zero() {
    let metrics = Metrics::default();
    metrics.set_enforcement(&[Isolation::None; 3]);
    metrics.set_enforcement(&[Isolation::Software, Isolation::Server, Isolation::Software]);
    let text = gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap();
    for (means, count) in [("Software", 2), ("Server", 1), ("Driver", 0), ("None", 0)] {
        let line = format!("gputenancy_agent_enforcement{{means=\"{means}\"}} {count}\n");
        assert!(text.contains(&line), "{line} in {text}");
    }
}

#[test]
fn pods_are_a_number_for_each_gpu_that_is_left() {
    let metrics = Metrics::default();
    metrics.set_pods([("GPU-a", 1), ("GPU-b", 0)]);
    metrics.set_pods([("GPU-a", 2)]);
    let text = gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap();
    assert!(text.contains("gputenancy_agent_gpu_pods{gpu=\"GPU-a\"} 2\n") && !text.contains("GPU-b"), "{text}");
}

#[test]
fn memory_of_a_device_is_shown_by_layer_and_its_ghosts() {
    let metrics = Metrics::default();
    let place = || ("GPU-a".to_owned(), Some(7));
    let layers = Layers { reserved: 1, processes: 20, unattributed: 300, free: 4_000 };
    let ghost = Ghost { pids: [41].into(), bytes: 250 };
    metrics.set_memory(&[(place(), layers)].into(), &[(place(), ghost)].into());
    let text = || gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap();
    for (metric, bytes) in [
        ("device_memory_bytes{gpu=\"GPU-a\",instance=\"7\",layer=\"reserved\"}", 1),
        ("device_memory_bytes{gpu=\"GPU-a\",instance=\"7\",layer=\"processes\"}", 20),
        ("device_memory_bytes{gpu=\"GPU-a\",instance=\"7\",layer=\"unattributed\"}", 300),
        ("device_memory_bytes{gpu=\"GPU-a\",instance=\"7\",layer=\"free\"}", 4_000),
        ("ghost_processes{gpu=\"GPU-a\",instance=\"7\"}", 1),
        ("ghost_memory_bytes{gpu=\"GPU-a\",instance=\"7\"}", 250),
    ] {
        let line = format!("gputenancy_agent_{metric} {bytes}\n");
        assert!(text().contains(&line), "{line} in {}", text());
    }
    metrics.set_memory(&[(place(), layers)].into(), &BTreeMap::new());
    assert!(text().contains("gputenancy_agent_ghost_memory_bytes{gpu=\"GPU-a\",instance=\"7\"} 0\n"));
}

/// A share with 40 MiB that the pod of this name has.
fn held(number: i32, mode: SharingMode, pod: &str) -> Held {
    let owner = DeviceOwner { namespace: "team".into(), pod: pod.into(), container: "main".into() };
    Held { tenant: "team".into(), owner, device: device(number, mode, Some(40), None) }
}

/// A sample in which the first of these containers uses 3 MiB, and NVML reports nothing of the others.
fn sample(metrics: &Metrics, held: Vec<Held>) {
    let used = ContainerUse { memory: Some(3 << 20), ..ContainerUse::default() };
    let containers = held.first().map(|first| ((None, first.owner.clone()), used));
    let shown = GpuShown {
        node: "n".into(),
        pool: "p".into(),
        gpu: ObservedGpu { uuid: "GPU-a".into(), ..ObservedGpu::default() },
        held,
        modes: BTreeMap::new(),
        rates: None,
        board: None,
        usage: GpuUse { containers: containers.into_iter().collect(), ..GpuUse::default() },
    };
    metrics.usage.sampled(Duration::from_millis(3), vec![shown], &Added::default());
}

/// A sample of the audit with this share, or with none.
fn audit(metrics: &Metrics, share: Option<&Held>) {
    metrics.set_shares(share.map(|Held { device, owner, .. }| ShareFigures {
        device,
        owner,
        limit: 5,
        counted: 4,
        used: Some(3),
        refused: 0,
        endless: 0,
        bypassed: false,
    }));
}

/// Pod and value of each series of a metric of shares.
fn of_shares(metrics: &Metrics, what: &str) -> Vec<(String, String)> {
    let text = gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap();
    let start = format!("gputenancy_agent_share_memory_{what}_bytes{{gpu=\"GPU-a\",share=\"GPU-a::");
    let row = |line: &str| {
        let (labels, value) = line.strip_prefix(&start)?.rsplit_once(' ')?;
        let (_, pod) = labels.split_once("pod=\"")?;
        Some((pod.split_once('"')?.0.to_owned(), value.to_owned()))
    };
    let mut rows: Vec<_> = text.lines().filter_map(row).collect();
    rows.sort_unstable();
    rows
}

fn rows(rows: &[(&str, u64)]) -> Vec<(String, String)> {
    rows.iter().map(|(pod, bytes)| ((*pod).to_owned(), bytes.to_string())).collect()
}

#[test]
fn mps_shares_have_their_limit_and_the_memory_of_their_containers() {
    let metrics = Metrics::default();
    let shares = [(0, SharingMode::Mps, "a"), (1, SharingMode::Mps, "b"), (2, SharingMode::TimeSlice, "slice")];
    sample(&metrics, shares.map(|(number, mode, pod)| held(number, mode, pod)).into());
    assert_eq!(of_shares(&metrics, "limit"), rows(&[("a", 40 << 20), ("b", 40 << 20)]));
    assert_eq!(of_shares(&metrics, "used"), rows(&[("a", 3 << 20)]));
    sample(&metrics, vec![held(1, SharingMode::Mps, "b")]);
    assert_eq!(of_shares(&metrics, "limit"), rows(&[("b", 40 << 20)]));
}

#[test]
fn samples_of_usage_and_of_the_audit_keep_the_series_of_each_other() {
    let (metrics, fraction) = (Metrics::default(), held(7, SharingMode::Fraction, "fraction"));
    audit(&metrics, Some(&fraction));
    sample(&metrics, vec![held(0, SharingMode::Mps, "mps")]);
    assert_eq!(of_shares(&metrics, "limit"), rows(&[("fraction", 5), ("mps", 40 << 20)]));
    assert_eq!(of_shares(&metrics, "used"), rows(&[("fraction", 3), ("mps", 3 << 20)]));
    audit(&metrics, None);
    assert_eq!(of_shares(&metrics, "limit"), rows(&[("mps", 40 << 20)]));
    audit(&metrics, Some(&fraction));
    sample(&metrics, Vec::new());
    assert_eq!(of_shares(&metrics, "limit"), rows(&[("fraction", 5)]));
}

#[test]
fn nvml_failures_are_counted_by_call_and_code() {
    let metrics = Metrics::default();
    metrics.nvml_call("nvmlDeviceGetCount_v2", 0, Duration::from_micros(5));
    metrics.nvml_call("nvmlGpuInstanceDestroy", 19, Duration::from_millis(5));
    let text = gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap();
    assert!(text.contains(r#"gputenancy_agent_nvml_failures_total{call="nvmlGpuInstanceDestroy",code="19"} 1"#));
    assert!(!text.contains(r#"failures_total{call="nvmlDeviceGetCount_v2""#));
}

#[test]
fn what_a_board_does_not_have_is_no_failure_of_a_sample() {
    let metrics = Metrics::default();
    metrics.nvml_call("nvmlDeviceGetProcessUtilization", code::NOT_FOUND, Duration::from_micros(5));
    metrics.nvml_call("nvmlDeviceGetClockInfo", code::NOT_SUPPORTED, Duration::from_micros(5));
    metrics.nvml_call("nvmlDeviceGetClockInfo", code::GPU_IS_LOST, Duration::from_micros(5));
    let text = gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap();
    let failures: Vec<&str> = text.lines().filter(|line| line.contains("failures_total{")).collect();
    assert_eq!(failures, [r#"gputenancy_agent_nvml_failures_total{call="nvmlDeviceGetClockInfo",code="15"} 1"#]);
}
