//! The files around NVML that NVIDIA's programs read: parts of `/proc`, `/sys` and of a driver root.

use std::fs;
use std::io;
use std::path::Path;

use crate::ids;
use crate::machine::{DRIVER_VERSION, Gpu, Machine};
use crate::registry;

/// Marker by which a simulated driver's files can be distinguished from a real one's.
pub const SIMULATED: &str = "simulator";

/// Writes `proc/driver/nvidia` and `proc/driver/nvidia-caps` below a folder.
pub fn proc_files(root: &Path, machine: &Machine) -> io::Result<()> {
    write(
        &root.join("proc/driver/nvidia/version"),
        &format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER_VERSION}  gputenancy {SIMULATED}\n"),
    )?;
    // registry keys outlive a restart of the simulator, as those of a loaded module do
    if !root.join(PARAMS).exists() {
        params(root, "")?;
    }
    for gpu in &machine.gpus {
        let information = format!(
            "Model: \t\t {}\nGPU UUID: \t {}\nBus Type: \t PCIe\nBus Location: \t {}\nDevice Minor: \t {}\n",
            gpu.board.name,
            gpu.uuid,
            address(gpu),
            gpu.index
        );
        write(&root.join(format!("proc/driver/nvidia/gpus/{}/information", address(gpu))), &information)?;
    }
    write(&root.join("proc/driver/nvidia-caps/mig-minors"), &mig_minors(machine))
}

/// Parameters of the kernel module.
const PARAMS: &str = "proc/driver/nvidia/params";

/// Writes registry keys such as `RMDisableScrubOnFree=1` below a driver root: for programs as parameters of the module, and for the driver's libraries.
pub fn registry(root: &Path, keys: &str) -> io::Result<()> {
    write(&root.join(crate::paths::STATE_IN_ROOT).join(registry::FILE), keys)?;
    params(root, keys)
}

fn params(root: &Path, keys: &str) -> io::Result<()> {
    write(&root.join(PARAMS), &format!("EnableMSI: 1\nRegistryDwords: \"{keys}\"\nRegistryDwordsPerDevice: \"\"\n"))
}

/// Writes complete trees: `proc` with the module list, and `sys` with the PCI devices.
pub fn trees(root: &Path, machine: &Machine) -> io::Result<()> {
    proc_files(root, machine)?;
    write(&root.join("proc/modules"), "nvidia_uvm 4931584 0 - Live 0x0\nnvidia 56717312 1 nvidia_uvm, Live 0x0\n")?;
    let caps = machine.devices.map_or(511, |d| d.caps_major);
    let majors =
        format!("Character devices:\n{caps} nvidia-caps\n{} nvidia-uvm\n195 nvidia\n195 nvidiactl\n", caps - 1);
    write(&root.join("proc/devices"), &majors)?;
    machine.gpus.iter().try_for_each(|gpu| pci_device(root, gpu))
}

/// Writes files of a driver root besides NVML whose existence is checked, and that are not run or loaded.
pub fn driver_files(root: &Path) -> io::Result<()> {
    let libraries = root.join(crate::paths::LIBRARY_FOLDER);
    let stub = "A stand-in for a file of NVIDIA's driver, made by the gputenancy simulator.\n";
    let cuda = libraries.join(format!("libcuda.so.{DRIVER_VERSION}"));
    if !cuda.exists() {
        write(&cuda, stub)?;
    }
    for firmware in ["gsp_ga10x.bin", "gsp_tu10x.bin"] {
        write(&root.join(format!("lib/firmware/nvidia/{DRIVER_VERSION}/{firmware}")), stub)?;
    }
    Ok(())
}

/// The text of `/proc/driver/nvidia-caps/mig-minors`, for every instance that the GPUs could have.
fn mig_minors(machine: &Machine) -> String {
    let mut text = String::from("config 1\nmonitor 2\n");
    for gpu in &machine.gpus {
        for gi in 0..15 {
            text += &format!("gpu{}/gi{gi}/access {}\n", gpu.index, ids::gi_minor(gpu.index, gi));
            for ci in 0..8 {
                text += &format!("gpu{}/gi{gi}/ci{ci}/access {}\n", gpu.index, ids::ci_minor(gpu.index, gi, ci));
            }
        }
    }
    text
}

fn pci_device(root: &Path, gpu: &Gpu) -> io::Result<()> {
    let folder = root.join("sys/bus/pci/devices").join(address(gpu));
    let [device, vendor] = [gpu.board.pci_device_id >> 16, gpu.board.pci_device_id & 0xffff];
    for (name, text) in [
        ("vendor", format!("{vendor:#06x}\n")),
        ("device", format!("{device:#06x}\n")),
        ("class", "0x030200\n".into()),
        ("subsystem_vendor", "0x10de\n".into()),
        ("subsystem_device", "0x1463\n".into()),
        ("numa_node", "0\n".into()),
        ("resource", "0x00000000fd000000 0x00000000fdffffff 0x0000000000040200\n".repeat(7)),
    ] {
        write(&folder.join(name), &text)?;
    }
    for node in [format!("card{}", gpu.index), format!("renderD{}", 128 + gpu.index)] {
        fs::create_dir_all(folder.join("drm").join(node))?;
    }
    let config: Vec<u8> = [vendor, device].iter().flat_map(|id| id.to_le_bytes().into_iter().take(2)).collect();
    let mut config = config;
    config.resize(256, 0);
    fs::write(folder.join("config"), config)
}

/// PCI address in the kernel's form.
fn address(gpu: &Gpu) -> String {
    format!("0000:{:02x}:00.0", ids::pci_bus(gpu.index))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}
