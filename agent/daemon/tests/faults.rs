//! Faults that the simulated driver reports, and what lets a GPU return.

use crate::common::{Agent, Sim};
use gputenancy_agent::gpu::faults::RecordedFault;
use gputenancy_crds::{FaultFinding, FaultVerdict, Health, RecoveryState};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

const OLD: &[(i32, &str)] = &[(0, "1g.10gb"), (1, "1g.10gb"), (4, "3g.40gb")];

#[tokio::test]
async fn recorded_fault_outlives_the_agent_and_not_a_reset() {
    let sim = Sim::with("a100-80gb", 1, |options| options.tool = Some(crate::built::binary("nvsim")));
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, false, &[]);
    agent.converge().await;
    sim.store.change(|machine, _| machine.raise_xid(0, None, 79)).unwrap();
    agent.converge().await;
    let fault = agent.gpu().fault.unwrap();
    assert_eq!(fault, "Xid 79");
    let recorded = RecordedFault {
        uuid: uuid.clone(),
        fault: Some(fault),
        times: Vec::new(),
        driver_version: None,
        had_instances: false,
    };
    let mut next = Agent::on(sim.root.path());
    next.want(&uuid, false, &[]);
    next.converge().await;
    assert_eq!(next.gpu().health, Health::Healthy, "NVML reports a fault once");
    let mut next = Agent::on(sim.root.path());
    next.want(&uuid, false, &[]);
    next.desired.faults = vec![recorded];
    next.converge().await;
    assert_eq!((next.gpu().health, next.gpu().fault.as_deref()), (Health::Unhealthy, Some("Xid 79")));
    assert!(next.advertised().is_empty());
    next.want(&uuid, true, OLD);
    next.converge().await;
    assert_eq!((next.gpu().health, next.gpu().fault), (Health::Healthy, None), "turning MIG on resets this board");
    assert_eq!(next.advertised().len(), 3);
}

#[tokio::test]
async fn device_on_trial_is_healthy_once_the_driver_asks_for_nothing_and_a_verdict_clears_the_fault() {
    let sim = Sim::new("h100-80gb", 1);
    let mut agent = Agent::on(sim.root.path());
    let uuid = agent.uuid().await;
    agent.want(&uuid, true, OLD);
    agent.converge().await;
    let all = agent.advertised().len();
    sim.store.change(|machine, _| machine.set_recovery_action(0, Some(1))).unwrap();
    sim.store.change(|machine, _| machine.raise_xid(0, None, 48)).unwrap();
    agent.converge().await;
    let asked = agent.gpu().recovery.unwrap();
    assert_eq!(
        (asked.state, asked.message.as_str()),
        (RecoveryState::Waiting, "the driver asks for a reset of the GPU")
    );
    sim.store.change(|machine, _| machine.set_recovery_action(0, Some(0))).unwrap();
    // the quiet time is over before an agent begins that restores an earlier fault
    let hour_ago = Timestamp::from_second(Timestamp::now().as_second() - 3600).unwrap();
    let fault = agent.gpu().fault;
    let recorded =
        RecordedFault { uuid: uuid.clone(), fault, times: vec![hour_ago], driver_version: None, had_instances: true };
    let mut next = Agent::on(sim.root.path());
    next.want(&uuid, true, OLD);
    next.desired.faults = vec![recorded];
    next.converge().await;
    let quiet = next.gpu().recovery.unwrap();
    assert_eq!((quiet.state, quiet.faults.as_slice()), (RecoveryState::Waiting, &[Time(hour_ago)][..]));
    next.desired.spec.gpus[0].trial = vec![OLD[0].0];
    next.converge().await;
    assert!(next.advertised().is_empty(), "nothing is tried before 30 seconds without a fault");
    let verdict = |finding| FaultVerdict { until: Time(hour_ago), finding, reason: "canary pod c".into() };
    next.desired.spec.gpus[0].fault_verdict = Some(verdict(FaultFinding::CanaryFailed));
    next.converge().await;
    assert_eq!(next.gpu().recovery.unwrap().state, RecoveryState::StaysOut);
    next.desired.spec.gpus[0].trial.clear();
    next.desired.spec.gpus[0].fault_verdict = Some(verdict(FaultFinding::CanaryPassed));
    next.converge().await;
    assert_eq!((next.gpu().health, next.gpu().recovery.unwrap().state), (Health::Healthy, RecoveryState::Cleared));
    assert_eq!(next.advertised().len(), all);
    next.desired.spec.gpus[0].fault_verdict = Some(verdict(FaultFinding::ClearedByPerson));
    next.converge().await;
    assert_eq!(next.gpu().recovery, None, "what a person clears is forgotten");
}
