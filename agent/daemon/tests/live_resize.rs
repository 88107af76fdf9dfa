//! A new size of a fraction, from the layout that the agent gets to what CUDA shows a running program: prints how long it takes.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};

use crate::{built, common::Sim};
use gputenancy_agent::{
    device::{Device, DeviceId, DeviceOwner, DeviceView, KubeletView, Owners, Share},
    enforcement::{Resizer, ShareFiles, ShareSizes},
};
use gputenancy_crds::{ResizePolicy, SharingMode};
use tokio::sync::watch;

/// Changes that are measured.
const CHANGES: u64 = 40;

fn fraction(gpu: &str, mib: i64) -> Device {
    let (memory_mib, limit_mib) = (Some(mib), Some(mib));
    let (number, mode, resize) = (0, SharingMode::Fraction, ResizePolicy::WhenFree);
    Device {
        id: DeviceId::share(gpu, 0),
        resource: "gputenancy.io/part".into(),
        gpu_uuid: gpu.into(),
        gpu_minor: 0,
        mig: None,
        share: Some(Share { number, mode, memory_mib, compute: None, limit_mib, pace: None, resize }),
        numa: None,
        cordoned: false,
        healthy: true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn running_program_sees_each_new_size_in_both_directions() {
    let sim = Sim::new("h100-80gb", 1);
    let gpu = sim.store.read().unwrap().gpus[0].uuid.clone();
    let device = fraction(&gpu, 1024);
    let files = ShareFiles::of(&device, sim.root.path()).unwrap();
    files.renew(&device).unwrap();
    let owner = DeviceOwner { namespace: "team".into(), pod: "train-0".into(), container: "main".into() };
    let view = watch::Sender::new(DeviceView { devices: vec![device.clone()], ..DeviceView::default() });
    let kubelet = KubeletView { owners: Owners::from([(device.id.clone(), owner)]), ..KubeletView::default() };
    let kubelet = watch::Sender::new(kubelet);
    let resizer = Resizer {
        shares: sim.root.path().into(),
        view: view.subscribe(),
        kubelet: kubelet.subscribe(),
        sizes: watch::Sender::new(ShareSizes::new()),
        publish: Arc::new(|_| Box::pin(async {})),
        node: "gpu-1".into(),
    };
    tokio::spawn(resizer.run());

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/tests/gpu/in-container");
    let mut command = Command::new(script);
    command.args(["libcuda_sim.so", "libgputenancy_cuda.so"].map(built::shared)).arg(files.limits.parent().unwrap());
    command.arg(built::binary("cuda-work")).arg("watch").env("NVSIM_STATE", sim.store.dir()).env("NVSIM_DEV", "all");
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut next = || -> u64 {
        let line = lines.next().expect("the program shows the new size").unwrap();
        line.strip_prefix("total=").unwrap().parse().unwrap()
    };
    assert_eq!(next(), 1024 << 20);
    let mut micros = Vec::new();
    for change in 0..CHANGES {
        let mib = if change % 2 == 0 { 2048 + change } else { 1024 + change };
        let begun = Instant::now();
        view.send_modify(|view| view.devices = vec![fraction(&gpu, i64::try_from(mib).unwrap())]);
        assert_eq!(next(), mib << 20);
        micros.push(begun.elapsed().as_micros());
    }
    micros.sort_unstable();
    let (median, longest) = (micros[micros.len() / 2], micros[micros.len() - 1]);
    println!("from the agent's device view to cuMemGetInfo: median {median} µs, longest of {CHANGES} {longest} µs");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}
