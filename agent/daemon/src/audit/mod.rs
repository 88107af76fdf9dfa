//! The use of shares with a memory limit: the ledger of each container compared with the memory that NVML lists for its processes.
//!
//! The limit is enforced in the container, where a program can go past it; NVML is outside of it. [`sample`] reads both, [`gputenancy_agent_core::audit`] decides
//! what follows, [`notices`] has the texts, and this loop publishes events, metrics and what the status reports.

pub mod notices;
pub mod sample;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    time::Duration,
};

use gputenancy_agent_core::audit::{Action, Finding, Observation, ShareState, step};
use gputenancy_cluster::events::Notice;
use gputenancy_crds::{Bypass, MemoryText};
use gputenancy_ledger::{Counts, Damage, Mapped, Usage as UsageFile};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use self::{
    notices::{bypassed, endless, memory_high, resized},
    sample::{Ledgers, OwnedShare, Reads, any_owned, counts, origins, owned, usage},
};
use crate::{
    device::{DeviceId, DeviceOwner, DeviceView, KubeletView},
    enforcement::{ShareFiles, pause},
    event::Publish,
    gpu::{Inventory, processes::process_origin::Origin},
    handover::HandoverCheck,
    kubelet::node::sandbox::Sandboxes,
    metrics::{Metrics, ShareFigures},
    send_if_changed,
};

/// After this time an event is given up.
const PUBLISH_LIMIT: Duration = Duration::from_secs(30);

/// Bypasses in progress, by device.
pub type Bypasses = BTreeMap<DeviceId, Bypass>;

/// Audits the shares of a node.
pub struct Auditor {
    /// Folder of the shares' files.
    pub shares: PathBuf,
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// Their owners.
    pub kubelet: watch::Receiver<KubeletView>,
    /// Shares whose limit is bypassed.
    pub bypasses: watch::Sender<Bypasses>,
    /// Reads NVML's processes, and finds their containers.
    pub processes: HandoverCheck,
    /// Which pods run in a sandbox: no limit of the library holds there, and none is bypassed.
    pub sandboxes: Option<Sandboxes>,
    /// Publishes events.
    pub publish: Publish,
    /// The agent's metrics.
    pub metrics: Metrics,
    /// Name of the node.
    pub node: String,
}

/// What is remembered of the share of each owner.
type States = BTreeMap<(DeviceId, DeviceOwner), Remembered>;

/// What is remembered of one share.
#[derive(Clone, Debug, Default)]
struct Remembered {
    /// UID of the pod, once it is known.
    uid: Option<String>,
    state: ShareState,
    /// No process of the bypass in progress had loaded CUDA when it was found. A program decides this by the name of its library, so that it
    /// changes what people read, and not what follows.
    without_cuda: bool,
}

/// What one sample leaves to the next.
#[derive(Default)]
struct Memory {
    /// The ledgers at its end.
    ledgers: Ledgers,
    /// Damage of ledgers that was logged for the present container of a share, or while it has none: a container can repeat it for ever.
    logged: Logged,
}

/// Damage of ledgers, `None` for one that could not be repaired, by share and container.
type Logged = BTreeMap<(DeviceId, Option<DeviceOwner>), BTreeSet<Option<Damage>>>;

/// Processes on GPUs, and where they come from.
type Read = (Inventory, BTreeMap<u32, Origin>);

/// A share, and what a sample found of it.
struct Sampled {
    share: OwnedShare,
    /// UID of the pod of its processes.
    uid: Option<String>,
    /// Its processes.
    pids: Vec<u32>,
    seen: Observation,
}

impl Auditor {
    /// Samples for as long as it is polled.
    pub async fn run(self) {
        let (mut states, mut memory) = (States::new(), Memory::default());
        loop {
            let sampled = self.sample(&mut memory).await;
            self.shrink(sampled.as_deref().unwrap_or_default());
            // without an answer of NVML nothing is known, and nothing changes
            if let Some(sampled) = sampled {
                states = self.decide(&sampled, &states);
                self.report(&sampled, &states);
            }
            sleep(pause(random())).await;
        }
    }

