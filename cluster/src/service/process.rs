//! What every program reports of itself: its version, and memory, processor time and open files by the names that dashboards of Prometheus read.

use std::{fmt, fs};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

/// Ticks of `/proc/PID/stat` in a second: `USER_HZ`, 100 on all of Linux' architectures that run Kubernetes.
const TICKS: f64 = 100.0;

/// The registry of a program's version and process.
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Process));
    registry
}

#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy();
        let labels = [("program", &*program), ("version", env!("CARGO_PKG_VERSION"))];
        let mut info = encoder.encode_descriptor(
            "gputenancy_build_info",
            "1, with program and version",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(1_i64).encode(info.encode_family(&labels)?)?;
        // what cannot be read is absent
        if let Some(seconds) = stat().and_then(|stat| processor_seconds(&stat)) {
            let help = "Processor time of the program";
            let metric = encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        if let Some(start) = stat().zip(fs::read_to_string("/proc/stat").ok()).and_then(|(own, all)| start(&own, &all))
        {
            let help = "Start of the program since 1970";
            let metric =
                encoder.encode_descriptor("process_start_time", help, Some(&Unit::Seconds), MetricType::Gauge)?;
            ConstGauge::new(start).encode(metric)?;
        }
        let memory = fs::read_to_string("/proc/self/status").ok().and_then(|status| resident_bytes(&status));
        let open = fs::read_dir("/proc/self/fd").ok().and_then(|files| i64::try_from(files.count()).ok());
        let most = fs::read_to_string("/proc/self/limits").ok().and_then(|limits| most_files(&limits));
        for (name, help, unit, value) in [
            ("process_resident_memory", "Resident memory of the program", Some(Unit::Bytes), memory),
            ("process_open_fds", "Open files of the program", None, open),
            ("process_max_fds", "Open files that the program may have", None, most),
        ] {
            if let Some(value) = value {
                let metric = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        Ok(())
    }
}

fn stat() -> Option<String> {
    fs::read_to_string("/proc/self/stat").ok()
}

/// A field of `/proc/PID/stat` by its number in proc(5), from 3 on: the name before may have blanks and parentheses.
fn field(stat: &str, number: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// User and system time, in seconds.
fn processor_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

/// Seconds since 1970, from the ticks since the start of the machine.
fn start(own: &str, all: &str) -> Option<f64> {
    let boot: f64 = all.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + field(own, 22)? / TICKS)
}

/// `VmRSS`, in bytes.
fn resident_bytes(status: &str) -> Option<i64> {
    let kib: i64 =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The soft limit of open files.
fn most_files(limits: &str) -> Option<i64> {
    limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::endpoints::text;

    const STAT: &str =
        "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 12345 1000 200 18446744073709551615";

    #[test]
    fn times_are_read_behind_a_name_with_parentheses() {
        assert_eq!(processor_seconds(STAT), Some(3.0));
        assert_eq!(start(STAT, "cpu 1\nbtime 1000\n"), Some(1123.45));
        assert_eq!(resident_bytes("VmPeak:\t 9 kB\nVmRSS:\t      12 kB\n"), Some(12288));
        assert_eq!(
            most_files("Limit Soft Hard\nMax open files            1024                 4096                 files\n"),
            Some(1024)
        );
        assert_eq!(processor_seconds("7 (a) S 1"), None);
    }

    #[test]
    fn this_program_has_all_of_them() {
        let text = text(&registry()).unwrap();
        for name in [
            "gputenancy_build_info{program=\"",
            "process_cpu_seconds_total ",
            "process_start_time_seconds ",
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "process_max_fds ",
        ] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
        }
    }
}
