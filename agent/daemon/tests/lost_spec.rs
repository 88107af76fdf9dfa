//! A spec that is lost while pods own shares and instances, on the simulated driver.

use std::collections::BTreeMap;

use gputenancy_agent::{
    device::{Device, DeviceId, DeviceOwner},
    partition::{DesiredLayout, ServedLayouts},
};
use gputenancy_crds::{AgentStep, GpuNodeSpec, GpuSpec};
use serde_json::json;

use crate::common::{Agent, Sim};

fn fractions(uuid: &str, numbers: &[i32]) -> GpuSpec {
    let group = json!({"resource": "gputenancy.io/small", "memory": "10240Mi", "compute": 15, "numbers": numbers});
    let sharing = json!({"mode": "Fraction", "shares": [group]});
    serde_json::from_value(json!({"uuid": uuid, "sharing": sharing})).unwrap()
}

/// Kubelet has given these devices to pods.
fn own(agent: &Agent, ids: &[DeviceId]) {
    let owner = |at: usize| DeviceOwner { namespace: "team".into(), pod: format!("p-{at}"), container: "c".into() };
    agent.kubelet.send_modify(|kubelet| {
        kubelet.answered = true;
        kubelet.owners = ids.iter().enumerate().map(|(at, id)| (id.clone(), owner(at))).collect();
    });
}

fn served(agent: &Agent) -> BTreeMap<DeviceId, Device> {
    agent.view.borrow().devices.iter().map(|device| (device.id.clone(), device.clone())).collect()
}

/// The `GpuNode` was created again, without a spec.
fn lose(agent: &mut Agent) {
    agent.desired = DesiredLayout { object: "another".into(), generation: 1, ..DesiredLayout::default() };
}

#[tokio::test]
async fn shares_and_instances_of_pods_outlive_the_object_and_the_agent() {
    let sim = Sim::new("h100-80gb", 2);
    let folder = sim.root.path().join("enforcement");
    let start = || Agent::on(sim.root.path()).with_layouts(ServedLayouts::in_folder(&folder));
    let mut agent = start();
    agent.uuid().await;
    let uuids: Vec<String> =
        agent.state.borrow().inventory.as_ref().unwrap().gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let mut sliced = Agent::spec(&uuids[1], true, &[(0, "3g.40gb"), (4, "3g.40gb")]);
    (sliced.instances[0].replicas, sliced.instances[0].resource) = (Some(2), Some("nvidia.com/half.shared".into()));
    agent.want_all(vec![fractions(&uuids[0], &[0, 2, 5]), sliced]);
    own(&agent, &[]);
    agent.converge().await;
    let before = served(&agent);
    assert_eq!(before.len(), 6);
    let ids: Vec<DeviceId> = before.keys().cloned().collect();
    let in_use =
        [DeviceId::share(&uuids[0], 5), ids.iter().find(|id| id.as_str().starts_with("MIG-")).unwrap().clone()];
    own(&agent, &in_use);
    agent.converge().await;
    let wanted = agent.desired.clone();

    lose(&mut agent);
    agent.converge().await;
    assert_eq!(served(&agent), before);
    let layout = |spec: &DesiredLayout, at: usize| spec.spec.gpus[at].layout();
    let retained = |agent: &Agent| agent.state.borrow().retained.clone();
    let all = BTreeMap::from([0, 1].map(|at| (uuids[at].clone(), layout(&wanted, at))));
    assert_eq!(retained(&agent), all);
    assert!(agent.state.borrow().gpus.values().all(|gpu| gpu.step == AgentStep::Unmanaged));

    // the next run knows no owners at first, and reports nothing before it does
    let mut agent = start();
    lose(&mut agent);
    agent.converge().await;
    assert_eq!((agent.state.borrow().generation, served(&agent).len()), (None, 0));
    own(&agent, &in_use);
    agent.converge().await;
    assert_eq!((served(&agent), retained(&agent)), (before.clone(), all));

    // an older spec: the GPUs are whole
    let spec = GpuNodeSpec {
        gpus: uuids.iter().map(|uuid| Agent::spec(uuid, false, &[])).collect(),
        ..GpuNodeSpec::default()
    };
    agent.desired = DesiredLayout { object: "another".into(), generation: 2, spec, ..DesiredLayout::default() };
    agent.converge().await;
    let advertised: Vec<String> = agent.advertised();
    let mut expected: Vec<String> = in_use.iter().map(ToString::to_string).collect();
    expected.sort();
    assert_eq!(
        {
            let mut sorted = advertised.clone();
            sorted.sort();
            sorted
        },
        expected,
        "no other pod gets one"
    );
    assert!(agent.state.borrow().gpus.values().all(|gpu| gpu.step == AgentStep::WaitingForClients));

    // the operator has adopted the layout
    agent.desired = DesiredLayout { object: "another".into(), generation: 3, ..wanted };
    agent.converge().await;
    assert_eq!((served(&agent), retained(&agent)), (before, BTreeMap::new()));
    assert!(agent.state.borrow().gpus.values().all(|gpu| gpu.step == AgentStep::Steady));

    // pods have ended: the GPUs follow the spec
    own(&agent, &[]);
    agent.desired = DesiredLayout { object: "another".into(), generation: 4, ..DesiredLayout::default() };
    agent.converge().await;
    assert_eq!((served(&agent).len(), retained(&agent)), (0, BTreeMap::new()));
}
