//! The summary: GPUs with their memory, and processes.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::gpu::{Gpu, Memory, Process};

/// Characters between the borders.
const WIDTH: usize = 89;
/// Characters of a program's name.
const NAME: usize = 42;

/// The tables of GPUs and of processes.
pub fn summary(nvml: &Nvml, gpus: &[Gpu]) -> Result<String, NvmlError> {
    let driver = nvml.sys_driver_version()?;
    let cuda = nvml.sys_cuda_driver_version()?;
    let cuda = format!("{}.{}", cuda / 1000, cuda % 1000 / 10);
    let title = format!("NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda}");
    let header = format!("{:>3}  {:<44} {:>20} {:>14}", "GPU", "Name", "Memory-Usage", "GPU-Util");
    let own = |gpu: &Gpu| {
        let utilization = gpu.utilization.map_or("N/A".to_owned(), |percent| format!("{percent}%"));
        line(&format!("{:>3}  {:<44} {:>20} {utilization:>14}", gpu.index, gpu.name, usage(gpu.memory.as_ref())))
    };
    let instances = |gpu: &Gpu| -> String {
        let row =
            |mig: &super::gpu::Instance| line(&format!("     {:<44} {:>20}", mig.label(), usage(mig.memory.as_ref())));
        gpu.instances.iter().map(row).collect()
    };
    let devices: String = gpus.iter().map(|gpu| own(gpu) + &instances(gpu)).collect();
    let heading = format!(
        "{:>3} {:>5} {:>5} {:>9} {:>5}   {:<NAME$} {:>10}",
        "GPU", "GI", "CI", "PID", "Type", "Process name", "Memory"
    );
    let processes: String =
        gpus.iter().flat_map(|gpu| gpu.processes.iter().map(|process| row(gpu.index, process))).collect();
    let processes = if processes.is_empty() { line("No running processes found") } else { processes };
    let border = format!("+{}+\n", "-".repeat(WIDTH));
    let parts = [
        line(&title),
        border.clone(),
        line(&header),
        devices,
        border.clone(),
        line("Processes:"),
        line(&heading),
        processes,
    ];
    Ok(border.clone() + &parts.concat() + &border)
}

fn row(gpu: u32, process: &Process) -> String {
    let id = |id: Option<u32>| id.map_or("N/A".to_owned(), |id| id.to_string());
    let (gi, ci) = (id(process.instance.map(|(gi, _)| gi)), id(process.instance.map(|(_, ci)| ci)));
    let memory = process.memory.map_or("N/A".to_owned(), |mib| format!("{mib}MiB"));
    let name: String = process.name.chars().take(NAME).collect();
    line(&format!("{gpu:>3} {gi:>5} {ci:>5} {:>9} {:>5}   {name:<NAME$} {memory:>10}", process.pid, "C"))
}

fn usage(memory: Option<&Memory>) -> String {
    memory.map_or("N/A".to_owned(), |memory| format!("{}MiB / {}MiB", memory.used, memory.total))
}

fn line(text: &str) -> String {
    format!("| {text:<0$.0$} |\n", WIDTH - 2)
}
