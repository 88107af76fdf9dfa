//! Carving through the simulated library: the same thread, calls and codes as on hardware.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends there"
)]

mod common;

use std::{collections::BTreeMap, os::unix::process::ExitStatusExt, path::PathBuf, time::Duration};

use common::{Agent, Sim, myself};
use gputenancy_agent::{
    device::{DeviceId, DeviceOwner},
    gpu::{Deadlines, Trouble, health::RecordedFault},
};
use gputenancy_crds::{AgentStep, GpuSpec, Health, Partitioner};
use silicon::{Store, attach::attach, clients, fault::Effect};

const OLD: &[(i32, &str)] = &[(0, "1g.10gb"), (1, "1g.10gb"), (4, "3g.40gb")];
const NEW: &[(i32, &str)] = &[(0, "1g.10gb"), (2, "2g.20gb"), (4, "2g.20gb")];

fn texts(layout: &[(i32, &str)]) -> Vec<(u32, String)> {
    layout.iter().map(|(start, profile)| (u32::try_from(*start).unwrap(), (*profile).to_owned())).collect()
}

#[tokio::test]
async fn a_layout_is_carved_offered_and_recarved_around_what_stays() {
    let sim = Sim::new("h100-80gb", 2);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(OLD));
    assert_eq!(agent.offered().len(), 3);
    let kept = agent.gpu().instances[0].clone();
    agent.want(&uuid, true, NEW);
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
    assert_eq!(agent.gpu().instances[0], kept);
    agent.want(&uuid, false, &[]);
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.offered(), [uuid]);
}

#[tokio::test]
async fn where_somebody_else_carves_what_is_there_stays_on_offer_and_nothing_is_made_or_made_again() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    let offered = agent.offered();
    agent.wanted.spec.partitioner = Partitioner::None;
    agent.settle().await;
    assert_eq!((agent.progress().step, agent.offered()), (AgentStep::Steady, offered.clone()));
    // another agent, and nothing is different
    let wanted = agent.wanted.clone();
    let mut agent = Agent::on(sim.root.path());
    agent.wanted = wanted;
    agent.settle().await;
    assert_eq!((agent.progress().step, agent.offered()), (AgentStep::Steady, offered));
    // the other one clears the GPU, as it does at its start
    silicon::operations::reset(&sim.store, 0).unwrap();
    agent.settle().await;
    assert_eq!((agent.progress().step, agent.layout().len(), agent.offered().len()), (AgentStep::LeftAlone, 0, 0));
    agent.wanted.spec.partitioner = Partitioner::Agent;
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(OLD));
}

#[tokio::test]
async fn what_somebody_else_takes_away_is_offered_no_longer_after_the_next_glance() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    agent.wanted.spec.partitioner = Partitioner::None;
    agent.settle().await;
    agent.glance().await;
    assert_eq!(agent.offered().len(), 3, "a glance alone takes nothing away");
    silicon::operations::reset(&sim.store, 0).unwrap();
    agent.glance().await;
    assert_eq!((agent.layout(), agent.offered()), (vec![], vec![]));
}

#[tokio::test]
async fn nothing_is_destroyed_before_kubelet_has_let_go_of_it() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    agent.want(&uuid, true, NEW);
    agent.pass().await;
    agent.pass().await;
    assert_eq!(agent.progress().step, AgentStep::Destroying);
    assert_eq!(agent.layout(), texts(OLD));
    assert_eq!(agent.offered(), [format!("{uuid}::0::1g.10gb")], "what must go is withdrawn at once");
    agent.kubelet_agrees();
    agent.pass().await;
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn a_process_keeps_its_instance_until_it_ends() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    let gi = agent.gpu().instances[2].gi;
    let client = sim.client(gi);
    agent.want(&uuid, true, NEW);
    assert_eq!(agent.settle().await.step, AgentStep::WaitingForClients);
    assert_eq!(agent.layout(), texts(OLD), "nothing goes while one cannot");
    assert_eq!(agent.gpu().clients[0].pid, client.pid());
    drop(client);
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn an_instance_that_nvml_calls_in_use_is_tried_again_without_flapping() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    sim.inject("nvmlComputeInstanceDestroy", 1, None, Effect::Fail(19));
    agent.want(&uuid, true, NEW);
    agent.settle().await;
    let before = agent.carved.borrow_and_update().clone();
    agent.settle().await;
    assert_eq!(before.gpus[&uuid].step, AgentStep::WaitingForClients);
    assert_eq!(*agent.carved.borrow(), before);
    assert!(!agent.carved.has_changed().unwrap(), "what does not change is not said again");
    sim.clear_faults();
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn a_refused_create_is_named_once_and_the_old_layout_can_be_had_back() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    sim.inject("nvmlDeviceCreateGpuInstanceWithPlacement", 2, None, Effect::Fail(23));
    agent.want(&uuid, true, NEW);
    let progress = agent.settle().await;
    assert_eq!(progress.step, AgentStep::Failed);
    let error = progress.error.unwrap();
    assert_eq!(
        (error.call.as_str(), error.code, error.generation),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 23, 2)
    );
    let calls = sim.seen();
    agent.settle().await;
    assert_eq!(sim.seen(), calls, "a call that was refused is not made again for the same spec");
    sim.clear_faults();
    agent.want(&uuid, true, OLD);
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(OLD));
}

