//! Does what [`step`](super::step) decides, and tells the rest of the agent what came of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gputenancy_crds::{Advertiser, AgentStep, GpuError, GpuNodeSpec};
use gputenancy_nvml::code;
use tokio::sync::watch;

use super::{
    idle::{Idleness, PROOF},
    offer::{devices, instance_id},
    policy::{self, Policy, policy},
    progress::{GpuProgress, of_order, of_rest},
    step::{Decision, Facts, Rest, step},
};
use crate::{
    device::{Device, DeviceId, DeviceView, KubeletView, Owners, owner_of},
    gpu::{Depth, Inventory, Order, OrderError, SeenGpu, SeenInstance, Silicon, Trouble, health::RecordedFault},
    metrics::Metrics,
};

/// The layout wanted, as `GpuNode` gives it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Generation of the spec.
    pub generation: i64,
    /// The spec.
    pub spec: GpuNodeSpec,
    /// Failures that an earlier run of the agent wrote down.
    pub recorded: BTreeMap<String, GpuError>,
    /// Faults that an earlier run wrote down since the node booted.
    pub faults: Vec<RecordedFault>,
}

impl Wanted {
    /// Is a device held, so that it may soon have to go?
    pub fn holds(&self) -> bool {
        self.spec.gpus.iter().any(|gpu| !gpu.hold.is_empty())
    }
}

/// Where carving stands: what the status is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carved {
    /// Generation of the spec that `gpus` speaks of; `None` before the first spec was read.
    pub generation: Option<i64>,
    /// What NVML showed last.
    pub inventory: Option<Inventory>,
    /// Why NVML does not answer now.
    pub trouble: Option<Trouble>,
    /// Who had which device by kubelet's word before that look; `None` until kubelet has spoken. Asked first: a process that the
    /// look still found is then its owner's, and not one that nobody answers for because the owner was gone by the time of writing.
    pub owners: Option<Owners>,
    /// Progress of each GPU that NVML shows, by UUID.
    pub gpus: BTreeMap<String, GpuProgress>,
    /// GPUs that the spec names and NVML does not show.
    pub absent: Vec<String>,
}

impl Carved {
    /// Is some GPU waiting for a thing that passes soon?
    pub fn is_waiting(&self) -> bool {
        self.gpus.values().any(|gpu| {
            !matches!(gpu.step, AgentStep::Steady | AgentStep::Unmanaged | AgentStep::Failed | AgentStep::LeftAlone)
        })
    }
}

struct Failure {
    error: GpuError,
    retry_at: Option<Instant>,
}

/// The carver of one node.
pub struct Shell {
    silicon: Silicon,
    metrics: Metrics,
    kubelet: watch::Receiver<KubeletView>,
    view: watch::Sender<DeviceView>,
    carved: watch::Sender<Carved>,
    generation: Option<i64>,
    /// Faults of an earlier run have been taken over, or have lost their meaning.
    recalled: bool,
    /// How long what must go has to be unused.
    proof: Duration,
    /// Since when it is.
    idle: Idleness,
    /// Something has to go: files that processes have open are looked at as well.
    suspicious: bool,
    failures: BTreeMap<String, Failure>,
    /// Processes that kept a GPU's instance from being destroyed, by the last look before the call; until a call succeeds.
    blockers: BTreeMap<String, Vec<u32>>,
    /// GPUs with blockers that are left alone until everything has come to rest.
    spared: BTreeSet<String>,
    /// Orders that succeeded since everything was at rest.
    done: Vec<(String, Order)>,
    /// Generation of the view that offered a device last.
    offered_at: BTreeMap<DeviceId, u64>,
    /// Every GPU has come to rest once: what the view says is the layout, not a part of it.
    proven: bool,
    /// How long the last look took.
    look_took: Duration,
}

