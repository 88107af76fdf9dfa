//! How GPUs are connected, read through the simulated library, and the choice of several GPUs that follows.

use crate::common::{Agent, Sim};
use gputenancy_agent::gpu::Inventory;
use gputenancy_nvml::Connection;
use silicon::{LINKS, Links};

const GPUS: usize = 4;

fn inventory(agent: &Agent) -> Inventory {
    agent.state.borrow().inventory.clone().unwrap()
}

/// Connections of GPU 0 with the GPUs 1, 2 and 3.
fn of_the_first(inventory: &Inventory) -> [Option<Connection>; GPUS - 1] {
    let gpus = &inventory.gpus;
    assert_eq!(gpus.len(), GPUS);
    [1, 2, 3].map(|other: usize| inventory.connections.between(&gpus[other].uuid, &gpus[0].uuid))
}

/// A simulated driver with these links, and an agent that has read it.
async fn node(links: Links) -> (Sim, Agent) {
    let sim = Sim::new("h100-80gb", u32::try_from(GPUS).unwrap());
    let changed = sim.store.change(|machine, _| {
        machine.links = links;
        Ok(())
    });
    changed.unwrap();
    let mut agent = Agent::on(sim.root.path());
    agent.uuid().await;
    (sim, agent)
}

#[tokio::test]
async fn bridges_and_switches_are_faster_than_pci() {
    let pci = Some(Connection::NumaNode);
    let (_sim, agent) = node(Links::None).await;
    assert_eq!(of_the_first(&inventory(&agent)), [pci; 3]);
    let (_sim, agent) = node(Links::Bridges).await;
    assert_eq!(of_the_first(&inventory(&agent)), [pci, Some(Connection::NvLink(LINKS)), pci]);
    let (_sim, agent) = node(Links::Switches).await;
    assert_eq!(of_the_first(&inventory(&agent)), [Some(Connection::NvLink(LINKS)); 3]);
}

#[tokio::test]
async fn gpu_with_mig_mode_has_no_connections() {
    let (_sim, mut agent) = node(Links::Switches).await;
    let uuid = inventory(&agent).gpus[0].uuid.clone();
    agent.want(&uuid, true, &[(0, "1g.10gb")]);
    agent.converge().await;
    let now = inventory(&agent);
    assert!(now.gpus[0].mig_enabled());
    assert_eq!(of_the_first(&now), [None; 3]);
    let (a, b) = (&now.gpus[1].uuid, &now.gpus[2].uuid);
    assert_eq!(now.connections.between(a, b), Some(Connection::NvLink(LINKS)), "the others keep theirs");
}
