//! Numbers of device files: `/dev/nvidia-caps/nvidia-cap<minor>` gives access to a MIG instance.

use std::{collections::BTreeMap, fs, path::Path};

/// Major number of the device files of GPUs, fixed for NVIDIA in Linux.
pub const GPU_MAJOR: u32 = 195;

/// Major number of capability files in the text of `/proc/devices`.
pub fn caps_major(devices: &str) -> Option<u32> {
    devices.lines().find_map(|line| line.trim().strip_suffix(" nvidia-caps")?.trim().parse().ok())
}

/// The driver's table `/proc/driver/nvidia-caps/mig-minors`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapMinors(BTreeMap<String, u32>);

impl CapMinors {
    /// Reads the copy below the root of a simulated driver, else the kernel's table. Empty if the host hides it.
    pub fn read(proc_root: &Path, driver_root: &Path) -> Self {
        let table = "driver/nvidia-caps/mig-minors";
        let of_driver = fs::read_to_string(driver_root.join("proc").join(table));
        Self::parse(&of_driver.or_else(|_| fs::read_to_string(proc_root.join(table))).unwrap_or_default())
    }

    /// Parses lines such as `gpu0/gi9/ci0/access 85`.
    fn parse(table: &str) -> Self {
        let line = |line: &str| {
            let (name, minor) = line.trim().rsplit_once(' ')?;
            Some((name.trim().to_owned(), minor.parse().ok()?))
        };
        Self(table.lines().filter_map(line).collect())
    }

    /// The file of a GPU instance, or of a compute instance in it: from the table, else by the driver's formula.
    pub fn minor(&self, gpu_minor: u32, gi: u32, ci: Option<u32>) -> u32 {
        let compute = ci.map(|ci| format!("/ci{ci}")).unwrap_or_default();
        let formula = 3 + 135 * gpu_minor + 9 * gi + ci.map_or(0, |ci| 1 + ci);
        self.0.get(&format!("gpu{gpu_minor}/gi{gi}{compute}/access")).copied().unwrap_or(formula)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_of_capability_files_is_in_the_list_of_devices() {
        let devices = "Character devices:\n  1 mem\n195 nvidia\n235 nvidia-caps\n236 nvidia-caps-imex-channels\n";
        assert_eq!([devices, "  1 mem\n"].map(caps_major), [Some(235), None]);
    }

    #[test]
    fn cap_minors_prefer_the_driver_table_to_the_formula() {
        let both = |minors: &CapMinors| [None, Some(0)].map(|ci| minors.minor(0, 9, ci));
        assert_eq!(both(&CapMinors::default()), [84, 85]);
        assert_eq!([None, Some(2)].map(|ci| CapMinors::default().minor(1, 1, ci)), [147, 150]);
        let table = "config 1\nmonitor 2\ngpu0/gi9/access 300\ngpu0/gi9/ci0/access 301\n";
        assert_eq!(both(&CapMinors::parse(table)), [300, 301]);
    }
}
