//! Reset of a GPU by the driver's `nvidia-smi`, as in NVIDIA's components.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use gputenancy_nvml::find_library;

use super::operation::OperationError;

/// Runs the driver root's `nvidia-smi --gpu-reset` on one GPU. NVML must be closed: an open handle counts as a client.
pub(super) fn reset(driver_root: &Path, pci_bus_id: &str) -> Result<(), OperationError> {
    let failed = |status, message| OperationError::Reset { status, message };
    let tool = driver_root.join("usr/bin/nvidia-smi");
    let mut command = Command::new(&tool);
    command.args(["--gpu-reset", "-i", pci_bus_id]).stdin(Stdio::null());
    // the tool searches the library in the linker's folders, not in its own root
    if let Some(folder) = find_library(driver_root).as_deref().and_then(Path::parent) {
        command.env("LD_LIBRARY_PATH", folder);
    }
    let output = command.output().map_err(|error| failed(-1, format!("{}: {error}", tool.display())))?;
    if output.status.success() {
        return Ok(());
    }
    // nvidia-smi writes its failures to stdout
    let status = output.status.code().unwrap_or(-1);
    let all = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&all).split_whitespace().collect::<Vec<_>>().join(" ");
    Err(failed(status, text.chars().take(300).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_without_the_tool_names_its_path() {
        let root = tempfile::tempdir().unwrap();
        let error = reset(root.path(), "00000000:01:00.0").unwrap_err();
        assert!(error.to_string().contains("usr/bin/nvidia-smi: No such file"), "{error}");
    }
}
