//! Partitioning through the simulated library: the same thread, calls and codes as on hardware.

use std::{collections::BTreeMap, os::unix::process::ExitStatusExt, path::PathBuf, time::Duration};

use crate::common::{Agent, Sim, myself};
use gputenancy_agent::{
    device::{DeviceId, DeviceOwner},
    gpu::{Deadlines, NvmlError},
};
use gputenancy_crds::{AgentStep, GpuSpec, Health, Partitioner, UnscrubbedMemory};
use silicon::fault::{Effect, Fault};

const OLD: &[(i32, &str)] = &[(0, "1g.10gb"), (1, "1g.10gb"), (4, "3g.40gb")];
const NEW: &[(i32, &str)] = &[(0, "1g.10gb"), (2, "2g.20gb"), (4, "2g.20gb")];

fn texts(layout: &[(i32, &str)]) -> Vec<(u32, String)> {
    layout.iter().map(|(start, profile)| (u32::try_from(*start).unwrap(), (*profile).to_owned())).collect()
}

#[tokio::test]
async fn agent_partitions_and_changes_a_layout_around_kept_instances() {
    let sim = Sim::new("h100-80gb", 2);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(OLD));
    assert_eq!(agent.advertised().len(), 3);
    let kept = agent.gpu().instances[0].clone();
    agent.want(&uuid, true, NEW);
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
    assert_eq!(agent.gpu().instances[0], kept);
    agent.want(&uuid, false, &[]);
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.advertised(), [uuid]);
}

#[tokio::test]
async fn agent_that_does_not_partition_advertises_what_exists_and_creates_nothing() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    let advertised = agent.advertised();
    agent.desired.spec.partitioner = Partitioner::None;
    agent.converge().await;
    assert_eq!((agent.progress().step, agent.advertised()), (AgentStep::Steady, advertised.clone()));
    // nothing changes with a new agent
    let desired = agent.desired.clone();
    let mut agent = Agent::on(sim.root.path());
    agent.desired = desired;
    agent.converge().await;
    assert_eq!((agent.progress().step, agent.advertised()), (AgentStep::Steady, advertised));
    // another partitioner resets the GPU
    silicon::operations::reset(&sim.store, 0).unwrap();
    agent.converge().await;
    assert_eq!((agent.progress().step, agent.layout().len(), agent.advertised().len()), (AgentStep::LeftAlone, 0, 0));
    agent.desired.spec.partitioner = Partitioner::Agent;
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(OLD));
}

#[tokio::test]
async fn node_that_leaves_freed_memory_as_it_is_advertises_nothing_unless_its_pool_accepts_that() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    assert_eq!(agent.advertised().len(), 3);
    silicon::materialize::registry(&sim.root.path().join("drv"), "RMDisableScrubOnFree=1").unwrap();
    agent.converge().await;
    assert_eq!((agent.advertised().len(), agent.layout()), (0, texts(OLD)), "withdrawn, and not destroyed");
    // a session that begins with a quick scan, as after a driver that was reloaded
    let desired = agent.desired.clone();
    let mut agent = Agent::on(sim.root.path());
    agent.desired = desired;
    agent.quick_scan().await;
    agent.quick_scan().await;
    assert_eq!(agent.advertised().len(), 0);
    agent.desired.spec.enforcement.unscrubbed_memory = UnscrubbedMemory::Accept;
    agent.converge().await;
    assert_eq!(agent.advertised().len(), 3);
}

#[tokio::test]
async fn instance_removed_by_others_is_withdrawn_after_a_quick_scan() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    agent.desired.spec.partitioner = Partitioner::None;
    agent.converge().await;
    agent.quick_scan().await;
    assert_eq!(agent.advertised().len(), 3, "a quick scan alone changes nothing");
    silicon::operations::reset(&sim.store, 0).unwrap();
    agent.quick_scan().await;
    assert_eq!((agent.layout(), agent.advertised()), (vec![], vec![]));
}