#[tokio::test]
async fn a_failure_that_was_written_down_outlives_the_agent() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    sim.inject("nvmlDeviceCreateGpuInstanceWithPlacement", 1, None, Effect::Fail(23));
    agent.want(&uuid, true, OLD);
    let error = agent.settle().await.error.unwrap();
    let calls = sim.seen();
    let mut next = Agent::on(sim.root.path());
    next.want(&uuid, true, OLD);
    next.wanted.recorded.insert(uuid, error.clone());
    assert_eq!(next.settle().await.error, Some(error));
    assert_eq!(sim.seen(), calls);
}

#[tokio::test]
async fn a_call_that_hangs_is_named_and_carving_goes_on_when_it_returns() {
    let sim = Sim::new("h100-80gb", 1);
    let deadline = Duration::from_millis(300);
    let mut agent = Agent::with(sim.root.path(), Deadlines { look: deadline, order: deadline });
    let uuid = agent.uuid().await;
    sim.inject("nvmlDeviceCreateGpuInstanceWithPlacement", 1, Some(1), Effect::Hang(3000));
    agent.want(&uuid, true, OLD);
    agent.pass().await;
    agent.kubelet_agrees();
    agent.pass().await;
    let trouble = agent.carved.borrow().trouble.clone();
    let Some(Trouble::Hangs { call, .. }) = trouble else { panic!("{trouble:?}") };
    assert_eq!(call, "nvmlDeviceCreateGpuInstanceWithPlacement");
    while agent.carved.borrow().trouble.is_some() {
        tokio::time::sleep(deadline).await;
        agent.pass().await;
    }
    agent.settle().await;
    assert_eq!(agent.layout(), texts(OLD));
}

#[tokio::test]
async fn owners_are_those_of_before_the_look_so_that_no_process_outlives_its_owner() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    let client = sim.client(agent.gpu().instances[2].gi);
    let id = DeviceId::mig(&uuid, 4, "3g.40gb");
    let owner = DeviceOwner { namespace: "team-a".into(), pod: "p".into(), container: "c".into() };
    agent.kubelet.send_modify(|kubelet| {
        kubelet.told = true;
        kubelet.owners.insert(id.clone(), owner);
    });
    // the pod ends while NVML is being asked
    let kubelet = agent.kubelet.clone();
    sim.inject("nvmlDeviceGetComputeRunningProcesses_v3", 1, Some(1), Effect::Hang(500));
    let ends = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(client);
        kubelet.send_modify(|kubelet| kubelet.owners.clear());
    };
    tokio::join!(agent.glance(), ends);
    let told = |agent: &Agent| {
        let carved = agent.carved.borrow();
        carved.owners.as_ref().is_some_and(|owners| owners.contains_key(&id))
    };
    assert!(sim.seen() > 0, "the call was slow");
    assert!(told(&agent), "who had it when NVML was asked");
    agent.glance().await;
    assert!(!told(&agent) && agent.gpu().clients.is_empty());
}

#[tokio::test]
async fn a_lost_gpu_is_kept_by_name_and_taken_out_of_the_offer() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    sim.store.change(|machine, _| machine.set_lost(0, true)).unwrap();
    agent.settle().await;
    assert_eq!((agent.gpu().uuid, agent.gpu().health), (uuid, Health::Lost));
    assert!(agent.offered().is_empty());
    sim.store.change(|machine, _| machine.set_lost(0, false)).unwrap();
    agent.settle().await;
    assert_eq!(agent.offered().len(), 3);
}

