//! NVML as NVIDIA's own program shows it.

use std::{error::Error, path::Path};

use crate::{
    container::{Container, MIB, end, first_line},
    report::Report,
};

/// `nvidia-smi` shows the share as the GPU, and the process of the container and not that of a neighbour.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    if !container.has_view() {
        report.measured("view", "`nvidia-smi`", "not run: name the library with --view");
        return Ok(());
    }
    let (own, other) = (container.share("view", 4096 * MIB)?, container.share("view-neighbour", 8192 * MIB)?);
    let hold = "allocate --count 16 --hold";
    let mut holders = Vec::new();
    for share in [&own, &other] {
        let mut child = container.begin(Some(share), hold)?;
        first_line(&mut child)?;
        holders.push(child);
    }
    let smi = |query: &str| -> Result<String, Box<dyn Error>> {
        let arguments = [query, "--format=csv,noheader,nounits"];
        Ok(end(container.program(Some(&own), &container.smi, &arguments).spawn()?)?.text)
    };
    let memory = smi("--query-gpu=memory.total,memory.used,memory.free")?;
    // nvidia-smi lists processes past NVML's public functions: the driver shows it those of its PID namespace
    let smi_path = container.smi.display().to_string();
    let query =
        ["--pid", "--fork", "--mount-proc", &smi_path, "--query-compute-apps=pid,used_memory", "--format=csv,noheader"];
    let listed = end(container.program(Some(&own), Path::new("unshare"), &query).spawn()?)?;
    let (ok, processes) = (listed.ok, listed.text);
    let table = end(container.program(Some(&own), &container.smi, &[]).spawn()?)?.text;
    for child in &mut holders {
        child.kill()?;
        child.wait()?;
    }
    let what = "share of 4 GiB with 1 GiB in use: total, used and free in MiB";
    report.holds("view", what, &memory, memory.trim() == "4096, 1024, 3072");
    let listed = processes.trim().lines().count();
    let what = "in a PID namespace of its own, as in a container: no process of a neighbour";
    report.holds("view", what, &format!("{listed} processes: {processes}"), ok && listed <= 1);
    let line = table.lines().find(|line| line.contains("MiB /")).unwrap_or(&table);
    let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    report.holds("view", "the table of `nvidia-smi`", &words.replace('|', ""), words.contains("1024MiB / 4096MiB"));
    Ok(())
}
