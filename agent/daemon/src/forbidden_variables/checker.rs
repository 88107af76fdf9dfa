//! Checks each container with `envFrom` once, publishes violations, and stops the container if configured.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::future::join_all;
use gputenancy_cluster::{error::sentence, events::Publisher};
use gputenancy_crds::{GpuGrant, names};
use kube::{Api, Client};
use tokio::{sync::watch, time::sleep};

use super::{
    Enforcement, EnvFromContainer, EnvFromContainers,
    enforcement::notice,
    runtime::{self, Runtime, StartedContainer},
    violations::{AllowedEnvironment, Environment, group, violations},
};
use crate::{
    device::{DeviceId, DeviceOwner, DeviceView},
    kubelet::plugin::owner_lookup::OwnerLookup,
    metrics::Metrics,
};

/// What an event names instead of variables that cannot be read: many would hide a forbidden one.
const TOO_LARGE: &str = "more variables than can be checked (about 1 MiB)";
/// Delay of the retry after a failed check.
const RETRY: Duration = Duration::from_secs(10);

/// Why a check failed; it is retried.
type Error = Box<dyn std::error::Error>;

/// Checks the environments of a node's containers.
pub struct EnvironmentChecker {
    /// Containers with `envFrom`.
    pub containers: watch::Receiver<EnvFromContainers>,
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// What happens to a container with violations.
    pub enforcement: Enforcement,
    /// Allowed values of `NVIDIA_DRIVER_CAPABILITIES`.
    pub capabilities: Vec<String>,
    /// The container runtime.
    pub runtime: Runtime,
    /// Owners of devices.
    pub lookup: OwnerLookup,
    /// The API server.
    pub client: Client,
    /// Publishes events about violations.
    pub publisher: Publisher,
    /// Counts violations.
    pub metrics: Metrics,
}

impl EnvironmentChecker {
    /// Checks for as long as it is polled.
    pub async fn run(self) {
        let mut containers = self.containers.clone();
        let (mut checked, mut published) = (BTreeSet::new(), BTreeSet::new());
        let mut last_error = None;
        loop {
            let current: Vec<EnvFromContainer> = containers.borrow_and_update().iter().cloned().collect();
            let exists = |id: &String| current.iter().any(|container| container.id == *id);
            checked.retain(exists);
            published.retain(exists);
            let (mut failed, mut error, mut stops) = (0, None, Vec::new());
            // one after the other, because the variables of each may take megabytes
            let pending: Vec<_> = current.iter().filter(|container| !checked.contains(&container.id)).collect();
            for container in pending {
                match self.check(container, &mut published).await {
                    Ok(None) => drop(checked.insert(container.id.clone())),
                    Ok(Some(started)) => stops.push((&container.id, started)),
                    Err(failure) => (failed, error) = (failed + 1, Some(failure.to_string())),
                }
            }
            // at the same time, because each may ignore SIGTERM: a hundred of a team must not delay that of another one
            for (id, stopped) in join_all(stops.iter().map(|(id, started)| self.stop(id, started))).await {
                match stopped {
                    Ok(()) => drop(checked.insert(id.to_owned())),
                    Err(failure) => (failed, error) = (failed + 1, Some(failure.to_string())),
                }
            }
            self.metrics.set_unchecked_environments(failed);
            if let Some(error) = error.as_ref().filter(|_| error != last_error) {
                tracing::warn!(containers = failed, error, "environments not checked");
            }
            last_error = error;
            tokio::select! {
                changed = containers.changed() => if changed.is_err() { return },
                () = sleep(RETRY), if failed > 0 => {}
            }
        }
    }

    async fn stop<'a>(&self, id: &'a str, started: &StartedContainer) -> (&'a str, Result<(), runtime::Error>) {
        (id, self.runtime.stop(id, started).await)
    }

    /// Checks one container, and returns it if it is to be stopped. Image, kubelet and API server are queried only if there is something to
    /// explain.
    async fn check(
        &self,
        container: &EnvFromContainer,
        published: &mut BTreeSet<String>,
    ) -> Result<Option<StartedContainer>, Error> {
        let Some(started) = self.runtime.container(&container.id).await? else { return Ok(None) };
        let manifest = container.manifest.clone();
        let mut allowed = AllowedEnvironment { gpu: container.gpu, manifest, ..AllowedEnvironment::default() };
        let variables = if started.too_large {
            vec![TOO_LARGE]
        } else if violations(&started.env, &allowed, &self.capabilities).is_empty() {
            return Ok(None);
        } else {
            allowed.image = self.runtime.image(&started).await?;
            allowed.other_plugin = !self.view.borrow().advertiser.is_agent();
            if container.gpu {
                allowed.devices = self.devices(container).await?;
            }
            violations(&started.env, &allowed, &self.capabilities)
        };
        if variables.is_empty() || !self.is_governed(container).await? {
            return Ok(None);
        }
        if published.insert(container.id.clone()) {
            self.publish(container, &variables).await;
        }
        let stops = self.enforcement == Enforcement::Stop && started.running;
        // without its variables, which may take a megabyte
        let mut ended = started;
        ended.env = Environment::new();
        Ok(stops.then_some(ended))
    }

    async fn publish(&self, container: &EnvFromContainer, variables: &[&str]) {
        let stopped = self.enforcement == Enforcement::Stop;
        for group in variables.iter().filter_map(|name| group(name)).collect::<BTreeSet<_>>() {
            self.metrics.hidden_variable(format!("{group:?}").to_lowercase(), stopped);
        }
        let EnvFromContainer { namespace, pod, name, .. } = container;
        let names = variables.join(", ");
        tracing::warn!(namespace, pod, container = name, variables = names, stopped, "forbidden variables");
        self.publisher.publish(notice(container, variables, self.enforcement)).await;
    }

    /// UUIDs of the devices that kubelet allocated to a container.
    async fn devices(&self, container: &EnvFromContainer) -> Result<BTreeSet<String>, Error> {
        let EnvFromContainer { namespace, pod, name, .. } = container.clone();
        let owner = DeviceOwner { namespace, pod, container: name };
        let owners = self.lookup.owners().await;
        let owners = owners.map_err(|status| format!("kubelet's pod resources API: {}", status.message()))?;
        let view = self.view.borrow();
        let devices: BTreeSet<String> =
            owners.iter().filter(|(_, other)| **other == owner).map(|(id, _)| uuid(id, &view)).collect();
        if devices.is_empty() && !self.lookup.warm_up.kubelet_is_warm(Instant::now()) {
            return Err("kubelet has just started, and does not list the container's devices yet".into());
        }
        Ok(devices)
    }

    /// The namespace is a tenant's, and the pod was created under the tenant's policies, not before the grant.
    async fn is_governed(&self, container: &EnvFromContainer) -> Result<bool, Error> {
        let grants: Api<GpuGrant> = Api::namespaced(self.client.clone(), &container.namespace);
        let grant = grants
            .get_opt(names::GRANT)
            .await
            .map_err(|error| format!("reading the grant of the namespace: {}", sentence(&error)));
        let Some(grant) = grant? else { return Ok(false) };
        let since = grant.metadata.creation_timestamp.map(|time| time.0);
        Ok(container.created >= since)
    }
}

/// UUID of a device in the driver.
fn uuid(id: &DeviceId, view: &DeviceView) -> String {
    let legacy = view.devices.iter().find(|device| device.legacy_id().as_ref() == Some(id));
    legacy.map_or(id.uuid(), |device| device.id.as_str()).to_owned()
}
