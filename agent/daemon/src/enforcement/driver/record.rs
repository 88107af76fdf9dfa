//! The limits that this agent has set, in a file: NVML lists none, and a later agent clears those that are not wanted any more.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use gputenancy_agent_core::enforcement::driver_limits::{Limits, Target};

/// Name of the file in the folder for enforcement.
const FILE: &str = "driver-limits";

/// The file.
#[derive(Debug)]
pub struct Record(PathBuf);

impl Record {
    /// The file in this folder, which need not exist.
    pub fn in_folder(folder: &Path) -> Self {
        Self(folder.join(FILE))
    }

    /// The limits; lines that are not readable count as none. A cgroup that was removed has none.
    pub fn read(&self) -> Limits {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter_map(line).filter(|(target, _)| target.cgroup.is_dir()).collect()
    }

    /// Replaces the limits.
    pub fn write(&self, limits: &Limits) -> io::Result<()> {
        let line = |(target, bytes): (&Target, &u64)| format!("{} {bytes} {}\n", target.gpu, target.cgroup.display());
        if let Some(folder) = self.0.parent() {
            fs::create_dir_all(folder)?;
        }
        let fresh = self.0.with_extension("new");
        fs::write(&fresh, limits.iter().map(line).collect::<String>())?;
        fs::rename(&fresh, &self.0)
    }
}

fn line(text: &str) -> Option<(Target, u64)> {
    let mut parts = text.splitn(3, ' ');
    let (gpu, bytes, cgroup) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    Some((Target { gpu: gpu.to_owned(), cgroup: cgroup.into() }, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_existing_cgroups_are_read_as_they_were_written() {
        let root = tempfile::tempdir().unwrap();
        let record = Record::in_folder(&root.path().join("enforcement"));
        assert_eq!(record.read(), Limits::new());
        let target = |name: &str| Target { gpu: "GPU-a".into(), cgroup: root.path().join(name) };
        fs::create_dir(root.path().join("with space")).unwrap();
        record.write(&Limits::from([(target("with space"), 7), (target("removed"), 8)])).unwrap();
        assert_eq!(record.read(), Limits::from([(target("with space"), 7)]));
        fs::write(&record.0, "nonsense\nGPU-a x /\n").unwrap();
        assert_eq!(record.read(), Limits::new());
    }
}
