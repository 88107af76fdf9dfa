//! Content of the specification. Pure.

use serde_json::{Value, json};

use super::{
    KIND,
    driver::{DeviceNode, Driver},
    name,
};
use crate::device::Device;

/// The oldest version with all fields that are used here.
const VERSION: &str = "0.5.0";

/// The CDI specification of these devices with this driver; none without devices, because that is not valid.
pub fn render<'a>(devices: impl IntoIterator<Item = &'a Device>, driver: &Driver) -> Option<Value> {
    let device = |device: &Device| {
        let nodes = own_nodes(device, driver);
        // containers that got the device from an earlier release are restarted with the old name
        let ids = [Some(device.id.clone()), device.legacy_id()].into_iter().flatten();
        ids.map(|id| json!({"name": name(&id), "containerEdits": {"deviceNodes": nodes}})).collect::<Vec<_>>()
    };
    let devices: Vec<Value> = devices.into_iter().flat_map(device).collect();
    let hook = driver.hook.as_ref().zip(driver.libraries.as_ref()).map(|(path, folder)| {
        let args = json!(["nvidia-cdi-hook", "update-ldcache", "--folder", folder]);
        json!({"hookName": "createContainer", "path": path, "args": args})
    });
    let edits = json!({
        // so that NVIDIA's hook in the default runtime adds nothing
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": driver.common,
        "mounts": driver.mounts,
        "hooks": hook.as_slice(),
    });
    let spec = || json!({"cdiVersion": VERSION, "kind": KIND, "devices": devices, "containerEdits": edits});
    (!devices.is_empty()).then(spec)
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
