//! Operator and controller: memory and processor time, read on the nodes, and the controller's own counters.

use e2e::{
    Error, Result, World, product,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};

use crate::requests::Requests;

/// Deployment, account and label of the controller.
const CONTROLLER: &str = "gputenancy-virtual-clusters";
const OPERATOR: &str = "gputenancy-operator";
/// Requests of the controller.
pub const REQUESTS: Requests = Requests { flow: "gputenancy-bench-virtual-clusters", account: CONTROLLER };
/// `USER_HZ`, the unit of `/proc/PID/stat`: 100 on Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// The kernel cuts names after 15 characters.
const NAME: usize = 15;
/// Prints name, resident and anonymous memory and the highest resident in KiB, and ticks of the process and of its ended children.
const SCRIPT: &str = r#"for p in /proc/[0-9]*; do n=$(cat $p/comm 2>/dev/null) || continue; case $n in gputenancy-oper*|gputenancy-virt*)
    echo "$n $(awk '/^VmRSS/{r=$2} /^RssAnon/{a=$2} /^VmHWM/{h=$2} END{print r, a, h}' $p/status) $(awk '{print $14+$15, $16+$17}' $p/stat)";; esac; done"#;

/// One program. Of several replicas: memory of the largest, processor time of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Resident, in MiB.
    pub rss: f64,
    /// The part of it that is no file's, in MiB.
    pub own: f64,
    /// The highest resident since the start, in MiB.
    pub peak: f64,
    /// Processor time in seconds.
    pub cpu: f64,
    /// Processor time of ended children, in seconds.
    pub children: f64,
}

/// Both programs at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Both {
    pub operator: Usage,
    pub controller: Usage,
}

impl Both {
    /// Now.
    pub async fn of(world: &World) -> Result<Self> {
        let mut lines = String::new();
        for node in world.lab.node_names() {
            lines.push_str(&world.on_node(&node, &["sh", "-c", SCRIPT]).await?);
        }
        let both = Self::read(&lines);
        match (both.operator.rss > 0.0, both.controller.rss > 0.0) {
            (true, true) => Ok(both),
            _ => Err(Error::Wrong(format!("operator and controller do not both run: {lines}"))),
        }
    }

    fn read(lines: &str) -> Self {
        let mut both = Self::default();
        for line in lines.lines() {
            let Some((name, numbers)) = line.split_once(' ') else { continue };
            let numbers: Vec<f64> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            let [rss, own, peak, ticks, of_children] = numbers[..] else { continue };
            let is = |program: &str| program.get(..NAME) == Some(name);
            let sum = if is(CONTROLLER) {
                &mut both.controller
            } else if is(OPERATOR) {
                &mut both.operator
            } else {
                continue;
            };
            let larger = |one: &mut f64, kib: f64| *one = one.max(kib / 1024.0);
            larger(&mut sum.rss, rss);
            larger(&mut sum.own, own);
            larger(&mut sum.peak, peak);
            sum.cpu += ticks / TICKS_PER_SECOND;
            sum.children += of_children / TICKS_PER_SECOND;
        }
        both
    }
}

/// Counters of the controller since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Reconciles.
    pub reconciles: f64,
    /// Runs of `helm template`.
    pub renders: f64,
    /// Objects that were restored.
    pub repairs: f64,
}

impl Counters {
    /// Now. The error also reports a controller that was restarted, as one that used more memory than its limit.
    pub async fn of(world: &World) -> Result<Self> {
        let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
        let ours = pods.list(&ListParams::default().labels(&format!("app.kubernetes.io/name={CONTROLLER}"))).await?;
        let [pod] = ours.items.as_slice() else {
            return Err(Error::Wrong(format!("{} pods of the controller", ours.items.len())));
        };
        let containers = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
        let restarts: i32 = containers.map(|container| container.restart_count).sum();
        if restarts > 0 {
            return Err(Error::Wrong(format!("the controller has ended {restarts} times")));
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}:8080/proxy/metrics", product::NAMESPACE, pod.name_any());
        Ok(Self::read(&world.kubectl(&["get", "--raw", &path]).await?))
    }

