//! Whether the driver overwrites freed GPU memory, by its registry keys.

use std::fs;

use gputenancy_crds::MemoryScrub;

use crate::gpu::driver::{DriverRoot, NodePaths};

/// Registry key of NVIDIA's kernel module that switches scrubbing off (`NV_REG_STR_RM_DISABLE_SCRUB_ON_FREE` in the open kernel modules).
const DISABLE: &str = "RMDisableScrubOnFree";

/// Reads the parameters of the kernel module: the copy below the root of a simulated driver, else the kernel's. They are those of the
/// module's start, which `NVreg_RegistryDwords` and `NVreg_RegistryDwordsPerDevice` set.
pub(super) fn read(paths: &NodePaths, driver_root: &DriverRoot) -> MemoryScrub {
    let file = "driver/nvidia/params";
    let text = fs::read_to_string(driver_root.local.join("proc").join(file));
    text.or_else(|_| fs::read_to_string(paths.proc_root.join(file))).map_or(MemoryScrub::Unknown, |text| parse(&text))
}

/// Parses lines such as `RegistryDwords: "RMDisableScrubOnFree=1;PowerMizerEnable=0x1"`; a key for one device counts for the node.
fn parse(params: &str) -> MemoryScrub {
    let mut lists = params.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        ["RegistryDwords", "RegistryDwordsPerDevice"].contains(&name.trim()).then_some(value)
    });
    let Some(first) = lists.next() else { return MemoryScrub::Unknown };
    let mut keys = std::iter::once(first).chain(lists).flat_map(|list| list.trim().trim_matches('"').split(';'));
    if keys.any(disables) { MemoryScrub::Off } else { MemoryScrub::On }
}

fn disables(setting: &str) -> bool {
    let Some((key, value)) = setting.split_once('=') else { return false };
    let value = value.trim().to_ascii_lowercase();
    let number = match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => value.parse(),
    };
    // a value that is no number is not one that leaves scrubbing on
    key.trim().eq_ignore_ascii_case(DISABLE) && number != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_key_of_the_module_or_of_a_device_switches_scrubbing_off() {
        let params = |all: &str, device: &str| {
            parse(&format!(
                "EnableMSI: 1\nRegistryDwords: \"{all}\"\nRegistryDwordsPerDevice: \"{device}\"\nRmMsg: \"RMDisableScrubOnFree=1\"\n"
            ))
        };
        assert_eq!(params("", ""), MemoryScrub::On);
        assert_eq!(params("PowerMizerEnable=0x1;RMDisableScrubOnFree=0", "pci=0000:0a:00.0;Other=1"), MemoryScrub::On);
        for on in ["RMDisableScrubOnFree=1", "A=0; RMDisableScrubOnFree = 0x1", "rmdisablescrubonfree=1;B=2"] {
            assert_eq!(params(on, ""), MemoryScrub::Off, "{on}");
        }
        assert_eq!(params("", "pci=0000:0a:00.0;RMDisableScrubOnFree=1"), MemoryScrub::Off);
        assert_eq!(params("RMDisableScrubOnFree=yes", ""), MemoryScrub::Off);
        assert_eq!(params("xRMDisableScrubOnFree=1;RMDisableScrubOnFreeX=1", ""), MemoryScrub::On);
    }

    #[test]
    fn unreadable_parameters_are_unknown() {
        assert_eq!(parse(""), MemoryScrub::Unknown);
        assert_eq!(parse("EnableMSI: 1\n"), MemoryScrub::Unknown);
        let root = tempfile::tempdir().unwrap();
        let driver_root = DriverRoot { host: root.path().into(), local: root.path().into() };
        let paths =
            NodePaths { driver_roots: Vec::new(), proc_root: root.path().join("none"), sys_root: root.path().into() };
        assert_eq!(read(&paths, &driver_root), MemoryScrub::Unknown);
        fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        fs::write(root.path().join("proc/driver/nvidia/params"), "RegistryDwords: \"\"\n").unwrap();
        assert_eq!(read(&paths, &driver_root), MemoryScrub::On);
    }
}
