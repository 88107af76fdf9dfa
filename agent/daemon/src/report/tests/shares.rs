//! Bypasses and memory of shares.

use super::*;

#[test]
fn bypass_is_reported_on_its_share_and_unlisted_processes_on_their_gpu() {
    let (state, view, kubelet) = shared();
    let (uuid, second) = (state.inventory.as_ref().unwrap().gpus[0].uuid.clone(), view.devices[1].id.clone());
    let bypass = Bypass { uid: "uid-two".into(), ..Bypass::default() };
    let daemon = Holder { pid: 900, command: "nv-hostengine".into(), ..Holder::default() };
    let bypasses = [(second.clone(), bypass.clone())].into();
    let ghost = GhostMemory { pids: vec![901], memory: MemoryText::from_mib(512), ..GhostMemory::default() };
    let own = state.owners.as_ref().unwrap()[&second].clone();
    let containers = vec![DeviceProcesses { container: Some(own), count: 1, ..DeviceProcesses::default() }];
    let processes = Attributed {
        unlisted: [(uuid.clone(), vec![daemon.clone()])].into(),
        containers: [((uuid.clone(), None), containers.clone())].into(),
        ghosts: [(uuid, vec![ghost.clone()])].into(),
    };
    let sandbox = Sandbox { handler: "runsc".into(), enforcement: Isolation::None };
    let of = |device: &Device, _: &DeviceOwner| (device.id == second).then(|| sandbox.clone());
    let input =
        StatusInput { bypasses: &bypasses, processes: &processes, sandbox: &of, ..input(&state, &view, &kubelet) };
    let reported = status(&input, Timestamp::UNIX_EPOCH);
    let gpu = &reported.gpus[0];
    assert_eq!(gpu.shares.iter().map(|share| share.bypass.clone()).collect::<Vec<_>>(), [None, Some(bypass)]);
    assert_eq!(gpu.shares.iter().map(|share| share.sandbox.clone()).collect::<Vec<_>>(), [None, Some(sandbox.clone())]);
    let listed: Vec<_> = gpu.shares.iter().map(|share| share.device.processes.clone()).collect();
    assert_eq!(listed, [Vec::new(), containers]);
    assert_eq!((&gpu.unlisted, &gpu.ghost_memory), (&vec![daemon], &vec![ghost]));
    assert!(gpu.holders.iter().all(|holder| holder.pid != 900), "no change waits for it");
    let unknown = without_inventory(&StatusInput { earlier: &reported, ..input }, Timestamp::UNIX_EPOCH);
    let gpu = &unknown.gpus[0];
    assert!(gpu.unlisted.is_empty() && gpu.ghost_memory.is_empty());
    assert!(gpu.shares.iter().all(|share| (&share.bypass, &share.sandbox) == (&None, &None)));
    assert!(gpu.devices().all(|device| device.processes.is_empty()));
}

#[test]
fn memory_of_a_container_is_reported_for_its_owner_and_kept_until_the_first_view_of_the_next_run() {
    let (state, view, kubelet) = shared();
    let first = view.devices[0].id.clone();
    let owner = state.owners.as_ref().unwrap()[&first].clone();
    let refused = RefusedResize { memory: MemoryText::from_mib(5120), used: MemoryText::from_mib(7000) };
    let of = |owner: &DeviceOwner| {
        let size = ShareSize::new(MemoryText::from_mib(10_240), owner.clone(), Some(refused.clone()));
        ShareSizes::from([(first.clone(), size)])
    };
    let reported = |sizes: &ShareSizes, earlier: &GpuNodeStatus, view: &DeviceView| {
        let input = StatusInput { sizes, earlier, ..input(&state, view, &kubelet) };
        status(&input, Timestamp::UNIX_EPOCH)
    };
    let memory = |status: &GpuNodeStatus| {
        let shares = status.gpus[0].shares.iter();
        shares.map(|share| share.memory.as_ref().map(|memory| memory.mib().unwrap())).collect::<Vec<_>>()
    };
    let nothing = GpuNodeStatus::default();
    let now = reported(&of(&owner), &nothing, &view);
    assert_eq!(memory(&now), [Some(10_240), None]);
    assert_eq!(now.gpus[0].shares[0].refused_resize, Some(refused.clone()));
    let of_former = of(&DeviceOwner { pod: "former".into(), ..owner });
    assert_eq!(memory(&reported(&of_former, &nothing, &view)), [None, None], "of a pod that is gone");
    let restarted = reported(&ShareSizes::new(), &now, &DeviceView::default());
    assert_eq!(memory(&restarted), [Some(10_240), None]);
    assert_eq!(restarted.gpus[0].shares[0].refused_resize, Some(refused.clone()));
    // the first view of the next run is there before the sizes
    let mut fractions = view.clone();
    let shares = fractions.devices.iter_mut().filter_map(|device| device.share.as_mut());
    shares.for_each(|share| share.mode = SharingMode::Fraction);
    let viewed = reported(&ShareSizes::new(), &now, &fractions);
    assert_eq!(memory(&viewed), [Some(10_240), None]);
    assert_eq!(viewed.gpus[0].shares[0].refused_resize, Some(refused.clone()));
    assert_eq!(memory(&reported(&ShareSizes::new(), &now, &view)), [None, None], "its size does not change any more");
    let mut former = now;
    former.gpus[0].shares[0].device.owner.as_mut().unwrap().pod = "former".into();
    assert_eq!(memory(&reported(&ShareSizes::new(), &former, &fractions)), [None, None], "of a pod that is gone");
}

#[test]
fn retained_layout_is_reported_with_its_shares_and_owners_and_no_process_is_unattributed() {
    let (mut state, view, kubelet) = shared();
    let uuid = state.inventory.as_ref().unwrap().gpus[0].uuid.clone();
    let group = ShareGroup { resource: "nvidia.com/gpu.shared".into(), numbers: vec![0, 1], ..ShareGroup::default() };
    let sharing = Sharing { shares: vec![group], ..Sharing::default() };
    let layout = Layout { sharing: Some(sharing), ..Layout::default() };
    let before = status(&input(&state, &view, &kubelet), Timestamp::UNIX_EPOCH);
    state.retained = [(uuid, layout.clone())].into();
    let mut now = status(&input(&state, &view, &kubelet), Timestamp::UNIX_EPOCH);
    assert_eq!(now.gpus[0].retained.take(), Some(layout));
    assert_eq!(now.gpus, before.gpus);
}