impl Shell {
    /// A carver that publishes devices to `view` and its progress to `carved`.
    pub fn new(
        silicon: Silicon,
        metrics: Metrics,
        kubelet: watch::Receiver<KubeletView>,
        view: watch::Sender<DeviceView>,
        carved: watch::Sender<Carved>,
    ) -> Self {
        Self {
            silicon,
            metrics,
            kubelet,
            view,
            carved,
            generation: None,
            recalled: false,
            proof: PROOF,
            idle: Idleness::default(),
            suspicious: false,
            failures: BTreeMap::new(),
            blockers: BTreeMap::new(),
            spared: BTreeSet::new(),
            done: Vec::new(),
            offered_at: BTreeMap::new(),
            proven: false,
            look_took: Duration::ZERO,
        }
    }

    /// With another time than [`PROOF`] between the two looks that see something unused.
    #[must_use]
    pub fn with_proof(self, proof: Duration) -> Self {
        Self { proof, ..self }
    }

    /// How long the last look took.
    pub fn look_took(&self) -> Duration {
        self.look_took
    }

    /// How long until something that was seen unused may have been so for long enough.
    pub fn until_proven(&self) -> Option<Duration> {
        self.idle.until(self.proof, Instant::now())
    }

    /// Looks, and takes one step on each GPU that needs one. True: there is more to do at once, by the spec that holds by then.
    /// Without a spec it touches nothing.
    pub async fn pass(&mut self, wanted: Option<&Wanted>, depth: Depth) -> bool {
        let searches = self.suspicious || wanted.is_some_and(Wanted::holds);
        let begun = Instant::now();
        let owners = self.kubelet.borrow().known_owners().cloned();
        let inventory = match self.silicon.look(depth, searches).await {
            Ok(inventory) => inventory,
            Err(trouble) => return self.suffer(trouble),
        };
        let now = Instant::now();
        self.look_took = now.saturating_duration_since(begun);
        // at rest nobody searches open files: such a look proves nothing
        self.idle = if searches { self.idle.after(&inventory.gpus, now) } else { Idleness::default() };
        let Some(wanted) = wanted else {
            self.publish(None, (inventory, owners), &BTreeMap::new());
            return false;
        };
        if !self.recalled {
            let faults: Vec<RecordedFault> =
                wanted.faults.iter().filter(|fault| fault.still_holds(&inventory)).cloned().collect();
            match self.silicon.recall(faults).await {
                Ok(()) => self.recalled = true,
                Err(trouble) => return self.suffer(trouble),
            }
            if !wanted.faults.is_empty() {
                return true;
            }
        }
        self.adopt(wanted);
        let decisions = self.decide(wanted, &inventory, now);
        self.suspicious = !decisions
            .values()
            .all(|decision| matches!(decision, Decision::Rest(Rest::Steady | Rest::Failed(_) | Rest::LeftAlone)));
        self.publish(Some(wanted), (inventory, owners), &decisions);
        let orders: Vec<(String, Order)> = decisions.iter().filter_map(order).collect();
        if orders.is_empty() {
            self.done.clear();
            self.spared.clear();
            return false;
        }
        // What a glance made look necessary is looked at properly before it is done.
        if depth == Depth::Shallow {
            return true;
        }
        for (uuid, order) in orders {
            if self.done.contains(&(uuid.clone(), order.clone())) {
                // Due again right after it succeeded: taking it once more would go on for ever.
                self.fail(wanted, &uuid, &order.to_string(), OrderError::NoEffect { call: order.call() });
            } else if let Err(trouble) = self.obey(wanted, &uuid, order).await {
                return self.suffer(trouble);
            }
        }
        true
    }

    /// A new generation starts with a clean slate; failures of this one that an earlier run met still stand.
    fn adopt(&mut self, wanted: &Wanted) {
        if self.generation == Some(wanted.generation) {
            return;
        }
        let first = self.generation.replace(wanted.generation).is_none();
        self.failures.clear();
        self.blockers.clear();
        self.spared.clear();
        self.done.clear();
        for (uuid, error) in wanted.recorded.iter().filter(|_| first) {
            if error.generation == wanted.generation && policy::for_record(error) == Policy::NewSpec {
                self.failures.insert(uuid.clone(), Failure { error: error.clone(), retry_at: None });
            }
        }
    }

