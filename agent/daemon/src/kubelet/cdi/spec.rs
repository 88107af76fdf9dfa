//! Content of the specification. Pure.

use std::{
    ffi::{CStr, OsStr},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use gputenancy_interpose::{CUDA, NVML};
use gputenancy_ledger::paths::{LIMITS, USAGE};
use serde_json::{Value, json};

use super::{
    KIND,
    driver::{DeviceNode, Driver, Mount},
    name, plain_name,
};
use crate::{
    device::Device,
    enforcement::ShareFiles,
    mps::{self, share::FolderMount},
};

/// The oldest version with all fields that are used here.
const VERSION: &str = "0.5.0";

/// The CDI specification of these devices with this driver; none without devices, because that is not valid.
pub fn render<'a>(devices: impl IntoIterator<Item = &'a Device>, driver: &Driver) -> Option<Value> {
    let devices: Vec<&Device> = devices.into_iter().collect();
    // a newer library of the image, in front of the shim, would not be limited
    let compat = !devices.iter().any(|device| limited(device, driver).is_some());
    let device = |device: &Device| {
        let nodes = own_nodes(device, driver);
        // containers that got the device from an earlier release are restarted with the old name
        let ids = [Some(device.id.clone()), device.legacy_id()].into_iter().flatten();
        let mut edits = json!({"deviceNodes": nodes});
        if let (Some(mps), Some(edits)) = (mps::share::edits(device, &driver.mps), edits.as_object_mut()) {
            let env: Vec<String> = mps.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            edits.insert("env".to_owned(), json!(env));
            edits.insert("mounts".to_owned(), mps.mounts.iter().map(mps_mount).collect());
        }
        let plain = edits.clone();
        let limits = limited(device, driver);
        if let (Some(mounts), Some(edits)) = (&limits, edits.as_object_mut()) {
            edits.insert("mounts".to_owned(), json!(mounts));
        }
        // also where nothing is limited now: a container that was started with this name is restarted with it
        let has_plain = device.share.as_ref().is_some_and(|share| share.limit_mib.is_some());
        let plain = has_plain.then(|| json!({"name": plain_name(&device.id), "containerEdits": plain}));
        let named = ids.map(|id| json!({"name": name(&id), "containerEdits": edits}));
        named.chain(plain).collect::<Vec<_>>()
    };
    let devices: Vec<Value> = devices.into_iter().flat_map(device).collect();
    let hooks = driver.hook.as_ref().zip(driver.libraries.as_ref());
    let hooks = hooks
        .map(|(hook, folder)| hook.hooks(folder, driver.version.as_deref().filter(|_| compat)))
        .unwrap_or_default();
    // so that NVIDIA's hook in the default runtime adds nothing
    let void = "NVIDIA_VISIBLE_DEVICES=void".to_owned();
    // where programs of NVIDIA's toolkit look for CUDA
    let cuda = driver.libraries.as_ref().map(|folder| format!("NVIDIA_CTK_LIBCUDA_DIR={}", folder.display()));
    let env: Vec<String> = cuda.into_iter().chain([void]).collect();
    let edits = json!({
        "env": env,
        "deviceNodes": driver.common,
        "mounts": driver.mounts,
        "hooks": hooks,
    });
    let spec = || json!({"cdiVersion": VERSION, "kind": KIND, "devices": devices, "containerEdits": edits});
    (!devices.is_empty()).then(spec)
}

/// What limits the memory of a share, and shows it as the GPU: the shim and the view under the names of CUDA's library and NVML, which replace the
/// mounts of all containers at these paths; the driver's own libraries where the two look for them, and the files of the share.
fn limited(device: &Device, driver: &Driver) -> Option<Vec<Mount>> {
    let shim = driver.shim.as_ref()?;
    let files = ShareFiles::of(device, &shim.shares)?;
    let own =
        |mount: &Mount, path: &CStr| Mount::file(mount.host_path(), Path::new(OsStr::from_bytes(path.to_bytes())));
    let cuda = own(driver.cuda().next()?, CUDA);
    let nvml = driver.nvml().next().map(|mount| own(mount, NVML));
    let replaced = driver.cuda().map(|mount| mount.replaced_by(&shim.cuda));
    let replaced = replaced.chain(driver.nvml().map(|mount| mount.replaced_by(&shim.nvml)));
    let files = [Mount::file(&files.limits, Path::new(LIMITS)), Mount::writable(&files.usage, Path::new(USAGE))];
    Some(replaced.chain([cuda]).chain(nvml).chain(files).collect())
}

/// A folder of an MPS daemon.
fn mps_mount(mount: &FolderMount) -> Value {
    let options = ["ro", "nosuid", "nodev", "noexec", "rbind", "rprivate"];
    json!({"hostPath": mount.host, "containerPath": mount.container, "options": options})
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
