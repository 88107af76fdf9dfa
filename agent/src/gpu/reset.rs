//! Resetting a GPU the way NVIDIA's own components do: by the driver's `nvidia-smi`.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use gputenancy_nvml::find_library;

use super::OrderError;

/// Runs the driver root's `nvidia-smi --gpu-reset` on one GPU. NVML must be closed: our own handle would count as a client.
pub(super) fn reset(driver_root: &Path, pci_bus_id: &str) -> Result<(), OrderError> {
    let failed = |status, message| OrderError::Reset { status, message };
    let tool = driver_root.join("usr/bin/nvidia-smi");
    let mut command = Command::new(&tool);
    command.args(["--gpu-reset", "-i", pci_bus_id]).stdin(Stdio::null());
    // The tool looks for the library in the linker's places, not in the root that it lies in.
    if let Some(folder) = find_library(driver_root).as_deref().and_then(Path::parent) {
        command.env("LD_LIBRARY_PATH", folder);
    }
    let output = command.output().map_err(|error| failed(-1, format!("{}: {error}", tool.display())))?;
    if output.status.success() {
        return Ok(());
    }
    // nvidia-smi tells of its failures on stdout.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).split_whitespace().collect::<Vec<_>>().join(" ");
    Err(failed(output.status.code().unwrap_or(-1), said.chars().take(300).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_root_without_the_tool_says_so() {
        let root = tempfile::tempdir().unwrap();
        let error = reset(root.path(), "00000000:01:00.0").unwrap_err();
        assert!(error.to_string().contains("usr/bin/nvidia-smi: No such file"), "{error}");
    }
}