#[tokio::test]
async fn instance_is_destroyed_only_after_kubelet_applied_its_withdrawal() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    agent.want(&uuid, true, NEW);
    agent.reconcile().await;
    agent.reconcile().await;
    assert_eq!(agent.progress().step, AgentStep::Destroying);
    assert_eq!(agent.layout(), texts(OLD));
    assert_eq!(agent.advertised(), [agent.mig_uuid(0)], "removed instances are withdrawn at once");
    agent.kubelet_applies();
    agent.reconcile().await;
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn agent_advertises_mig_devices_by_their_uuids() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    assert_eq!(agent.advertised(), [0, 1, 2].map(|instance| agent.mig_uuid(instance)));
    assert!(agent.advertised().iter().all(|id| id.starts_with("MIG-")));
}

#[tokio::test]
async fn agent_keeps_an_instance_that_a_pod_of_an_earlier_release_owns() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    let owner = DeviceOwner { namespace: "team-a".into(), pod: "p".into(), container: "c".into() };
    agent.kubelet.send_modify(|kubelet| {
        kubelet.owners.insert(DeviceId::new(format!("{uuid}::4::3g.40gb")), owner);
    });
    agent.want(&uuid, true, NEW);
    agent.converge().await;
    assert_eq!(agent.layout(), texts(OLD));
    agent.kubelet.send_modify(|kubelet| kubelet.owners.clear());
    agent.converge().await;
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn process_keeps_its_instance_until_it_ends() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    let gi = agent.gpu().instances[2].gi;
    let client = sim.client(gi);
    agent.want(&uuid, true, NEW);
    assert_eq!(agent.converge().await.step, AgentStep::WaitingForClients);
    assert_eq!(agent.layout(), texts(OLD), "nothing is destroyed while one is in use");
    assert_eq!(agent.gpu().clients[0].pid, client.pid());
    drop(client);
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn instance_in_use_is_retried_without_status_changes() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    sim.inject("nvmlComputeInstanceDestroy", 1, None, Effect::Fail(19));
    agent.want(&uuid, true, NEW);
    agent.converge().await;
    let before = agent.state.borrow_and_update().clone();
    agent.converge().await;
    assert_eq!(before.gpus[&uuid].step, AgentStep::WaitingForClients);
    assert_eq!(*agent.state.borrow(), before);
    assert!(!agent.state.has_changed().unwrap(), "no notification without a change");
    sim.clear_faults();
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn refused_create_is_not_retried_and_the_old_layout_can_be_restored() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    sim.inject("nvmlDeviceCreateGpuInstanceWithPlacement", 2, None, Effect::Fail(23));
    agent.want(&uuid, true, NEW);
    let progress = agent.converge().await;
    assert_eq!(progress.step, AgentStep::Failed);
    let error = progress.error.unwrap();
    assert_eq!(
        (error.call.as_str(), error.code, error.generation),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 23, 2)
    );
    let calls = sim.matched_calls();
    agent.converge().await;
    assert_eq!(sim.matched_calls(), calls, "a refused call is not repeated for the same spec");
    sim.clear_faults();
    agent.want(&uuid, true, OLD);
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(OLD));
}

#[tokio::test]
async fn recorded_failure_outlives_the_agent() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    sim.inject("nvmlDeviceCreateGpuInstanceWithPlacement", 1, None, Effect::Fail(23));
    agent.want(&uuid, true, OLD);
    let error = agent.converge().await.error.unwrap();
    let calls = sim.matched_calls();
    let mut next = Agent::on(sim.root.path());
    next.want(&uuid, true, OLD);
    next.desired.recorded.insert(uuid, error.clone());
    assert_eq!(next.converge().await.error, Some(error));
    assert_eq!(sim.matched_calls(), calls);
}

#[tokio::test]
async fn hanging_call_is_named_and_partitioning_continues_when_it_returns() {
    let sim = Sim::new("h100-80gb", 1);
    let deadline = Duration::from_millis(300);
    let mut agent = Agent::with(sim.root.path(), Deadlines { scan: deadline, operation: deadline });
    let uuid = agent.uuid().await;
    sim.inject("nvmlDeviceCreateGpuInstanceWithPlacement", 1, Some(1), Effect::Hang(3000));
    agent.want(&uuid, true, OLD);
    agent.reconcile().await;
    agent.kubelet_applies();
    agent.reconcile().await;
    let error = agent.state.borrow().nvml_error.clone();
    let Some(NvmlError::Hangs { call, .. }) = error else { panic!("{error:?}") };
    assert_eq!(call, "nvmlDeviceCreateGpuInstanceWithPlacement");
    while agent.state.borrow().nvml_error.is_some() {
        tokio::time::sleep(deadline).await;
        agent.reconcile().await;
    }
    agent.converge().await;
    assert_eq!(agent.layout(), texts(OLD));
}

