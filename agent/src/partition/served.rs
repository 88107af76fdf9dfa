//! The layouts that were served last, in a file on the node. NVML knows neither shares nor the resources of instances: without the file they would be
//! lost with the `GpuNode`. The file is on a file system that a reboot empties, as it ends the pods.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use gputenancy_crds::{GpuNodeSpec, Layout};
use serde::{Deserialize, Serialize};

use super::{retention::verified, state::DesiredLayout};
use crate::gpu::Inventory;

/// Name of the file.
const FILE: &str = "layouts.json";
/// Version of the file. A file of another version is not read.
const VERSION: u32 = 1;

/// The layout of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Served {
    /// UID of the `GpuNode` whose spec listed the GPU.
    object: String,
    layout: Layout,
}

#[derive(Deserialize)]
struct File {
    version: u32,
    gpus: BTreeMap<String, Served>,
}

/// The layouts, by UUID of the GPU.
#[derive(Debug, Default)]
pub struct ServedLayouts {
    /// `None`: they are not kept.
    path: Option<PathBuf>,
    gpus: BTreeMap<String, Served>,
    /// The last write failed.
    unwritten: bool,
}

impl ServedLayouts {
    /// The layouts in this folder, which need not exist; what is not readable counts as none.
    pub fn in_folder(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let file = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<File>(&text).ok());
        let gpus = file.filter(|file| file.version == VERSION).map(|file| file.gpus).unwrap_or_default();
        Self { path: Some(path), gpus, unwritten: false }
    }

    /// The layout of a GPU that was served last, where this agent partitions and advertises.
    pub fn of(&self, spec: &GpuNodeSpec, uuid: &str) -> Option<&Layout> {
        self.gpus.get(uuid).filter(|_| is_ours(spec)).map(|served| &served.layout)
    }

    /// Whether the spec has another layout of some GPU.
    pub fn differ_from(&self, spec: &GpuNodeSpec) -> bool {
        let listed = |uuid: &String| spec.gpus.iter().find(|gpu| gpu.uuid == *uuid).and_then(verified);
        is_ours(spec) && self.gpus.iter().any(|(uuid, served)| listed(uuid).as_ref() != Some(&served.layout))
    }

    /// Records what is served now. `retained`: the GPUs that are not served as the spec says.
    pub fn update(&mut self, desired: &DesiredLayout, inventory: &Inventory, retained: &BTreeMap<String, Layout>) {
        let before = self.gpus.clone();
        if !is_ours(&desired.spec) {
            self.gpus.clear();
        }
        let present = inventory.gpus.iter().filter(|gpu| is_ours(&desired.spec) && !retained.contains_key(&gpu.uuid));
        for uuid in present.map(|gpu| &gpu.uuid) {
            match desired.spec.gpus.iter().find(|spec| spec.uuid == *uuid).map(verified) {
                Some(Some(layout)) => {
                    self.gpus.insert(uuid.clone(), Served { object: desired.object.clone(), layout });
                }
                Some(None) => drop(self.gpus.remove(uuid)),
                // of the same object: the operator has released the GPU. Another one has yet to list it
                None => self.gpus.retain(|known, served| known != uuid || served.object != desired.object),
            }
        }
        if self.gpus != before || self.unwritten {
            self.unwritten = self.write().is_err_and(|error| {
                tracing::warn!(%error, "layouts of GPUs not kept");
                true
            });
        }
    }

    fn write(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(&serde_json::json!({"version": VERSION, "gpus": self.gpus}))?)?;
        fs::rename(&fresh, path)
    }
}

/// Another partitioner or device plugin has layouts of its own.
fn is_ours(spec: &GpuNodeSpec) -> bool {
    spec.partitioner.is_agent() && spec.advertiser.is_agent()
}