    /// May kubelet still give this away, or has it?
    fn taken(&self, gpu: &SeenGpu, seen: Option<&SeenInstance>) -> bool {
        let id = seen.map_or_else(|| DeviceId::whole(&gpu.uuid), |seen| instance_id(gpu, seen));
        let offered_at = self.offered_at.get(&id).copied().unwrap_or(0);
        let kubelet = self.kubelet.borrow();
        let uuid = seen.and_then(|seen| seen.compute.first()).and_then(|compute| compute.uuid.as_deref());
        kubelet.applied_generation <= offered_at || owner_of(&kubelet.owners, &id, uuid).is_some()
    }

    fn decide(&self, wanted: &Wanted, inventory: &Inventory, now: Instant) -> BTreeMap<String, Decision> {
        let decide = |gpu: &SeenGpu| {
            let spec = wanted.spec.gpus.iter().find(|spec| spec.uuid == gpu.uuid)?;
            if let Some(trouble) = &gpu.trouble {
                // What is known of this GPU is old: nothing is decided on it.
                let error = policy::record(&OrderError::Nvml(trouble.clone()), "reading the GPU", wanted.generation);
                return Some((gpu.uuid.clone(), Decision::Rest(Rest::Failed(error))));
            }
            if self.spared.contains(&gpu.uuid) {
                return Some((gpu.uuid.clone(), Decision::Rest(Rest::WaitingForClients { starts: Vec::new() })));
            }
            let failure = self.failures.get(&gpu.uuid);
            let failure = failure.filter(|failure| failure.retry_at.is_none_or(|at| now < at));
            let facts = Facts {
                generation: wanted.generation,
                carves: wanted.spec.partitioner.is_agent(),
                taken: &|seen| self.taken(gpu, seen),
                idle: &|seen| self.idle.lasted(&gpu.uuid, seen.map(|seen| seen.gi), self.proof, now),
                failure: failure.map(|failure| &failure.error),
            };
            let decision = step(spec, gpu, &facts);
            Some((gpu.uuid.clone(), decision))
        };
        inventory.gpus.iter().filter_map(decide).collect()
    }

    async fn obey(&mut self, wanted: &Wanted, uuid: &str, order: Order) -> Result<(), Trouble> {
        let (name, doing) = (order.name(), order.to_string());
        tracing::info!(gpu = uuid, generation = wanted.generation, "{doing}");
        let outcome = self.silicon.carry_out(uuid, order.clone()).await?;
        self.metrics.step(name, outcome.is_ok());
        match outcome {
            Ok(()) => {
                self.done.push((uuid.to_owned(), order));
                self.failures.remove(uuid);
                self.blockers.remove(uuid);
            }
            Err(error) => self.fail(wanted, uuid, &doing, error),
        }
        Ok(())
    }

    fn fail(&mut self, wanted: &Wanted, uuid: &str, doing: &str, error: OrderError) {
        tracing::warn!(gpu = uuid, generation = wanted.generation, %error, "{doing}");
        let retry_at = match policy(&error) {
            Policy::Wait => {
                let pids = if let OrderError::InUse { pids } = error { pids } else { Vec::new() };
                self.idle.forget(uuid);
                self.blockers.insert(uuid.to_owned(), pids);
                self.spared.insert(uuid.to_owned());
                return;
            }
            Policy::Retry(after) => Some(Instant::now() + after),
            Policy::NewSpec => None,
        };
        let error = policy::record(&error, doing, wanted.generation);
        self.failures.insert(uuid.to_owned(), Failure { error, retry_at });
    }