#[tokio::test]
async fn owners_are_those_from_before_the_scan() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    let client = sim.client(agent.gpu().instances[2].gi);
    let id = DeviceId::new(agent.mig_uuid(2));
    let owner = DeviceOwner { namespace: "team-a".into(), pod: "p".into(), container: "c".into() };
    agent.kubelet.send_modify(|kubelet| {
        kubelet.answered = true;
        kubelet.owners.insert(id.clone(), owner);
    });
    // the pod ends during the scan
    let kubelet = agent.kubelet.clone();
    sim.inject("nvmlDeviceGetComputeRunningProcesses_v3", 1, Some(1), Effect::Hang(500));
    let ends = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(client);
        kubelet.send_modify(|kubelet| kubelet.owners.clear());
    };
    tokio::join!(agent.quick_scan(), ends);
    let has_owner = |agent: &Agent| {
        let state = agent.state.borrow();
        state.owners.as_ref().is_some_and(|owners| owners.contains_key(&id))
    };
    assert!(sim.matched_calls() > 0, "the call was slow");
    assert!(has_owner(&agent), "the owner from before the scan");
    agent.quick_scan().await;
    assert!(!has_owner(&agent) && agent.gpu().clients.is_empty());
}

#[tokio::test]
async fn lost_gpu_keeps_its_name_and_its_devices_become_unhealthy() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    sim.store.change(|machine, _| machine.set_lost(0, true)).unwrap();
    agent.converge().await;
    assert_eq!((agent.gpu().uuid, agent.gpu().health), (uuid, Health::Lost));
    assert!(agent.advertised().is_empty());
    sim.store.change(|machine, _| machine.set_lost(0, false)).unwrap();
    agent.converge().await;
    assert_eq!(agent.advertised().len(), 3);
}

/// Two GPUs without MIG, both advertised, and their UUIDs.
async fn two_gpus(sim: &Sim) -> (Agent, [String; 2]) {
    let mut agent = Agent::on(sim.root.path());
    agent.uuid().await;
    let uuids: Vec<String> =
        agent.state.borrow().inventory.iter().flat_map(|i| &i.gpus).map(|gpu| gpu.uuid.clone()).collect();
    agent.want_all(uuids.iter().map(|uuid| Agent::spec(uuid, false, &[])).collect());
    agent.converge().await;
    assert_eq!(agent.advertised(), uuids);
    (agent, uuids.try_into().unwrap())
}

/// Calls about the second GPU fail with this code.
fn fail_on_second(sim: &Sim, call: &str, code: u32) {
    let effect = Effect::Fail(code);
    let fault = Fault { call: call.into(), gpu: Some(1), process: None, nth: 1, times: None, effect, seen: 0 };
    silicon::operations::inject(&sim.store, fault).unwrap();
}

#[tokio::test]
async fn gpu_that_is_lost_while_the_inventory_is_read_stops_no_other_gpu() {
    const LOST: u32 = 15;
    let sim = Sim::new("h100-80gb", 2);
    for (call, events) in [
        ("nvmlDeviceGetSupportedEventTypes", true),
        ("nvmlDeviceRegisterEvents", true),
        ("nvmlDeviceGetMigMode", false),
        ("nvmlDeviceGetComputeRunningProcesses_v3", false),
    ] {
        let (mut agent, [first, second]) = two_gpus(&sim).await;
        fail_on_second(&sim, call, LOST);
        for _ in 0..2 {
            agent.converge().await;
            agent.quick_scan().await;
            assert_eq!(agent.state.borrow().nvml_error, None, "{call}");
            assert!(agent.advertised().contains(&first), "{call}: {:?}", agent.advertised());
            assert_eq!(agent.advertised().contains(&second), events, "{call}");
        }
        // an agent that starts meanwhile
        let mut next = Agent::on(sim.root.path());
        next.desired = agent.desired.clone();
        next.converge().await;
        assert!(next.advertised().contains(&first), "{call}: {:?}", next.advertised());
        sim.clear_faults();
        agent.converge().await;
        assert_eq!(agent.advertised(), [first, second], "{call}");
    }
    let (mut agent, uuids) = two_gpus(&sim).await;
    // an agent that finds the GPU lost
    sim.store.change(|machine, _| machine.set_lost(1, true)).unwrap();
    let mut next = Agent::on(sim.root.path());
    next.desired = agent.desired.clone();
    next.converge().await;
    assert_eq!(next.advertised(), uuids[..1]);
    sim.store.change(|machine, _| machine.set_lost(1, false)).unwrap();
    next.converge().await;
    assert_eq!(next.advertised(), uuids);
    // the event set is of all GPUs
    sim.inject("nvmlEventSetWait_v2", 1, None, Effect::Fail(LOST));
    agent.converge().await;
    agent.quick_scan().await;
    assert!(sim.matched_calls() > 0);
    assert_eq!((agent.state.borrow().nvml_error.clone(), agent.advertised()), (None, uuids.to_vec()));
}

