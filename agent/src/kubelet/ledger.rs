//! Who may be given what: shared by the plugin servers, which give, and the driving loop, which offers and withdraws.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    offer::{Offer, Offers},
    preferred::Candidate,
};
use crate::device::{Device, DeviceId, DeviceOwner, Owners};

/// A grant that kubelet does not show by then has failed in kubelet.
pub const GRANT_PATIENCE: Duration = Duration::from_secs(10);

/// Why a device is not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Withdrawn, unhealthy or never known.
    #[error("device {0} is not offered now")]
    NotOffered(DeviceId),
    /// kubelet has chosen what it has given already.
    #[error(
        "device {id} is held by container {} of pod {}/{}, which kubelet has lost sight of (kubernetes/kubernetes#137534)",
        owner.container, owner.namespace, owner.pod
    )]
    Held {
        /// The device.
        id: DeviceId,
        /// Who has it.
        owner: DeviceOwner,
    },
    /// It was given before, and kubelet does not say whether that container still has it.
    #[error("device {0} may be held by a container: kubelet's pod resources API does not answer: {1}")]
    Unknown(DeviceId, String),
}

impl Refused {
    /// In a word, for a metric.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotOffered(_) => "NotOffered",
            Self::Held { .. } => "Held",
            Self::Unknown(..) => "Unknown",
        }
    }
}

/// The plugin's books.
#[derive(Debug, Default)]
pub struct Ledger {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// What containers are told about a device, for all that are or were offered.
    known: BTreeMap<DeviceId, Device>,
    /// Lists as sent.
    published: Offers,
    /// Withdrawn, but kubelet may have chosen it just before: still given until [`Ledger::seal`].
    leaving: BTreeSet<DeviceId>,
    /// Given, and not yet seen with an owner.
    granted: BTreeMap<DeviceId, Instant>,
    /// Owned by a pod.
    owned: BTreeSet<DeviceId>,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        // the books are changed in steps that cannot be left half done
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns what the devices are, before they are offered.
    pub fn learn<'a>(&self, devices: impl IntoIterator<Item = &'a Device>) {
        let mut books = self.books();
        books.known = devices.into_iter().map(|device| (device.id.clone(), device.clone())).collect();
    }

    /// All devices that are, or may still be, in a container's hands.
    pub fn known(&self) -> BTreeMap<DeviceId, Device> {
        self.books().known.clone()
    }

    /// Records a list that is being sent; what it no longer has is leaving.
    pub fn publish(&self, resource: &str, offer: &Offer) {
        let mut books = self.books();
        let before = books.published.insert(resource.to_owned(), offer.clone()).unwrap_or_default();
        books.leaving.retain(|id| !offer.contains_key(id));
        let gone = before.into_iter().filter(|(id, was)| was.healthy && !offer.get(id).is_some_and(|now| now.healthy));
        books.leaving.extend(gone.map(|(id, _)| id));
    }

    /// The lists as sent.
    pub fn published(&self) -> Offers {
        self.books().published.clone()
    }

    /// What is leaving is given to nobody from now on. True when that changed anything.
    pub fn seal(&self) -> bool {
        !std::mem::take(&mut self.books().leaving).is_empty()
    }

    /// Devices still in play: offered, leaving, or given.
    pub fn in_play(&self) -> BTreeSet<DeviceId> {
        let books = self.books();
        let offered = books.published.values().flat_map(|offer| offer.keys());
        offered.chain(&books.leaving).chain(books.granted.keys()).chain(&books.owned).cloned().collect()
    }

    /// Learns who owned what when kubelet was asked; answers which grants have yet to show there. An answer to an earlier question
    /// than the grant may speak of the owner before.
    pub fn settle(&self, owned: BTreeSet<DeviceId>, asked: Instant, now: Instant) -> BTreeSet<DeviceId> {
        let mut books = self.books();
        books.owned = owned;
        let Books { granted, owned, .. } = &mut *books;
        let shown = |id: &DeviceId, since: Instant| owned.contains(id) && since < asked;
        granted.retain(|id, since| !shown(id, *since) && now < *since + GRANT_PATIENCE);
        granted.keys().cloned().collect()
    }

    /// Owners by device, also those that kubelet has by a device's legacy id.
    pub fn resolve(&self, mut owners: Owners) -> Owners {
        for device in self.books().known.values() {
            if let Some(owner) = device.legacy_id().and_then(|id| owners.remove(&id)) {
                owners.insert(device.id.clone(), owner);
            }
        }
        owners
    }

    /// Of these devices, those that are given or owned, as far as is known.
    pub fn taken(&self, ids: &[DeviceId]) -> BTreeSet<DeviceId> {
        let books = self.books();
        let taken = |id: &&DeviceId| books.owned.contains(*id) || books.granted.contains_key(*id);
        ids.iter().filter(taken).cloned().collect()
    }

    /// Gives devices to a container: all or none.
    pub fn grant(&self, resource: &str, ids: &[DeviceId], now: Instant) -> Result<Vec<Device>, Refused> {
        let mut books = self.books();
        let given: Result<Vec<Device>, Refused> = ids.iter().map(|id| books.giveable(resource, id)).collect();
        let given = given?;
        books.granted.extend(ids.iter().map(|id| (id.clone(), now)));
        Ok(given)
    }

    /// What is known about devices that kubelet could choose from, some of which are `taken`.
    pub fn candidates(&self, ids: &[DeviceId], taken: &BTreeSet<DeviceId>) -> Vec<Candidate> {
        let books = self.books();
        let busy = books.busy_by_gpu();
        let candidate = |id: &DeviceId| {
            let device = books.known.get(id);
            let gpu = device.map(|d| d.gpu_uuid.clone()).unwrap_or_default();
            Candidate {
                id: id.clone(),
                busy: busy.get(&gpu).copied().unwrap_or(0),
                gpu,
                numa: device.and_then(|d| d.numa),
                start: device.and_then(|d| d.mig.as_ref()).map_or(0, |mig| mig.start),
                taken: taken.contains(id),
                leaving: device.is_none() || books.leaving.contains(id),
            }
        };
        ids.iter().map(candidate).collect()
    }
}

impl Books {
    fn giveable(&self, resource: &str, id: &DeviceId) -> Result<Device, Refused> {
        let listed = self.published.get(resource).and_then(|offer| offer.get(id)).is_some_and(|listed| listed.healthy);
        let device = self.known.get(id).filter(|device| device.resource == resource);
        device.filter(|_| listed || self.leaving.contains(id)).cloned().ok_or_else(|| Refused::NotOffered(id.clone()))
    }

    fn busy_by_gpu(&self) -> BTreeMap<String, usize> {
        let mut busy = BTreeMap::new();
        for device in self.known.values() {
            if self.owned.contains(&device.id) || self.granted.contains_key(&device.id) {
                *busy.entry(device.gpu_uuid.clone()).or_default() += 1;
            }
        }
        busy
    }
}

#[cfg(test)]
mod tests;
