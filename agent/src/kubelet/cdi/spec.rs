//! The specification's content; pure.

use std::path::PathBuf;

use serde::Serialize;

use super::{
    KIND,
    driver::{Driver, Mount, Node},
    name,
};
use crate::device::Device;

/// The oldest version that has all that is used here.
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

    /// Does it have a device of this name.
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
    mounts: Vec<SpecMount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<Hook>,
}

/// With type and numbers given, the runtime does not look for the node on the host.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
struct DeviceNode {
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    major: u32,
    minor: u32,
    permissions: &'static str,
}

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct SpecMount {
    host_path: PathBuf,
    container_path: PathBuf,
    options: Vec<&'static str>,
}

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
struct Hook {
    #[serde(rename = "hookName")]
    stage: &'static str,
    path: PathBuf,
    args: Vec<String>,
}

/// The specification of these devices on this host.
pub fn render<'a>(devices: impl IntoIterator<Item = &'a Device>, driver: &Driver) -> Spec {
    let device = |device: &Device| {
        let container_edits = Edits { device_nodes: own_nodes(device, driver), ..Edits::default() };
        let spec = |id| SpecDevice { name: name(&id), container_edits: container_edits.clone() };
        // pods that an earlier release gave the device to are restarted with the old name
        let ids = [Some(device.id.clone()), device.legacy_id()];
        ids.into_iter().flatten().map(spec).collect::<Vec<_>>()
    };
    Spec {
        cdi_version: VERSION,
        kind: KIND,
        devices: devices.into_iter().flat_map(device).collect(),
        container_edits: Edits {
            // NVIDIA's runtime hook, where it is the default runtime's, adds nothing of its own
            env: vec!["NVIDIA_VISIBLE_DEVICES=void"],
            device_nodes: driver.common.iter().map(device_node).collect(),
            mounts: driver.mounts.iter().map(spec_mount).collect(),
            hooks: hook(driver).into_iter().collect(),
        },
    }
}

/// The GPU, and what opens the instance on it.
fn own_nodes(device: &Device, driver: &Driver) -> Vec<DeviceNode> {
    let minor = device.gpu_minor;
    let gpu = Node { name: format!("nvidia{minor}"), major: driver.gpu_major, minor };
    let caps = device.mig.as_ref().zip(driver.caps_major).map(|(mig, major)| {
        let node = |minor| Node { name: format!("nvidia-caps/nvidia-cap{minor}"), major, minor };
        driver.caps.of(device.gpu_minor, mig).map(node)
    });
    std::iter::once(&gpu).chain(caps.iter().flatten()).map(device_node).collect()
}

fn device_node(node: &Node) -> DeviceNode {
    DeviceNode {
        path: format!("/dev/{}", node.name),
        kind: "c",
        major: node.major,
        minor: node.minor,
        permissions: "rw",
    }
}

fn spec_mount(mount: &Mount) -> SpecMount {
    let options = if mount.socket {
        vec!["nosuid", "nodev", "noexec", "rbind", "rprivate"]
    } else {
        vec!["ro", "nosuid", "nodev", "rbind", "rprivate"]
    };
    SpecMount { host_path: mount.host.clone(), container_path: mount.container.clone(), options }
}

fn hook(driver: &Driver) -> Option<Hook> {
    let (path, folder) = driver.hook.as_ref().zip(driver.libraries.as_ref())?;
    let args = ["nvidia-cdi-hook", "update-ldcache", "--folder"].map(str::to_owned);
    let args = args.into_iter().chain([folder.display().to_string()]).collect();
    Some(Hook { stage: "createContainer", path: path.clone(), args })
}