#[tokio::test]
async fn gpu_that_is_lost_between_two_calls_of_kubelet_refuses_no_device_of_another_gpu() {
    let sim = Sim::new("h100-80gb", 2);
    let (agent, uuids) = two_gpus(&sim).await;
    let [first, second] = uuids.map(DeviceId::new);
    let devices: BTreeMap<DeviceId, _> =
        agent.view.borrow().devices.iter().map(|device| (device.id.clone(), device.clone())).collect();
    let check = async |id: &DeviceId| {
        let inventory = agent.handover.processes(devices.values()).await.map_err(|error| error.to_string())?;
        let requested = [id.clone()];
        let refused = agent.handover.refuse(&devices, &inventory, &BTreeMap::new(), &requested);
        refused.map(drop).map_err(|refusal| refusal.to_string())
    };
    assert_eq!((check(&first).await, check(&second).await), (Ok(()), Ok(())));
    // no scan has seen it yet
    sim.store.change(|machine, _| machine.set_lost(1, true)).unwrap();
    for _ in 0..2 {
        assert_eq!(check(&first).await, Ok(()));
        let refusal = check(&second).await.unwrap_err();
        assert!(refusal.contains("GPU is lost"), "{refusal}");
    }
    sim.store.change(|machine, _| machine.set_lost(1, false)).unwrap();
    assert_eq!(check(&second).await, Ok(()));
}

