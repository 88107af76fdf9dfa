//! Ends processes that have kept a device for too long after kubelet forgot their pod.

use std::{collections::BTreeSet, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    occupied::{PodKey, pod_key},
    withdrawal::{Overdue, ProcessKey},
};
use crate::{
    device::DeviceOwner,
    gpu::processes::process_origin::{Origin, Origins, start_time},
    grpc::pod_resources::PodResources,
    metrics::Metrics,
    warm_up::are_pods,
};

/// What happens to processes that occupy a withdrawn device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// The device stays withdrawn until they end.
    #[default]
    Wait,
    /// Those of containers that kubelet no longer knows are killed after the deadline.
    Terminate,
}

/// How processes are found, and what happens to those that occupy a withdrawn device.
#[derive(Clone)]
pub struct ProcessPolicy {
    /// Where processes come from.
    pub origins: Origins,
    /// Ends them; none with [`Policy::Wait`].
    pub terminator: Option<Terminator>,
}

/// Kills processes.
#[derive(Clone)]
pub struct Terminator {
    /// How long a process is waited for.
    pub deadline: Duration,
    /// Where processes come from.
    pub origins: Origins,
    /// Kubelet's pods.
    pub pod_resources: PodResources,
    /// Counts the killed processes.
    pub metrics: Metrics,
}

impl Terminator {
    /// Kills those of these processes whose pod kubelet does not list now, and returns them. If kubelet does not answer, none.
    pub async fn end(&self, overdue: &[Overdue]) -> Vec<ProcessKey> {
        if overdue.is_empty() {
            return Vec::new();
        }
        let pods = match self.pod_resources.pods().await {
            Ok(pods) if are_pods(&pods) => pods,
            Ok(_) => {
                tracing::debug!("kubelet lists no pod yet: no unattributed process is ended");
                return Vec::new();
            }
            Err(status) => {
                tracing::debug!(%status, "kubelet does not list its pods: no unattributed process is ended");
                return Vec::new();
            }
        };
        let ended = overdue.iter().filter(|process| self.end_forgotten(process, &pods));
        ended.map(|overdue| overdue.process).collect()
    }

    fn end_forgotten(&self, overdue: &Overdue, pods: &BTreeSet<PodKey>) -> bool {
        let Overdue { process: (pid, start), container, device } = overdue;
        let now = (self.origins.of(*pid), start_time(&self.origins.proc_root, *pid));
        let Some(raw) = i32::try_from(*pid).ok().filter(|_| may_end(pods, container, *start, &now)) else {
            return false;
        };
        let pod = format!("{}/{}", container.namespace, container.pod);
        if let Err(error) = kill(Pid::from_raw(raw), Signal::SIGKILL) {
            tracing::warn!(pid, pod, %error, "killing unattributed process failed");
            return false;
        }
        tracing::warn!(pid, pod, container = container.container, %device, "killed unattributed process");
        self.metrics.terminated_process();
        true
    }
}

/// Kubelet lists no such pod, or lists a later one with the same name, and the id still belongs to the same process of the same container.
fn may_end(pods: &BTreeSet<PodKey>, container: &DeviceOwner, start: u64, now: &(Origin, Option<u64>)) -> bool {
    let (origin, began) = now;
    let of_container = match origin {
        Origin::Pod(found) => found.as_ref() == Some(container) && !pods.contains(&pod_key(container)),
        Origin::Former(found, _) => found.as_ref() == Some(container),
        Origin::Ended | Origin::Node => false,
    };
    of_container && *began == Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_process_of_a_forgotten_pod_may_be_ended() {
        let container = DeviceOwner { namespace: "team-a".into(), pod: "p".into(), container: "c".into() };
        let other = DeviceOwner { pod: "q".into(), ..container.clone() };
        let (forgotten, listed) = (BTreeSet::new(), BTreeSet::from([pod_key(&container)]));
        let process = |origin: Origin, start: u64| (origin, Some(start));
        let same = process(Origin::Pod(Some(container.clone())), 7);
        assert!(may_end(&forgotten, &container, 7, &same));
        assert!(!may_end(&listed, &container, 7, &same), "kubelet lists the pod");
        let former = process(Origin::Former(Some(container.clone()), "uid".into()), 7);
        assert!(may_end(&listed, &container, 7, &former), "kubelet lists a later pod with its name");
        for now in [
            process(Origin::Pod(Some(container.clone())), 8),
            process(Origin::Pod(Some(other)), 7),
            process(Origin::Pod(None), 7),
            process(Origin::Node, 7),
            (Origin::Ended, None),
        ] {
            assert!(!may_end(&forgotten, &container, 7, &now), "{now:?}");
        }
    }
}