    fn read(text: &str) -> Self {
        let sum = |metric: &str| -> f64 {
            let of = text.lines().filter(|l| l.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{')));
            // the sum of nothing is -0
            of.filter_map(|l| l.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() + 0.0
        };
        Self {
            reconciles: sum("gputenancy_virtual_clusters_reconciles_total"),
            renders: sum("gputenancy_virtual_clusters_renders_total"),
            repairs: sum("gputenancy_virtual_clusters_repairs_total"),
        }
    }

    /// The difference to an earlier reading.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            reconciles: self.reconciles - before.reconciles,
            renders: self.renders - before.renders,
            repairs: self.repairs - before.repairs,
        }
    }
}

/// Starts operator and controller again, and waits until one of the new operators leads.
pub async fn restart_both(world: &World) -> Result<()> {
    restart(world, OPERATOR).await?;
    restart(world, CONTROLLER).await?;
    let leases = Api::<Lease>::namespaced(world.client.clone(), product::NAMESPACE);
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let operators = ListParams::default().labels(&format!("app.kubernetes.io/name={OPERATOR}"));
    eventually("an operator that leads", PATIENCE, || async {
        let holder = leases.get(OPERATOR).await?.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let here: Vec<_> = pods.list(&operators).await?.iter().map(ResourceExt::name_any).collect();
        Ok(if here.contains(&holder) { Ok(()) } else { Err(format!("{holder} leads, {} run", here.join(", "))) })
    })
    .await
}

async fn restart(world: &World, name: &str) -> Result<()> {
    let deployment = format!("deployment/{name}");
    world.kubectl(&["rollout", "restart", "-n", product::NAMESPACE, &deployment]).await?;
    world.kubectl(&["rollout", "status", "-n", product::NAMESPACE, &deployment, "--timeout=5m"]).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={name}"));
    eventually(&format!("the former pods of {name} gone"), PATIENCE, || async {
        let ending = pods.list(&ours).await?.iter().filter(|p| p.metadata.deletion_timestamp.is_some()).count();
        Ok(if ending == 0 { Ok(()) } else { Err(format!("{ending} are ending")) })
    })
    .await
}

/// Starts the controller again, and waits until it has rendered this many releases.
pub async fn restart_controller(world: &World, releases: usize) -> Result<()> {
    restart(world, CONTROLLER).await?;
    #[expect(clippy::cast_precision_loss, reason = "hundreds")]
    let wanted = releases as f64;
    eventually("all releases rendered again", PATIENCE * 4, || async {
        let renders = Counters::of(world).await?.renders;
        Ok(if renders >= wanted { Ok(()) } else { Err(format!("{renders} renders")) })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_of_the_largest_replica_and_processor_time_of_all() {
        let lines = "\
gputenancy-oper 20480 10240 30720 100 0
gputenancy-oper 10240 8192 10240 50 0
gputenancy-virt 4096 2048 8192 200 1000
gputenancy-agen 4096 2048 8192 200 1000
gputenancy-virt
";
        let both = Both::read(lines);
        assert_eq!(both.operator, Usage { rss: 20.0, own: 10.0, peak: 30.0, cpu: 1.5, children: 0.0 });
        assert_eq!(both.controller, Usage { rss: 4.0, own: 2.0, peak: 8.0, cpu: 2.0, children: 10.0 });
    }

    #[test]
    fn counters_are_summed_over_results() {
        let text = "\
# TYPE gputenancy_virtual_clusters_renders counter
gputenancy_virtual_clusters_renders_total{result=\"ok\"} 3
gputenancy_virtual_clusters_renders_total{result=\"error\"} 1
gputenancy_virtual_clusters_reconciles_total{result=\"ok\"} 9
";
        assert_eq!(Counters::read(text), Counters { reconciles: 9.0, renders: 4.0, repairs: 0.0 });
    }

    /// Runs the script on this machine.
    #[test]
    fn script_runs_in_sh() {
        let output = std::process::Command::new("sh").args(["-c", SCRIPT]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}
