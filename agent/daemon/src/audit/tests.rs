//! The audit with containers that react to it.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    sync::{Arc, Mutex},
};

use futures::future::BoxFuture;
use gputenancy_crds::SharingMode;
use gputenancy_nvml::Process;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::*;
use crate::{
    device::{Device, DeviceOwner, Share},
    gpu::{NvmlError, ObservedGpu, processes::process_origin::Origins},
    mps::share::tests::device,
    seen_pods::SeenPods,
};

const MIB: u64 = 1 << 20;
const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const UID: &str = "b6f3a9c2-0000-4000-8000-000000000001";
const PID: u32 = 7;

/// A container with a fraction of 1000 MiB, and its one process on the node.
fn node(root: &Path) -> (Device, Origins) {
    let whole = device(0, SharingMode::Fraction, Some(1000), None);
    let share = whole.share.clone().map(|share| Share { limit_mib: Some(1000), ..share });
    let (proc_root, logs) = (root.join("proc"), root.join("logs"));
    let process = proc_root.join(PID.to_string());
    for folder in [&process, &logs] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(process.join("stat"), "7 (train) S 1 7").unwrap();
    fs::write(process.join("cgroup"), format!("0::/kubepods.slice/kubepods-pod{UID}.slice/{ID}\n")).unwrap();
    fs::write(logs.join(format!("train-0_team-a_main-{ID}.log")), "").unwrap();
    (Device { share, ..whole }, Origins { proc_root, logs, pods: SeenPods::default() })
}

/// An audit of this share, where the process uses what `memory` returns.
fn auditor(root: &Path, memory: impl Fn() -> u64 + Send + Sync + 'static) -> (Auditor, ShareFiles, Device) {
    let (device, origins) = node(root);
    let files = ShareFiles::of(&device, root).unwrap();
    files.renew(&device).unwrap();
    let uuid = device.gpu_uuid.clone();
    let read = move |_, _: bool| -> BoxFuture<'static, Result<Inventory, NvmlError>> {
        let clients = vec![Process { pid: PID, gi: None, ci: None, memory: Some(memory()) }];
        let gpu = ObservedGpu { uuid: uuid.clone(), clients, ..ObservedGpu::default() };
        Box::pin(async move { Ok(Inventory { gpus: vec![gpu], ..Inventory::default() }) })
    };
    let owner = DeviceOwner { namespace: "team-a".into(), pod: "train-0".into(), container: "main".into() };
    let owners = [(device.id.clone(), owner)].into();
    let auditor = Auditor {
        shares: root.to_owned(),
        view: watch::channel(DeviceView { devices: vec![device.clone()], ..DeviceView::default() }).1,
        kubelet: watch::channel(KubeletView { owners, ..KubeletView::default() }).1,
        bypasses: watch::Sender::default(),
        processes: HandoverCheck::new(Arc::new(read), origins),
        sandboxes: None,
        publish: Arc::new(|_| Box::pin(async {})),
        metrics: Metrics::default(),
        node: "gpu-1".into(),
    };
    (auditor, files, device)
}

#[tokio::test]
async fn program_that_frees_memory_when_its_files_are_opened_is_seen_with_it() {
    let root = tempfile::tempdir().unwrap();
    let watch = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    let opened = Arc::new(Mutex::new(watch));
    let events = Arc::clone(&opened);
    let (auditor, files, _) = auditor(root.path(), move || {
        let announced = events.lock().unwrap().read_events().is_ok();
        if announced { 0 } else { 5_000 * MIB }
    });
    for file in [&files.limits, &files.usage] {
        opened.lock().unwrap().add_watch(file, AddWatchFlags::IN_ALL_EVENTS).unwrap();
    }
    let mut memory = Memory::default();
    for _ in 0..3 {
        let sampled = auditor.sample(&mut memory).await.unwrap();
        assert_eq!(sampled.first().and_then(|found| found.seen.used), Some(5_000 * MIB));
        assert_eq!(sampled.first().and_then(|found| found.uid.clone()).as_deref(), Some(UID));
        auditor.shrink(&sampled);
        // the program allocates again between two samples
        while opened.lock().unwrap().read_events().is_ok() {}
    }
}

#[tokio::test]
async fn damaged_ledger_is_repaired_in_its_place_and_logged_once_for_each_container_and_cause() {
    let root = tempfile::tempdir().unwrap();
    let (auditor, files, _) = auditor(root.path(), || 300 * MIB);
    let mut memory = Memory::default();
    let inode = || fs::metadata(&files.usage).unwrap().ino();
    let before = inode();
    for _ in 0..3 {
        fs::OpenOptions::new().write(true).open(&files.usage).unwrap().write_all_at(b"damaged", 0).unwrap();
        let sampled = auditor.sample(&mut memory).await.unwrap();
        assert_eq!(sampled.iter().map(|found| found.seen.broken).collect::<Vec<_>>(), [true]);
        fs::OpenOptions::new().write(true).open(&files.usage).unwrap().set_len(1 << 20).unwrap();
        let sampled = auditor.sample(&mut memory).await.unwrap();
        assert_eq!(sampled.iter().map(|found| found.seen.broken).collect::<Vec<_>>(), [false]);
    }
    assert_eq!(inode(), before, "the container has the same file");
    let logged: Vec<_> = memory.logged.values().flatten().copied().collect();
    assert_eq!(logged, [Some(Damage::Larger), Some(Damage::Broken)]);
}