    /// NVML as a whole does not answer: what ran runs on, nothing new is given out.
    fn suffer(&mut self, trouble: Trouble) -> bool {
        self.idle = Idleness::default();
        // A driver that has yet to be loaded resets what it finds.
        self.recalled |= matches!(&trouble, Trouble::Nvml(failure) if failure.code == code::DRIVER_NOT_LOADED);
        let DeviceView { mut devices, advertiser, .. } = self.view.borrow().clone();
        for device in &mut devices {
            device.healthy = false;
        }
        self.offer(devices, advertiser);
        let owners = self.kubelet.borrow().known_owners().cloned();
        self.carved.send_if_modified(|carved| {
            let others = carved.owners != owners;
            carved.owners = owners;
            if carved.trouble.as_ref() == Some(&trouble) {
                return others;
            }
            tracing::warn!(%trouble, "NVML does not answer");
            carved.trouble = Some(trouble);
            true
        });
        false
    }

    fn publish(
        &mut self,
        wanted: Option<&Wanted>,
        (inventory, owners): (Inventory, Option<Owners>),
        decisions: &BTreeMap<String, Decision>,
    ) {
        let at_rest = decisions.values().all(|decision| matches!(decision, Decision::Rest(_)));
        self.proven |= wanted.is_some() && at_rest;
        if let Some(wanted) = wanted.filter(|_| self.proven) {
            let pairs = wanted.spec.gpus.iter().filter_map(|spec| Some((spec, inventory.gpu(&spec.uuid)?)));
            let advertiser = wanted.spec.advertiser;
            let devices = pairs.filter(|_| advertiser.is_agent()).flat_map(|(spec, gpu)| devices(spec, gpu)).collect();
            self.offer(devices, advertiser);
        }
        let mut gpus = BTreeMap::new();
        for gpu in &inventory.gpus {
            let mut progress = match decisions.get(&gpu.uuid) {
                None => GpuProgress { step: AgentStep::Unmanaged, ..GpuProgress::default() },
                // A step that was refused a moment ago is tried again; until it succeeds the GPU waits.
                Some(Decision::Act(_)) if self.blockers.contains_key(&gpu.uuid) => {
                    of_rest(&Rest::WaitingForClients { starts: Vec::new() }, gpu, "")
                }
                Some(Decision::Act(order)) => of_order(order),
                Some(Decision::Rest(rest)) => of_rest(rest, gpu, &self.kubelet.borrow().message),
            };
            progress.blockers = self.blockers.get(&gpu.uuid).cloned().unwrap_or_default();
            gpus.insert(gpu.uuid.clone(), progress);
        }
        let named: BTreeSet<&str> = inventory.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let wanted_gpus = wanted.into_iter().flat_map(|wanted| &wanted.spec.gpus).map(|spec| &spec.uuid);
        let absent = wanted_gpus.filter(|uuid| !named.contains(uuid.as_str())).cloned().collect();
        let generation = wanted.map(|wanted| wanted.generation);
        let carved = Carved { generation, inventory: Some(inventory), trouble: None, owners, gpus, absent };
        self.carved.send_if_modified(|old| {
            let changed = *old != carved;
            *old = carved;
            changed
        });
    }

    fn offer(&mut self, devices: Vec<Device>, advertiser: Advertiser) {
        let (metrics, offered_at) = (&self.metrics, &mut self.offered_at);
        self.view.send_if_modified(|view| {
            let same = view.devices == devices && view.advertiser == advertiser;
            if view.generation > 0 && same || view.generation == 0 && !self.proven {
                return false;
            }
            *view = DeviceView { generation: view.generation + 1, devices, advertiser };
            metrics.set_devices(view);
            for device in view.devices.iter().filter(|device| device.offered()) {
                offered_at.insert(device.id.clone(), view.generation);
            }
            true
        });
    }
}

fn order((uuid, decision): (&String, &Decision)) -> Option<(String, Order)> {
    match decision {
        Decision::Act(order) => Some((uuid.clone(), order.clone())),
        Decision::Rest(_) => None,
    }
}
