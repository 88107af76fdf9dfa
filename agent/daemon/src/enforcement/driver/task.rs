//! The task that keeps the driver's limits as [`gputenancy_agent_core::enforcement::driver_limits`] wants them.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use gputenancy_agent_core::enforcement::driver_limits::{Action, Limited, Limits, Target, decide, limited, wanted};
use gputenancy_crds::CONTEXT_MIB;
use gputenancy_ledger::{Limits as LimitsFile, Mapped};
use gputenancy_nvml::{MemoryLimit, NO_LIMIT};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{Cgroups, record::Record};
use crate::{
    device::{Device, DeviceView, DriverLimits, KubeletView},
    enforcement::{SHARES, ShareFiles, ShareSizes},
    gpu::{Inventory, LatestInventory, LimitCall, NvmlError, NvmlThread},
    send_if_changed,
};

/// Interval of the reconciles: a container has its limit about this long after its start. A share of another size is reconciled at once.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Every so many reconciles the limits are read back, and containers and driver are searched and asked once more.
const VERIFY_EVERY: u32 = 15;
/// Reconciles in which the driver must refuse a limit of an existing cgroup, until it counts as without limits.
const REFUSALS: u32 = 3;

/// Calls the driver.
type CallDriver = Arc<dyn Fn(LimitCall) -> BoxFuture<'static, Result<Option<MemoryLimit>, NvmlError>> + Send + Sync>;

/// What the limits exchange with other tasks.
pub struct Channels {
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// Their owners.
    pub kubelet: watch::Receiver<KubeletView>,
    /// Memory of containers on fractions.
    pub sizes: watch::Receiver<ShareSizes>,
    /// Driver and boards, as NVML reported them last.
    pub inventory: LatestInventory,
    /// Whether the driver limits memory.
    pub driver_limits: watch::Sender<DriverLimits>,
}

/// Keeps the driver's limits.
pub struct DriverLimiter {
    /// Memory is to be limited; else what was set is cleared.
    enabled: bool,
    /// Folder of the shares' files.
    shares: PathBuf,
    record: Record,
    cgroups: Cgroups,
    call: CallDriver,
    /// Path of the cgroup that the driver is asked about.
    probed: Option<PathBuf>,
    /// What was set; `None` before the record was read.
    set: Option<Limits>,
    /// Driver version and answer of the latest probe.
    answer: Option<(String, DriverLimits)>,
    /// Reconciles in a row in which the driver refused.
    refused: u32,
    /// Cgroups whose limit the driver has refused, which was logged.
    refusing: BTreeSet<Target>,
    count: u32,
}

impl DriverLimiter {
    /// Through NVML. `folder` is the agent's for enforcement.
    pub fn new(enabled: bool, folder: &Path, cgroups: Cgroups, nvml: NvmlThread) -> Self {
        let call: CallDriver = Arc::new(move |call| {
            let nvml = nvml.clone();
            Box::pin(async move { nvml.memory_limit(call).await })
        });
        Self {
            enabled,
            shares: folder.join(SHARES),
            record: Record::in_folder(folder),
            probed: cgroups.own("/proc".as_ref()),
            cgroups,
            call,
            set: None,
            answer: None,
            refused: 0,
            refusing: BTreeSet::new(),
            count: 0,
        }
    }