#[tokio::test]
async fn a_fault_that_was_written_down_outlives_the_agent_and_not_a_reset() {
    let sim = Sim::with("a100-80gb", 1, |options| options.tool = Some(common::built::binary("nvsim")));
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, false, &[]);
    agent.settle().await;
    sim.store.change(|machine, _| machine.raise_xid(0, 79)).unwrap();
    agent.settle().await;
    let fault = agent.gpu().fault.unwrap();
    assert_eq!(fault, "Xid 79");
    let recorded = RecordedFault { uuid: uuid.clone(), fault, driver_version: None, carved: false };
    let mut next = Agent::on(sim.root.path());
    next.want(&uuid, false, &[]);
    next.settle().await;
    assert_eq!(next.gpu().health, Health::Healthy, "NVML itself does not tell of a fault again");
    let mut next = Agent::on(sim.root.path());
    next.want(&uuid, false, &[]);
    next.wanted.faults = vec![recorded];
    next.settle().await;
    assert_eq!((next.gpu().health, next.gpu().fault.as_deref()), (Health::Unhealthy, Some("Xid 79")));
    assert!(next.offered().is_empty());
    next.want(&uuid, true, OLD);
    next.settle().await;
    assert_eq!((next.gpu().health, next.gpu().fault), (Health::Healthy, None), "turning MIG on resets this board");
    assert_eq!(next.offered().len(), 3);
}

#[tokio::test]
async fn what_must_go_goes_when_it_was_seen_unused_twice() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    agent = agent.with_proof(Duration::from_hours(1));
    agent.want(&uuid, true, NEW);
    let progress = agent.settle().await;
    assert_eq!(progress.step, AgentStep::Destroying);
    assert_eq!(
        progress.waiting,
        "GPU 0: the instances at 1, 4 are unused, and have to be seen so twice before they go"
    );
    assert_eq!(agent.layout(), texts(OLD));
    agent = agent.with_proof(Duration::ZERO);
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn a_process_with_an_open_device_file_keeps_the_instance_without_being_listed_by_nvml() {
    let sim = Sim::new("h100-80gb", 1);
    let proc = tempfile::tempdir().unwrap();
    let mut agent = Agent::seeing(sim.root.path(), proc.path(), Deadlines::default());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    let gi = agent.gpu().instances[2].gi;
    let fds = proc.path().join("4711/fd");
    std::fs::create_dir_all(&fds).unwrap();
    let file = format!("/dev/nvidia-caps/nvidia-cap{}", silicon::ids::gi_minor(0, gi));
    std::os::unix::fs::symlink(file, fds.join("3")).unwrap();
    agent.want(&uuid, true, NEW);
    assert_eq!(agent.settle().await.step, AgentStep::WaitingForClients);
    assert_eq!(agent.layout(), texts(OLD));
    let clients: Vec<(u32, Option<u32>)> = agent.gpu().clients.iter().map(|client| (client.pid, client.gi)).collect();
    assert_eq!(clients, [(4711, Some(gi))]);
    std::fs::remove_dir_all(proc.path().join("4711")).unwrap();
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
    assert_eq!(agent.layout(), texts(NEW));
}

