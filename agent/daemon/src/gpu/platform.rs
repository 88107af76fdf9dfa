//! Machines whose GPUs the platform does not manage: NVML is not called there.

use std::fs;

use super::driver::NodePaths;

/// A machine without NVML's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedPlatform {
    /// NVIDIA's boards with a GPU inside the processor.
    #[error(
        "the node is an NVIDIA Jetson or another Tegra board, whose GPU has neither MIG nor devices in NVML: nothing is changed there; take the node out of the GpuPool and out of agent.nodeSelectors, and run NVIDIA's device plugin on it"
    )]
    Tegra,
    /// Linux in a virtual machine of Windows.
    #[error(
        "the node runs in WSL, where all GPUs are one device (/dev/dxg) that belongs to Windows: nothing is changed there; take the node out of the GpuPool and out of agent.nodeSelectors, and run NVIDIA's device plugin on it"
    )]
    Wsl,
}

/// The platform of this machine, if its GPUs are not managed. Sources: the device tree's `compatible` (`nvidia,tegra234`), and the release
/// of Microsoft's kernel (`5.15.153.1-microsoft-standard-WSL2`).
pub(super) fn unsupported(paths: &NodePaths) -> Option<UnsupportedPlatform> {
    let device_tree = fs::read(paths.sys_root.join("firmware/devicetree/base/compatible")).unwrap_or_default();
    let is_tegra = device_tree.split(|byte| *byte == 0).any(|model| model.starts_with(b"nvidia,tegra"));
    if is_tegra && !has_discrete_gpu(paths) {
        return Some(UnsupportedPlatform::Tegra);
    }
    let release = fs::read_to_string(paths.proc_root.join("sys/kernel/osrelease")).unwrap_or_default();
    release.to_lowercase().contains("microsoft").then_some(UnsupportedPlatform::Wsl)
}

/// A PCI device of NVIDIA (vendor 0x10de) that is a display controller (class 0x03), as boards such as the IGX Orin can have.
fn has_discrete_gpu(paths: &NodePaths) -> bool {
    let devices = fs::read_dir(paths.sys_root.join("bus/pci/devices")).into_iter().flatten().flatten();
    let starts = |device: &fs::DirEntry, file: &str, with: &str| {
        fs::read_to_string(device.path().join(file)).is_ok_and(|text| text.starts_with(with))
    };
    devices.into_iter().any(|device| starts(&device, "vendor", "0x10de") && starts(&device, "class", "0x03"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(files: &[(&str, &[u8])]) -> Option<UnsupportedPlatform> {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        let (proc_root, sys_root) = (root.path().join("proc"), root.path().join("sys"));
        unsupported(&NodePaths { driver_roots: Vec::new(), proc_root, sys_root })
    }

    #[test]
    fn jetson_and_wsl_are_known_by_device_tree_and_kernel() {
        let tree = "sys/firmware/devicetree/base/compatible";
        let kernel = "proc/sys/kernel/osrelease";
        let tegra = Some(UnsupportedPlatform::Tegra);
        let orin: (&str, &[u8]) = (tree, b"nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0");
        assert_eq!(platform(&[orin]), tegra);
        let pci = "sys/bus/pci/devices/0005:03:00.0";
        let (vendor, class) = (format!("{pci}/vendor"), format!("{pci}/class"));
        let gpu: [(&str, &[u8]); 2] = [(&vendor, b"0x10de\n"), (&class, b"0x030000\n")];
        assert_eq!(platform(&[orin, gpu[0], gpu[1]]), None, "a board with a GPU of its own");
        assert_eq!(platform(&[(tree, b"nvidia,grace\0arm,sbsa\0")]), None);
        assert_eq!(platform(&[(kernel, b"5.15.153.1-microsoft-standard-WSL2\n")]), Some(UnsupportedPlatform::Wsl));
        assert_eq!(platform(&[(kernel, b"6.8.0-45-generic\n")]), None);
    }
}
