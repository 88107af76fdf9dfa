//! Content of the specification. Pure.

use std::path::PathBuf;

use serde::Serialize;

use super::{
    KIND,
    driver::{DeviceNode, Driver, Mount},
    name,
};
use crate::device::Device;

/// The oldest version with all fields that are used here.
const VERSION: &str = "0.5.0";

/// A CDI specification.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<SpecDevice>,
    container_edits: Edits,
}

impl Spec {
    /// A specification without devices is not valid.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// It has a device with this name.
    pub fn has(&self, name: &str) -> bool {
        self.devices.iter().any(|device| device.name == name)
    }
}

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct SpecDevice {
    name: String,
    container_edits: Edits,
}

#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<DeviceNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<Mount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<Hook>,
}

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
struct Hook {
    #[serde(rename = "hookName")]
    stage: &'static str,
    path: PathBuf,
    args: Vec<String>,
}

/// The specification of these devices with this driver.
pub fn render<'a>(devices: impl IntoIterator<Item = &'a Device>, driver: &Driver) -> Spec {
    let device = |device: &Device| {
        let container_edits = Edits { device_nodes: own_nodes(device, driver), ..Edits::default() };
        let spec = |id| SpecDevice { name: name(&id), container_edits: container_edits.clone() };
        // containers that got the device from an earlier release are restarted with the old name
        let ids = [Some(device.id.clone()), device.legacy_id()];
        ids.into_iter().flatten().map(spec).collect::<Vec<_>>()
    };
    Spec {
        cdi_version: VERSION,
        kind: KIND,
        devices: devices.into_iter().flat_map(device).collect(),
        container_edits: Edits {
            // so that NVIDIA's hook in the default runtime adds nothing
            env: vec!["NVIDIA_VISIBLE_DEVICES=void"],
            device_nodes: driver.common.clone(),
            mounts: driver.mounts.iter().cloned().collect(),
            hooks: hook(driver).into_iter().collect(),
        },
    }
}

/// The GPU's node, and the capability files of a MIG instance.
fn own_nodes(device: &Device, driver: &Driver) -> Vec<DeviceNode> {
    let gpu = device.gpu_minor;
    let mut nodes = vec![DeviceNode::new(&format!("nvidia{gpu}"), driver.gpu_major, gpu)];
    if let Some((mig, major)) = device.mig.as_ref().zip(driver.caps_major) {
        nodes.extend([None, Some(mig.ci)].map(|ci| {
            let minor = driver.caps.minor(gpu, mig.gi, ci);
            DeviceNode::new(&format!("nvidia-caps/nvidia-cap{minor}"), major, minor)
        }));
    }
    nodes
}

fn hook(driver: &Driver) -> Option<Hook> {
    let (path, folder) = driver.hook.as_ref().zip(driver.libraries.as_ref())?;
    let args = ["nvidia-cdi-hook", "update-ldcache", "--folder"].map(str::to_owned);
    let args = args.into_iter().chain([folder.display().to_string()]).collect();
    Some(Hook { stage: "createContainer", path: path.clone(), args })
}