#[tokio::test]
async fn a_gpu_that_is_new_to_the_spec_and_cannot_be_carved_leaves_its_neighbour_alone_and_becomes_whole_again() {
    let sim = Sim::new("h100-80gb", 2);
    let mut agent = Agent::on(sim.root.path());
    agent.uuid().await;
    let uuids: Vec<String> =
        agent.carved.borrow().inventory.as_ref().unwrap().gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let first = Agent::spec(&uuids[0], true, OLD);
    agent.want_all(vec![first.clone()]);
    agent.settle().await;
    let offered = agent.offered();
    assert_eq!(offered.len(), 3);
    sim.inject("nvmlDeviceCreateGpuInstanceWithPlacement", 2, None, Effect::Fail(23));
    let second = |mig, instances| Agent::spec(&uuids[1], mig, instances);
    agent.want_all(vec![first.clone(), GpuSpec { hold: vec![0, 1, 4], ..second(true, OLD) }]);
    agent.settle().await;
    let steps = |agent: &Agent| agent.carved.borrow().gpus.iter().map(|(uuid, gpu)| (uuid.clone(), gpu.step)).collect();
    let expected = |step| BTreeMap::from([(uuids[0].clone(), AgentStep::Steady), (uuids[1].clone(), step)]);
    let seen: BTreeMap<String, AgentStep> = steps(&agent);
    assert_eq!(seen, expected(AgentStep::Failed));
    assert_eq!(agent.offered(), offered, "neither the neighbour's devices go nor do held ones come");
    agent.want_all(vec![first.clone(), second(false, &[])]);
    agent.settle().await;
    let seen: BTreeMap<String, AgentStep> = steps(&agent);
    assert_eq!(seen, expected(AgentStep::Steady));
    assert_eq!(agent.offered(), [offered.clone(), vec![uuids[1].clone()]].concat());
    agent.want_all(vec![first]);
    agent.settle().await;
    let seen: BTreeMap<String, AgentStep> = steps(&agent);
    assert_eq!(seen, expected(AgentStep::Unmanaged));
    assert_eq!(agent.offered(), offered);
}

#[tokio::test]
async fn a_critical_xid_takes_the_gpu_out_of_the_offer() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, false, &[]);
    agent.settle().await;
    sim.store.change(|machine, _| machine.raise_xid(0, 31)).unwrap();
    agent.settle().await;
    assert_eq!(agent.gpu().health, Health::Healthy, "a program's own fault");
    sim.store.change(|machine, _| machine.raise_xid(0, 79)).unwrap();
    agent.settle().await;
    assert_eq!(agent.gpu().health, Health::Unhealthy);
    assert!(agent.offered().is_empty());
}

#[tokio::test]
async fn a_driver_that_goes_and_comes_back_is_opened_anew() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.settle().await;
    let away = sim.root.path().join("away");
    std::fs::rename(sim.store.dir(), &away).unwrap();
    agent.settle().await;
    assert!(agent.carved.borrow().trouble.is_some());
    assert!(agent.offered().is_empty());
    std::fs::rename(&away, sim.store.dir()).unwrap();
    agent.settle().await;
    assert_eq!(agent.carved.borrow().trouble, None);
    assert_eq!(agent.offered().len(), 3);
}

#[tokio::test]
async fn killed_before_or_after_any_change_it_ends_at_the_new_layout() {
    for effect in [Effect::KillBefore, Effect::KillAfter] {
        for nth in 1.. {
            let sim = Sim::new("h100-80gb", 1);
            let mut agent = Agent::on(sim.root.path());
            let uuid = agent.uuid().await;
            agent.want(&uuid, true, OLD);
            agent.settle().await;
            sim.inject("change", nth, Some(1), effect);
            let status =
                myself("carver_process").env("CARVER_ROOT", sim.root.path()).env("CARVER_GPU", &uuid).status().unwrap();
            sim.clear_faults();
            let mut agent = Agent::on(sim.root.path());
            agent.want(&uuid, true, NEW);
            assert_eq!(agent.settle().await.step, AgentStep::Steady, "{effect:?} {nth}");
            assert_eq!(agent.layout(), texts(NEW), "{effect:?} {nth}");
            if status.signal().is_none() {
                assert!(nth > 4, "{effect:?}: the change is of at least four calls");
                break;
            }
        }
    }
}

/// Not a test: the process that others kill while it carves.
#[tokio::test]
async fn carver_process() {
    let Some(root) = std::env::var_os("CARVER_ROOT") else { return };
    let mut agent = Agent::on(&PathBuf::from(root));
    agent.want(&std::env::var("CARVER_GPU").unwrap(), true, NEW);
    assert_eq!(agent.settle().await.step, AgentStep::Steady);
}

/// Not a test: the process that others see on a GPU.
#[test]
fn client_process() {
    let Some(state) = std::env::var_os("CLIENT_STATE") else { return };
    let gi = std::env::var("CLIENT_GI").unwrap().parse().unwrap();
    let store = Store::new(PathBuf::from(state));
    let client = clients::Client {
        pid: 0,
        gpu: 0,
        instance: Some((gi, 0)),
        memory: 1 << 20,
        name: "client".into(),
        owner: "test".into(),
    };
    let _attachment = attach(&store, &client, &[]).unwrap();
    println!("attached");
    std::thread::sleep(Duration::from_mins(10));
}