    /// Reconciles for as long as it is polled.
    pub async fn run(mut self, channels: Channels) {
        let Channels { view, kubelet, mut sizes, inventory, driver_limits } = channels;
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // a share has another size: its files have it already
            tokio::select! {
                _ = ticks.tick() => {}
                Ok(()) = sizes.changed() => {}
            }
            // without an answer of NVML nothing is known, and nothing changes
            let Some(inventory) = inventory() else { continue };
            let (view, kubelet) = (view.borrow().clone(), kubelet.borrow().clone());
            let state = self.reconcile(&view, &kubelet, &inventory).await;
            send_if_changed(&driver_limits, state);
        }
    }

    /// Asks the driver if need be, and sets and clears limits.
    pub async fn reconcile(&mut self, view: &DeviceView, kubelet: &KubeletView, inventory: &Inventory) -> DriverLimits {
        let verify = self.count.is_multiple_of(VERIFY_EVERY);
        self.count = self.count.wrapping_add(1);
        let mut set = self.set.take().unwrap_or_else(|| self.record.read());
        let enabled = self.enabled && view.advertiser.is_agent() && kubelet.other_limiter.is_none();
        let supported =
            if enabled || !set.is_empty() { self.probe(inventory, verify).await } else { DriverLimits::NotSupported };
        // before kubelet has reported owners none is known to have ended
        if supported == DriverLimits::Supported && (kubelet.answered || !enabled) {
            let wanted = if enabled { self.wanted(view, kubelet, verify) } else { Limits::new() };
            let refused = self.act(&wanted, &mut set, verify).await;
            self.refused = if refused { self.refused.saturating_add(1) } else { 0 };
        }
        self.set = Some(set);
        match supported {
            _ if !enabled => DriverLimits::NotSupported,
            DriverLimits::Supported if self.refused >= REFUSALS => DriverLimits::NotSupported,
            answer => answer,
        }
    }

    fn wanted(&mut self, view: &DeviceView, kubelet: &KubeletView, again: bool) -> Limits {
        let folder = self.shares.clone();
        let shares: Vec<Limited> = limited(&view.devices, &kubelet.owners, &|device: &Device| bytes(device, &folder));
        let cgroups = self.cgroups.of(shares.iter().map(|share| &share.owner), again);
        wanted(&shares, &cgroups)
    }

    /// Whether every GPU without MIG mode has limits; on a node without such GPUs every GPU.
    async fn probe(&mut self, inventory: &Inventory, again: bool) -> DriverLimits {
        let version = &inventory.driver_version;
        if let Some((known, answer)) = &self.answer
            && known == version
            && (!again || *answer == DriverLimits::Supported)
        {
            return *answer;
        }
        let Some(cgroup) = self.probed.clone() else { return DriverLimits::NotSupported };
        let any_without_mig = inventory.gpus.iter().any(|gpu| !gpu.mig_enabled());
        let mut answer = if inventory.gpus.is_empty() { DriverLimits::Unknown } else { DriverLimits::Supported };
        for gpu in inventory.gpus.iter().filter(|gpu| !gpu.mig_enabled() || !any_without_mig) {
            let call = LimitCall { uuid: gpu.uuid.clone(), cgroup: cgroup.clone(), hard: None };
            match (self.call)(call).await {
                Ok(Some(_)) => {}
                Ok(None) => answer = DriverLimits::NotSupported,
                // it may answer at the next reconcile
                Err(NvmlError::Hangs { .. }) => return DriverLimits::Unknown,
                Err(error) => {
                    // asked again and again; a state is logged once
                    if self.answer.is_none() {
                        tracing::warn!(gpu = gpu.uuid, %error, "driver does not report its memory limits");
                    }
                    answer = DriverLimits::NotSupported;
                }
            }
        }
        let next = (version.clone(), answer);
        if answer != DriverLimits::Unknown && self.answer.as_ref() != Some(&next) {
            tracing::info!(driver = version, ?answer, "memory limits of the driver");
            self.answer = Some(next);
        }
        answer
    }

    /// Executes the actions; true if the driver refused a limit of a cgroup that exists.
    async fn act(&mut self, wanted: &Limits, set: &mut Limits, verify: bool) -> bool {
        let actions = decide(wanted, set, verify);
        self.refusing.retain(|target| wanted.contains_key(target) || set.contains_key(target));
        if actions.iter().any(|action| matches!(action, Action::Set(target, _) if !set.contains_key(target))) {
            // before the calls: a later agent must know of each limit that may be set
            let all = set.iter().chain(wanted).map(|(target, bytes)| (target.clone(), *bytes)).collect();
            self.write(&all);
        }
        let (mut refused, before) = (false, set.clone());
        for action in actions {
            let (target, bytes) = match &action {
                Action::Clear(target) => (target, NO_LIMIT),
                Action::Set(target, bytes) => (target, *bytes),
            };
            let call = LimitCall { uuid: target.gpu.clone(), cgroup: target.cgroup.clone(), hard: Some(bytes) };
            let exists = target.cgroup.is_dir();
            let outcome = if exists { (self.call)(call).await } else { Ok(None) };
            let done = matches!(outcome, Ok(Some(_))) || !target.cgroup.is_dir();
            if done && self.refusing.remove(target) {
                tracing::info!(gpu = target.gpu, cgroup = %target.cgroup.display(), bytes, "memory limit set");
            }
            match action {
                // with a cgroup its limits are removed
                Action::Clear(target) if done => drop(set.remove(&target)),
                Action::Set(target, bytes) if done => drop(set.insert(target, bytes)),
                Action::Clear(target) | Action::Set(target, _) => {
                    refused = true;
                    // tried again each second
                    if self.refusing.insert(target.clone()) {
                        tracing::warn!(gpu = target.gpu, cgroup = %target.cgroup.display(), bytes, ?outcome, "memory limit not set");
                    }
                }
            }
        }
        if *set != before {
            self.write(set);
        }
        refused
    }

    fn write(&self, limits: &Limits) {
        if let Err(error) = self.record.write(limits) {
            tracing::warn!(%error, "record of the driver's limits not written");
        }
    }
}

/// Bytes that the container of a share may have: those of its files, which are of the running container, else those of the layout.
fn bytes(device: &Device, folder: &Path) -> Option<u64> {
    let limit_mib = device.share.as_ref()?.limit_mib?;
    let of_container = ShareFiles::of(device, folder).and_then(|files| Mapped::<LimitsFile>::open(&files.limits).ok());
    let of_layout = || u64::try_from(limit_mib.saturating_add(CONTEXT_MIB)).ok().map(|mib| mib << 20);
    of_container.map(|limits| limits.limit()).or_else(of_layout)
}