    /// The states after a sample.
    fn decide(&self, sampled: &[Sampled], before: &States) -> States {
        let next = |found: &Sampled| {
            let Sampled { share, uid, pids, seen } = found;
            let key = (share.device.id.clone(), share.owner.clone());
            let known = before.get(&key).cloned().unwrap_or_default();
            // another pod of the same name, such as of a StatefulSet, begins with nothing
            let same = known.uid.is_none() || uid.is_none() || known.uid == *uid;
            let last = if same { known.state } else { ShareState::default() };
            let (state, actions) = step(&last, seen);
            // the maps of a process are long, so they are read once
            let without_cuda = match (last.bypass, state.bypass) {
                (_, None) => false,
                (None, Some(_)) => self.without_cuda(pids),
                (Some(_), Some(_)) => known.without_cuda,
            };
            for action in &actions {
                self.act(found, action, without_cuda);
            }
            (key, Remembered { uid: uid.clone().or(known.uid), state, without_cuda })
        };
        sampled.iter().map(next).collect()
    }

    /// All of these processes are known, and none has loaded CUDA.
    fn without_cuda(&self, pids: &[u32]) -> bool {
        !pids.is_empty() && pids.iter().all(|pid| self.processes.origins().loads_cuda(*pid) == Some(false))
    }

    /// Repairs ledgers that containers have damaged, and returns those that were broken.
    fn repair(&self, logged: &mut Logged) -> BTreeSet<DeviceId> {
        let (view, kubelet) = (self.view.borrow(), self.kubelet.borrow());
        logged.retain(|(id, owner), _| kubelet.owners.get(id) == owner.as_ref());
        let mut broken = BTreeSet::new();
        for device in &view.devices {
            let Some(files) = ShareFiles::of(device, &self.shares) else { continue };
            let repaired = files.repair();
            if matches!(repaired, Ok(None)) {
                continue;
            }
            let (damage, owner) = (repaired.as_ref().ok().copied().flatten(), kubelet.owners.get(&device.id).cloned());
            if logged.entry((device.id.clone(), owner)).or_default().insert(damage) {
                let error = repaired.err();
                tracing::warn!(device = %device.id, ?damage, ?error, "ledger of a share damaged by its container");
            }
            if damage == Some(Damage::Broken) {
                broken.insert(device.id.clone());
            }
        }
        broken
    }

    /// Makes shares smaller whose programs held more than their new size.
    fn shrink(&self, sampled: &[Sampled]) {
        let listed: BTreeMap<&DeviceId, u64> =
            sampled.iter().filter_map(|found| Some((&found.share.device.id, found.seen.used?))).collect();
        let view = self.view.borrow();
        for device in &view.devices {
            if let Some(files) = ShareFiles::of(device, &self.shares) {
                files.shrink(device, listed.get(&device.id).copied());
            }
        }
    }

    /// `None` if NVML does not answer. Without an owned share NVML is not called.
    async fn sample(&self, Memory { ledgers, logged }: &mut Memory) -> Option<Vec<Sampled>> {
        let owned_any = any_owned(&self.view.borrow().devices, &self.kubelet.borrow().owners);
        // before any file of a container is opened: see `Reads`
        let unannounced = if owned_any { self.read().await } else { None };
        let broken = self.repair(logged);
        if !owned_any {
            ledgers.clear();
            return Some(Vec::new());
        }
        let unannounced = unannounced?;
        let mut shares = owned(&self.view.borrow().devices, &self.kubelet.borrow().owners, &self.shares);
        let sandboxed = |share: &OwnedShare| self.sandboxes.as_ref()?.of(&share.device, &share.owner);
        shares.retain(|share| sandboxed(share).is_none());
        let first = counts(&shares);
        let changed = |(id, counts): (&DeviceId, &Counts)| ledgers.get(id).is_none_or(|b| !b.is_unchanged(counts));
        let again = if first.iter().any(changed) { self.read().await } else { None };
        let again = again.map(|read| (read, counts(&shares)));
        let of_shares = |(inventory, origins): &Read| usage(&shares, inventory, origins);
        let (listed, listed_again) = (of_shares(&unannounced), again.as_ref().map(|(read, _)| of_shares(read)));
        let reads = |at: usize, share: &OwnedShare| {
            let id = &share.device.id;
            let later = || Some((listed_again.as_ref()?.get(at)?.clone()?, *again.as_ref()?.1.get(id)?));
            let (unannounced, counts) = (listed.get(at)?.clone()?, *first.get(id)?);
            let (before, broken) = (ledgers.get(id).copied(), broken.contains(id));
            let waited = Mapped::<UsageFile>::longest_wait(&share.files.usage);
            Some(Reads { before, unannounced, broken, counts, again: later(), waited })
        };
        let sampled = shares.iter().enumerate().filter_map(|(at, share)| {
            let reads = reads(at, share)?;
            let uid = reads.pids().find_map(|pid| self.processes.origins().pod_uid(pid));
            Some(Sampled { seen: reads.observe(share), share: share.clone(), uid, pids: reads.pids().collect() })
        });
        let sampled = sampled.collect();
        *ledgers = again.map_or(first, |(_, counts)| counts);
        Some(sampled)
    }

