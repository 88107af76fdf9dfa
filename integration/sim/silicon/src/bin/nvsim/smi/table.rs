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
    let columns = |index: &str, name: &str, [temperature, power, memory, utilization]: [&str; 4]| {
        line(&format!("{index:>3}  {name:<40.40} {temperature:>4} {power:>6} {memory:>20} {utilization:>8}"))
    };
    let header = columns("GPU", "Name", ["Temp", "Power", "Memory-Usage", "GPU-Util"]);
    let own = |gpu: &Gpu| {
        let reading = |value: Option<u32>, unit: &str| value.map_or("N/A".to_owned(), |value| format!("{value}{unit}"));
        let temperature = reading(gpu.readings.temperature, "C");
        let power = reading(gpu.readings.power.map(|milliwatts| milliwatts / 1000), "W");
        let utilization = reading(gpu.readings.utilization.map(|(gpu, _)| gpu), "%");
        let memory = usage(gpu.memory.as_ref());
        let values = [&temperature, &power, &memory, &utilization].map(String::as_str);
        columns(&gpu.index.to_string(), &gpu.name, values)
    };
    let instances = |gpu: &Gpu| -> String {
        // NVML shows no power and no utilisation of a MIG device
        let row = |mig: &super::gpu::Instance| columns("", &mig.label(), ["", "", &usage(mig.memory.as_ref()), ""]);
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
    let parts =
        [line(&title), border.clone(), header, devices, border.clone(), line("Processes:"), line(&heading), processes];
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
