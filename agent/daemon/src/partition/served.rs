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

#[cfg(test)]
mod tests {
    use gputenancy_crds::{Advertiser, GpuSpec, InstanceSpec, MemoryText, ShareGroup, Sharing, SharingMode};

    use super::*;
    use crate::gpu::ObservedGpu;

    const UUID: &str = "GPU-a";

    fn gpu() -> ObservedGpu {
        ObservedGpu { uuid: UUID.into(), ..ObservedGpu::default() }
    }

    /// One spec of each kind.
    fn kinds() -> [GpuSpec; 4] {
        let shared = |mode, memory: Option<i64>| {
            let memory = memory.map(MemoryText::from_mib);
            let resource = "gputenancy.io/part".into();
            let group = ShareGroup { resource, memory, numbers: vec![0, 2], ..ShareGroup::default() };
            let sharing = Sharing { mode, shares: vec![group], ..Sharing::default() };
            GpuSpec { uuid: UUID.into(), sharing: Some(sharing), ..GpuSpec::default() }
        };
        let half = |start| InstanceSpec {
            start,
            profile: "3g.40gb".into(),
            resource: Some("gputenancy.io/half".into()),
            replicas: Some(2),
        };
        let sliced = GpuSpec { uuid: UUID.into(), mig: true, instances: vec![half(0), half(4)], ..GpuSpec::default() };
        [
            shared(SharingMode::TimeSlice, None),
            shared(SharingMode::Mps, Some(10_240)),
            shared(SharingMode::Fraction, Some(10_240)),
            sliced,
        ]
    }

    fn desired(object: &str, gpus: Vec<GpuSpec>) -> DesiredLayout {
        let spec = GpuNodeSpec { gpus, ..GpuNodeSpec::default() };
        DesiredLayout { object: object.into(), spec, ..DesiredLayout::default() }
    }

    #[test]
    fn layouts_are_read_again_by_the_next_run_and_a_file_of_another_version_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let none = BTreeMap::new();
        for wanted in kinds() {
            let inventory = Inventory { gpus: vec![gpu()], ..Inventory::default() };
            let now = desired("one", vec![wanted.clone()]);
            let mut layouts = ServedLayouts::in_folder(folder.path());
            layouts.update(&now, &inventory, &none);
            let read = ServedLayouts::in_folder(folder.path());
            assert_eq!(read.of(&now.spec, UUID), Some(&wanted.layout()));
            assert!(!read.differ_from(&now.spec) && read.differ_from(&GpuNodeSpec::default()));
        }
        let file = folder.path().join("layouts.json");
        let text = std::fs::read_to_string(&file).unwrap().replace("\"version\":1", "\"version\":2");
        std::fs::write(&file, text).unwrap();
        assert_eq!(ServedLayouts::in_folder(folder.path()).of(&GpuNodeSpec::default(), UUID), None);
        std::fs::write(&file, "{").unwrap();
        assert_eq!(ServedLayouts::in_folder(folder.path()).of(&GpuNodeSpec::default(), UUID), None);
    }

    #[test]
    fn layout_is_forgotten_when_its_gpu_is_released_and_not_when_the_object_is_lost() {
        let wanted = &kinds()[2];
        let inventory = Inventory { gpus: vec![gpu()], ..Inventory::default() };
        let none: BTreeMap<String, Layout> = BTreeMap::new();
        let mut layouts = ServedLayouts::default();
        layouts.update(&desired("one", vec![wanted.clone()]), &inventory, &none);
        let created_again = desired("two", Vec::new());
        layouts.update(&created_again, &inventory, &none);
        assert_eq!(layouts.of(&created_again.spec, UUID), Some(&wanted.layout()));
        layouts.update(&desired("two", vec![wanted.clone()]), &inventory, &none);
        layouts.update(&created_again, &inventory, &none);
        assert_eq!(layouts.of(&created_again.spec, UUID), None, "the operator has released it");
    }

    #[test]
    fn layouts_of_another_device_plugin_are_not_kept() {
        let wanted = &kinds()[0];
        let inventory = Inventory { gpus: vec![gpu()], ..Inventory::default() };
        let mut layouts = ServedLayouts::default();
        layouts.update(&desired("one", vec![wanted.clone()]), &inventory, &BTreeMap::new());
        let mut theirs = desired("one", vec![wanted.clone()]);
        theirs.spec.advertiser = Advertiser::NvidiaDevicePlugin;
        assert_eq!(layouts.of(&theirs.spec, UUID), None);
        layouts.update(&theirs, &inventory, &BTreeMap::new());
        assert_eq!(layouts.of(&GpuNodeSpec::default(), UUID), None);
    }
}
