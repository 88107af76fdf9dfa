//! Looks at each suspect once, tells and stops.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use gputenancy_crds::{GpuGrant, names::GRANT};
use gputenancy_service::events::Publisher;
use kube::{Api, Client};
use tokio::{sync::watch, time::sleep};

use super::{
    Suspect, Suspects, event,
    runtime::{self, Runtime, Started},
    verdict::{self, Rightly, family, hidden},
};
use crate::{
    device::{DeviceId, DeviceOwner, DeviceView},
    kubelet::{allocatable::ours, pods::PodResources},
    metrics::Metrics,
};

/// After a look that failed.
const AGAIN: Duration = Duration::from_secs(10);

/// What happens to a container with a variable that may not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Answer {
    /// It is told in an event, and the container is stopped.
    Stop,
    /// It is told in an event.
    Tell,
}

/// Why a look failed; it is tried again.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    #[error("reading the grant of the namespace: {0}")]
    Grant(#[from] kube::Error),
    #[error("kubelet's pod resources API: {0}")]
    Kubelet(#[from] tonic::Status),
}

/// What the guard knows and may do.
pub struct Guard {
    /// What happens.
    pub answer: Answer,
    /// What `NVIDIA_DRIVER_CAPABILITIES` may name.
    pub capabilities: Vec<String>,
    /// The container runtime.
    pub runtime: Runtime,
    /// The socket of kubelet's pod resources API.
    pub pod_resources: PathBuf,
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// The API server.
    pub client: Client,
    /// Events about what was found.
    pub publisher: Publisher,
    /// What was found is counted.
    pub metrics: Metrics,
}

impl Guard {
    /// Looks for as long as it is polled.
    pub async fn keep(self, mut suspects: watch::Receiver<Suspects>) {
        let (mut seen, mut told) = (BTreeSet::new(), BTreeSet::new());
        let mut trouble = None;
        loop {
            let now: Vec<Suspect> = suspects.borrow_and_update().iter().cloned().collect();
            let here = |id: &String| now.iter().any(|suspect| suspect.id == *id);
            seen.retain(here);
            told.retain(here);
            let (mut failed, mut why) = (0, None);
            for suspect in now.iter().filter(|suspect| !seen.contains(&suspect.id)).collect::<Vec<_>>() {
                match self.look(suspect, &mut told).await {
                    Ok(()) => {
                        seen.insert(suspect.id.clone());
                    }
                    Err(error) => (failed, why) = (failed + 1, Some(error.to_string())),
                }
            }
            self.metrics.set_unseen_environments(failed);
            if let Some(why) = why.as_ref().filter(|_| why != trouble) {
                tracing::warn!(containers = failed, "variables from envFrom cannot be looked at: {why}");
            }
            trouble = why;
            tokio::select! {
                changed = suspects.changed() => if changed.is_err() { return },
                () = sleep(AGAIN), if failed > 0 => {}
            }
        }
    }

    /// Looks at one container. Only when there is something to explain are others asked than the runtime.
    async fn look(&self, suspect: &Suspect, told: &mut BTreeSet<String>) -> Result<(), Error> {
        let Some(started) = self.runtime.started(&suspect.id).await? else { return Ok(()) };
        let mut rightly = Rightly { gpu: suspect.gpu, written: suspect.written.clone(), ..Rightly::default() };
        if hidden(&started.env, &rightly, &self.capabilities).is_empty() {
            return Ok(());
        }
        rightly.image = self.runtime.image(&started).await?;
        rightly.elsewhere = !self.view.borrow().advertiser.is_agent();
        if suspect.gpu {
            rightly.held = self.held(suspect).await?;
        }
        let variables = hidden(&started.env, &rightly, &self.capabilities);
        if variables.is_empty() || !self.governed(suspect).await? {
            return Ok(());
        }
        if told.insert(suspect.id.clone()) {
            self.tell(suspect, &variables).await;
        }
        self.stop(suspect, &started).await
    }

    async fn stop(&self, suspect: &Suspect, started: &Started) -> Result<(), Error> {
        if self.answer == Answer::Stop && started.runs {
            self.runtime.stop(&suspect.id, started).await?;
        }
        Ok(())
    }

    /// An event that is lost does no harm, so failure is only logged.
    async fn tell(&self, suspect: &Suspect, variables: &[&str]) {
        let stopped = self.answer == Answer::Stop;
        let families: BTreeSet<verdict::Family> = variables.iter().filter_map(|name| family(name)).collect();
        for family in families {
            self.metrics.hidden_variable(family.label(), stopped);
        }
        let Suspect { namespace, pod, container, .. } = suspect;
        tracing::warn!(namespace, pod, container, stopped, "variables that may not be there: {}", variables.join(", "));
        self.publisher.publish(event::notice(suspect, variables, self.answer)).await;
    }

    /// Names of the devices that kubelet gave to a container.
    async fn held(&self, suspect: &Suspect) -> Result<BTreeSet<String>, Error> {
        let Suspect { namespace, pod, container, .. } = suspect;
        let owner = DeviceOwner { namespace: namespace.clone(), pod: pod.clone(), container: container.clone() };
        let all = PodResources::at(&self.pod_resources).owners(ours).await?;
        let view = self.view.borrow();
        Ok(all.iter().filter(|(_, has)| **has == owner).map(|(id, _)| uuid(id, &view)).collect())
    }

    /// Is it a tenant's, and was it made under the tenant's policies? What was there before the grant is left alone.
    async fn governed(&self, suspect: &Suspect) -> Result<bool, Error> {
        let grants: Api<GpuGrant> = Api::namespaced(self.client.clone(), &suspect.namespace);
        let Some(grant) = grants.get_opt(GRANT).await? else { return Ok(false) };
        let since = grant.metadata.creation_timestamp.map(|time| time.0);
        Ok(suspect.created >= since)
    }
}

/// UUID of a device in the driver.
fn uuid(id: &DeviceId, view: &DeviceView) -> String {
    let legacy = view.devices.iter().find(|device| device.legacy_id().as_ref() == Some(id));
    legacy.map_or(id.uuid(), |device| device.id.as_str()).to_owned()
}
