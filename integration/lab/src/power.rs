//! Nodes in the lab's root process: network cable, power, and the first process of each.

use crate::address::{API, NODE_PREFIX};
use crate::cgroup::{self, Hierarchy};
use crate::command::line;
use crate::control::NodeStatus;
use crate::error::{During, Error, Result};
use crate::place::{LAB, node_share};
use crate::process::{LOOK, child_of};
use crate::spec::{NodePlan, Plan};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, watch};

struct Machine {
    plan: NodePlan,
    pid: watch::Sender<Option<i32>>,
    cut: bool,
}

/// All nodes.
pub struct Machines {
    plan: Arc<Plan>,
    hierarchies: Vec<Hierarchy>,
    by_name: BTreeMap<String, Mutex<Machine>>,
}

impl Machines {
    /// All off.
    pub fn new(plan: Arc<Plan>, hierarchies: Vec<Hierarchy>) -> Self {
        let machine =
            |node: &NodePlan| Mutex::new(Machine { plan: node.clone(), pid: watch::Sender::new(None), cut: false });
        let by_name = plan.nodes.iter().map(|node| (node.name.clone(), machine(node))).collect();
        Self { plan, hierarchies, by_name }
    }

    fn find(&self, name: &str) -> Result<&Mutex<Machine>> {
        self.by_name.get(name).ok_or_else(|| {
            let have: Vec<_> = self.by_name.keys().map(String::as_str).collect();
            Error::Missing(format!("there is no node {name}, only {}", have.join(", ")))
        })
    }

    /// Status of all nodes.
    pub async fn status(&self) -> BTreeMap<String, NodeStatus> {
        let mut all = BTreeMap::new();
        for (name, machine) in &self.by_name {
            let machine = machine.lock().await;
            all.insert(name.clone(), NodeStatus { pid: *machine.pid.borrow(), cut: machine.cut });
        }
        all
    }

    /// Starts a node; no effect on one that is on.
    pub async fn power_on(&self, name: &str) -> Result<()> {
        let mut machine = self.find(name)?.lock().await;
        if machine.pid.borrow().is_some() {
            return Ok(());
        }
        plug_in(&self.plan, &machine.plan).await?;
        machine.cut = false;
        let mut child = self.boot(&machine.plan)?;
        let outer = child.id().and_then(|pid| i32::try_from(pid).ok());
        let inner = loop {
            if let Some(status) = child.try_wait().during(|| format!("starting {name}"))? {
                let log = std::fs::read_to_string(boot_log(name)).unwrap_or_default();
                return Err(Error::Missing(format!("node {name} ended at once ({status}): {}", log.trim())));
            }
            if let Some(inner) = outer.and_then(child_of) {
                break inner.pid;
            }
            tokio::time::sleep(LOOK).await;
        };
        if let Some(outer) = outer {
            cgroup::move_out(&self.hierarchies, &Path::new(cgroup::ROOT).join("init"), outer)?;
        }
        let pid = machine.pid.clone();
        pid.send_replace(Some(inner));
        tokio::spawn(async move {
            let _ = child.wait().await;
            pid.send_replace(None);
        });
        Ok(())
    }

    fn boot(&self, node: &NodePlan) -> Result<Child> {
        let log = boot_log(&node.name);
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        let file = file.during(|| format!("opening {}", log.display()))?;
        let errors = file.try_clone().during(|| format!("opening {}", log.display()))?;
        let program = Path::new(LAB).join("lab");
        let mut command = Command::new(&program);
        command.arg("enter");
        for hierarchy in &self.hierarchies {
            let group = Path::new(cgroup::ROOT).join(&hierarchy.folder).join(&node.name);
            // a reboot clears control groups; kubelet would spend 3 s on each of a dead pod
            cgroup::remove(&group);
            command.arg("--group").arg(group);
        }
        command
            .args(["--", "setsid", "nsenter"])
            .arg(format!("--net=/run/netns/{}", node.place.netns()))
            .args(
                "unshare --mount --pid --uts --ipc --cgroup --fork --kill-child --propagation private tini -s --"
                    .split(' '),
            )
            .arg(&program)
            .args(["node-init", &node.name])
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors);
        command.spawn().during(|| format!("starting {}", node.name))
    }

    /// Power loss: SIGKILL to every process of the node.
    pub async fn power_off(&self, name: &str) -> Result<()> {
        let machine = self.find(name)?.lock().await;
        let mut pid = machine.pid.subscribe();
        let Some(first) = *pid.borrow_and_update() else { return Ok(()) };
        kill(Pid::from_raw(first), Signal::SIGKILL).during(|| format!("killing {name}"))?;
        let _ = pid.wait_for(Option::is_none).await;
        Ok(())
    }

    /// Pulls the cable, or plugs it in again.
    pub async fn set_cut(&self, name: &str, cut: bool) -> Result<()> {
        let mut machine = self.find(name)?.lock().await;
        let cable = machine.plan.place.cable();
        line(&format!("ip link set {cable} {}", if cut { "down" } else { "up" })).await?;
        machine.cut = cut;
        Ok(())
    }
}

fn boot_log(node: &str) -> PathBuf {
    node_share(node).join("log/boot.log")
}

/// A new network namespace with a new cable to the lab's bridge.
async fn plug_in(plan: &Plan, node: &NodePlan) -> Result<()> {
    let (netns, cable, ip) = (node.place.netns(), node.place.cable(), node.place.node());
    // remains of a power loss, if any
    let _ = line(&format!("ip link del {cable}")).await;
    let _ = line(&format!("ip netns del {netns}")).await;
    line(&format!("ip netns add {netns}")).await?;
    line(&format!("ip link add {cable} type veth peer name eth0 netns {netns}")).await?;
    line(&format!("ip link set {cable} master br0 up")).await?;
    line(&format!("ip -n {netns} link set lo up")).await?;
    line(&format!("ip -n {netns} addr add {ip}/{NODE_PREFIX} dev eth0")).await?;
    line(&format!("ip -n {netns} link set eth0 up")).await?;
    line(&format!("ip -n {netns} route add default via {API}")).await?;
    for other in plan.nodes.iter().filter(|other| other.name != node.name) {
        line(&format!("ip -n {netns} route add {} via {}", other.place.pods(), other.place.node())).await?;
    }
    Ok(())
}
