//! Watch of the pods on this node: their device requests, their containers with `envFrom`, the limits that other products give them, and
//! those that are deleted.

use std::{collections::BTreeMap, time::Instant};

use futures::StreamExt;
use gputenancy_cluster::watch::{FanOut, Published, Restarts, Sink, events};
use gputenancy_crds::projection::NodePod;
use kube::{Api, Client, ResourceExt as _, runtime::watcher};
use tokio::sync::watch;

use crate::{
    LONGEST_WATCH_DELAY,
    enforcement::{OtherLimits, PodCompute},
    forbidden_variables::EnvFromContainers,
    kubelet::node::requests::PodRequests,
    pods_past_grace::TerminatingPods,
    seen_pods::{PodName, SeenPods, pod_name},
};

/// What is known of the pods of this node. Without the right to read pods, those that can be unknown stay so, and the others empty.
#[derive(Debug)]
pub struct PodIndexes<'s> {
    /// Their requests for devices.
    pub requests: &'s watch::Sender<Option<PodRequests>>,
    /// Their containers with `envFrom`.
    pub containers: &'s watch::Sender<EnvFromContainers>,
    /// The limits that other products give them.
    pub limits: &'s watch::Sender<OtherLimits>,
    /// Their wishes for compute.
    pub compute: &'s watch::Sender<Option<PodCompute>>,
    /// Those that are being deleted.
    pub terminating: &'s watch::Sender<TerminatingPods>,
    /// Those that exist or existed.
    pub seen: &'s SeenPods,
}

impl<'s> PodIndexes<'s> {
    fn sinks(self) -> FanOut<'s, NodePod> {
        let Self { requests, containers, limits, compute, terminating, seen } = self;
        // a list has no times: after a broken watch, all its pods count as bound just now
        let apply = |requests: &mut PodRequests, pod: &NodePod| requests.apply(pod, Instant::now());
        FanOut::default()
            .to(Seen { pods: seen, listed: BTreeMap::new() })
            .to(Published::new(requests, apply, PodRequests::delete))
            .to(Published::new(containers, EnvFromContainers::apply, EnvFromContainers::delete))
            .to(Published::new(limits, OtherLimits::apply, OtherLimits::delete))
            .to(Published::new(compute, PodCompute::apply, PodCompute::delete))
            .to(Published::new(terminating, TerminatingPods::apply, TerminatingPods::delete))
    }
}

/// Watches for as long as it is polled.
pub async fn watch(client: Client, node: &str, indexes: PodIndexes<'_>) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let mut events = events(Api::<NodePod>::all(client), config, LONGEST_WATCH_DELAY).boxed();
    let mut restarts = Restarts::new("pods").meanwhile("pods that are being bound may fail when devices are withdrawn");
    let mut sinks = indexes.sinks();
    while let Some(event) = events.next().await {
        if let Some(event) = restarts.note(event) {
            sinks.pass(&event, |pod| pod);
        }
    }
}

/// Records which pods exist.
struct Seen<'s> {
    pods: &'s SeenPods,
    listed: BTreeMap<String, PodName>,
}

impl Sink<NodePod> for Seen<'_> {
    fn begin(&mut self) {
        self.listed.clear();
    }

    fn listed(&mut self, pod: &NodePod) {
        self.listed.extend(pod.uid().map(|uid| (uid, pod_name(pod))));
    }

    fn end(&mut self) {
        self.pods.are(std::mem::take(&mut self.listed));
    }

    fn apply(&mut self, pod: &NodePod) {
        self.pods.exists(pod.metadata.uid.as_deref().unwrap_or_default(), pod_name(pod));
    }

    fn delete(&mut self, pod: &NodePod) {
        self.pods.deleted(pod.metadata.uid.as_deref().unwrap_or_default());
    }
}