    /// The processes on GPUs, and at once where they come from: one that ends meanwhile is of no container any more.
    async fn read(&self) -> Option<Read> {
        let devices = self.view.borrow().devices.clone();
        let inventory = self.processes.listed(devices.iter().filter(|device| device.share.is_some())).await.ok()?;
        let found = self.processes.origins();
        let origins = origins(&devices, &inventory, &|pid| found.of(pid));
        Some((inventory, origins))
    }

    fn act(&self, Sampled { share, uid, seen, .. }: &Sampled, action: &Action, without_cuda: bool) {
        match action {
            Action::MemoryHigh(percent) => self.announce(memory_high(&self.node, share, seen, *percent)),
            Action::Endless(count) => self.announce(endless(&self.node, share, *count)),
            Action::Resized(before) => self.announce(resized(&self.node, share, *before)),
            Action::Bypassed(finding) => {
                let OwnedShare { owner: DeviceOwner { namespace, pod, container }, device, .. } = share;
                tracing::warn!(namespace, pod, container, device = %device.id, damaged = finding.broken, "memory limit of a share bypassed");
                self.metrics.bypass();
                for notice in bypassed(&self.node, share, uid.as_deref(), finding, without_cuda) {
                    self.announce(notice);
                }
            }
        }
    }

    /// Publishes an event. The samples do not wait for the API server.
    fn announce(&self, notice: Notice) {
        tokio::spawn(timeout(PUBLISH_LIMIT, (self.publish)(notice)));
    }

    fn report(&self, sampled: &[Sampled], states: &States) {
        let remembered = |share: &OwnedShare| states.get(&(share.device.id.clone(), share.owner.clone()));
        let finding = |share: &OwnedShare| remembered(share).and_then(|known| known.state.bypass.as_ref());
        let figures = sampled.iter().map(|Sampled { share, seen, .. }| ShareFigures {
            device: &share.device,
            owner: &share.owner,
            limit: seen.visible,
            counted: seen.counted,
            used: seen.used,
            refused: seen.denied,
            endless: seen.endless,
            bypassed: finding(share).is_some(),
        });
        self.metrics.set_shares(figures);
        let found = sampled.iter().filter_map(|Sampled { share, uid, .. }| {
            let Finding { used, counted, limit, .. } = finding(share)?;
            // without the UID of the pod nothing can be done about it
            let uid = uid.clone()?;
            let without_cuda = remembered(share).is_some_and(|known| known.without_cuda);
            let text = |bytes: &u64| MemoryText::from_mib(i64::try_from(bytes >> 20).unwrap_or(i64::MAX));
            Some((
                share.device.id.clone(),
                Bypass { uid, used: text(used), counted: text(counted), limit: text(limit), without_cuda },
            ))
        });
        send_if_changed(&self.bypasses, found.collect());
    }
}

/// A number that no container can foresee.
fn random() -> u64 {
    RandomState::new().hash_one(())
}
