//! Watch of the pods on this node: their device requests, their containers with `envFrom`, the limits that other products give them, and
//! those that are deleted.

use std::{collections::BTreeMap, time::Instant};

use futures::StreamExt;
use gputenancy_cluster::error::sentence;
use gputenancy_crds::metadata::Unmanaged;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio::sync::watch;

use crate::{
    enforcement::{OtherLimits, PodCompute},
    environment::EnvFromContainers,
    kubelet::requests::{PodRequests, pod_name},
    overdue::TerminatingPods,
    seen_pods::SeenPods,
    watch_backoff,
};

/// Watches for as long as it is polled. Without the right to read pods, `requests` and `compute` stay `None`, and the others empty.
pub async fn watch(
    client: Client,
    node: &str,
    requests: &watch::Sender<Option<PodRequests>>,
    containers: &watch::Sender<EnvFromContainers>,
    limits: &watch::Sender<OtherLimits>,
    (compute, terminating): (&watch::Sender<Option<PodCompute>>, &watch::Sender<TerminatingPods>),
    seen: &SeenPods,
) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}")).streaming_lists();
    let mut events = watcher(Api::<Unmanaged<Pod>>::all(client), config).backoff(watch_backoff()).boxed();
    let (mut listed_requests, mut listed_containers) = (PodRequests::default(), EnvFromContainers::default());
    let (mut listed_pods, mut listed_limits) = (BTreeMap::new(), OtherLimits::default());
    let (mut listed_compute, mut listed_terminating) = (PodCompute::default(), TerminatingPods::default());
    let mut warned = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                (listed_requests, listed_containers) = (PodRequests::default(), EnvFromContainers::default());
                listed_pods.clear();
                listed_limits = OtherLimits::default();
                (listed_compute, listed_terminating) = (PodCompute::default(), TerminatingPods::default());
            }
            Ok(Event::InitApply(Unmanaged(pod))) => {
                listed_pods.extend(pod.uid().map(|uid| (uid, pod_name(&pod))));
                listed_requests.apply(&pod, Instant::now());
                listed_containers.apply(&pod);
                listed_limits.apply(&pod);
                listed_compute.apply(&pod);
                listed_terminating.apply(&pod);
            }
            // a list has no times: after a broken watch, all its pods count as bound just now
            Ok(Event::InitDone) => {
                requests.send_replace(Some(std::mem::take(&mut listed_requests)));
                containers.send_replace(std::mem::take(&mut listed_containers));
                limits.send_replace(std::mem::take(&mut listed_limits));
                compute.send_replace(Some(std::mem::take(&mut listed_compute)));
                terminating.send_replace(std::mem::take(&mut listed_terminating));
                seen.are(std::mem::take(&mut listed_pods));
            }
            Ok(Event::Apply(Unmanaged(pod))) => {
                seen.exists(pod.metadata.uid.as_deref().unwrap_or_default(), pod_name(&pod));
                requests.send_if_modified(|known| known.as_mut().is_some_and(|r| r.apply(&pod, Instant::now())));
                containers.send_if_modified(|containers| containers.apply(&pod));
                limits.send_if_modified(|limits| limits.apply(&pod));
                compute.send_if_modified(|known| known.as_mut().is_some_and(|c| c.apply(&pod)));
                terminating.send_if_modified(|known| known.apply(&pod));
            }
            Ok(Event::Delete(Unmanaged(pod))) => {
                seen.deleted(pod.metadata.uid.as_deref().unwrap_or_default());
                requests.send_if_modified(|known| known.as_mut().is_some_and(|r| r.delete(&pod)));
                containers.send_if_modified(|containers| containers.delete(&pod));
                limits.send_if_modified(|limits| limits.delete(&pod));
                compute.send_if_modified(|known| known.as_mut().is_some_and(|c| c.delete(&pod)));
                terminating.send_if_modified(|known| known.delete(&pod));
            }
            Err(error) if !warned => {
                tracing::warn!(
                    error = sentence(&error),
                    "watch of this node's pods failed; pods that are being bound may fail when devices are withdrawn"
                );
                warned = true;
            }
            Err(error) => tracing::debug!(error = sentence(&error), "watch of this node's pods failed"),
        }
    }
}