#[tokio::test]
async fn removed_instance_is_destroyed_after_a_proof_of_idleness() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    agent = agent.with_proof(Duration::from_hours(1));
    agent.want(&uuid, true, NEW);
    let progress = agent.converge().await;
    assert_eq!(progress.step, AgentStep::Destroying);
    assert_eq!(progress.waiting, "GPU 0: the instances at 1, 4 are unused; waiting for a second scan that confirms it");
    assert_eq!(agent.layout(), texts(OLD));
    agent = agent.with_proof(Duration::ZERO);
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn process_with_an_open_device_file_keeps_its_instance() {
    let sim = Sim::new("h100-80gb", 1);
    let proc = tempfile::tempdir().unwrap();
    let mut agent = Agent::seeing(sim.root.path(), proc.path(), Deadlines::default());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    let gi = agent.gpu().instances[2].gi;
    let fds = proc.path().join("4711/fd");
    std::fs::create_dir_all(&fds).unwrap();
    let file = format!("/dev/nvidia-caps/nvidia-cap{}", silicon::ids::gi_minor(0, gi));
    std::os::unix::fs::symlink(file, fds.join("3")).unwrap();
    agent.want(&uuid, true, NEW);
    assert_eq!(agent.converge().await.step, AgentStep::WaitingForClients);
    assert_eq!(agent.layout(), texts(OLD));
    let clients: Vec<(u32, Option<u32>)> = agent.gpu().clients.iter().map(|client| (client.pid, client.gi)).collect();
    assert_eq!(clients, [(4711, Some(gi))]);
    std::fs::remove_dir_all(proc.path().join("4711")).unwrap();
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn gpu_that_cannot_be_partitioned_leaves_others_alone_and_can_become_whole_again() {
    let sim = Sim::new("h100-80gb", 2);
    let mut agent = Agent::on(sim.root.path());
    agent.uuid().await;
    let uuids: Vec<String> =
        agent.state.borrow().inventory.as_ref().unwrap().gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let first = Agent::spec(&uuids[0], true, OLD);
    agent.want_all(vec![first.clone()]);
    agent.converge().await;
    let advertised = agent.advertised();
    assert_eq!(advertised.len(), 3);
    sim.inject("nvmlDeviceCreateGpuInstanceWithPlacement", 2, None, Effect::Fail(23));
    let second = |mig, instances| Agent::spec(&uuids[1], mig, instances);
    agent.want_all(vec![first.clone(), GpuSpec { hold: vec![0, 1, 4], ..second(true, OLD) }]);
    agent.converge().await;
    let steps = |agent: &Agent| agent.state.borrow().gpus.iter().map(|(uuid, gpu)| (uuid.clone(), gpu.step)).collect();
    let expected = |step| BTreeMap::from([(uuids[0].clone(), AgentStep::Steady), (uuids[1].clone(), step)]);
    let found: BTreeMap<String, AgentStep> = steps(&agent);
    assert_eq!(found, expected(AgentStep::Failed));
    assert_eq!(agent.advertised(), advertised, "devices of the other GPU stay, and withdrawn ones are not advertised");
    agent.want_all(vec![first.clone(), second(false, &[])]);
    agent.converge().await;
    let found: BTreeMap<String, AgentStep> = steps(&agent);
    assert_eq!(found, expected(AgentStep::Steady));
    assert_eq!(agent.advertised(), [advertised.clone(), vec![uuids[1].clone()]].concat());
    agent.want_all(vec![first]);
    agent.converge().await;
    let found: BTreeMap<String, AgentStep> = steps(&agent);
    assert_eq!(found, expected(AgentStep::Unmanaged));
    assert_eq!(agent.advertised(), advertised);
}

#[tokio::test]
async fn critical_xid_makes_devices_unhealthy() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, false, &[]);
    agent.converge().await;
    sim.store.change(|machine, _| machine.raise_xid(0, None, 31)).unwrap();
    agent.converge().await;
    assert_eq!(agent.gpu().health, Health::Healthy, "a program's own fault");
    sim.store.change(|machine, _| machine.raise_xid(0, None, 79)).unwrap();
    agent.converge().await;
    assert_eq!(agent.gpu().health, Health::Unhealthy);
    assert!(agent.advertised().is_empty());
}

#[tokio::test]
async fn nvml_is_opened_again_after_a_driver_reload() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    let away = sim.root.path().join("away");
    std::fs::rename(sim.store.dir(), &away).unwrap();
    agent.converge().await;
    assert!(agent.state.borrow().nvml_error.is_some());
    assert!(agent.advertised().is_empty());
    std::fs::rename(&away, sim.store.dir()).unwrap();
    agent.converge().await;
    assert_eq!(agent.state.borrow().nvml_error, None);
    assert_eq!(agent.advertised().len(), 3);
}

#[tokio::test]
async fn agent_killed_before_or_after_any_change_ends_at_the_new_layout() {
    for effect in [Effect::KillBefore, Effect::KillAfter] {
        for nth in 1.. {
            let sim = Sim::new("h100-80gb", 1);
            let mut agent = Agent::on(sim.root.path());
            let uuid = agent.uuid().await;
            agent.want(&uuid, true, OLD);
            agent.converge().await;
            sim.inject("change", nth, Some(1), effect);
            let status = myself("simulated::partitioning_process")
                .env("PARTITION_ROOT", sim.root.path())
                .env("PARTITION_GPU", &uuid)
                .status()
                .unwrap();
            sim.clear_faults();
            let mut agent = Agent::on(sim.root.path());
            agent.want(&uuid, true, NEW);
            assert_eq!(agent.converge().await.step, AgentStep::Steady, "{effect:?} {nth}");
            assert_eq!(agent.layout(), texts(NEW), "{effect:?} {nth}");
            if status.signal().is_none() {
                assert!(nth > 4, "{effect:?}: the change is of at least four calls");
                break;
            }
        }
    }
}

/// Not a test: the process that is killed while it partitions.
#[tokio::test]
async fn partitioning_process() {
    let Some(root) = std::env::var_os("PARTITION_ROOT") else { return };
    let mut agent = Agent::on(&PathBuf::from(root));
    agent.want(&std::env::var("PARTITION_GPU").unwrap(), true, NEW);
    assert_eq!(agent.converge().await.step, AgentStep::Steady);
}
