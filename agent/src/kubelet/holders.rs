//! Who has a device, asked at the moment of giving.
//!
//! kubelet may choose a device that a container has: whoever asks it for a list of pod resources while it allocates, as this agent and
//! exporters of metrics do, may make it forget what it is about to give (kubernetes/kubernetes#137534, seen with 1.36). So what a
//! container has is not preferred, and not given. kubelet is asked each time: what this agent knows may be older than its last start.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tonic::Status;

use super::{
    allocatable::ours,
    ledger::{Ledger, Refused},
    pods::PodResources,
};
use crate::device::{DeviceId, Owners};

/// Questions before kubelet is taken for silent.
const TRIES: u32 = 5;
/// Between two of them: kubelet answers a hundred a second, all who ask together.
const AGAIN: Duration = Duration::from_millis(100);

/// What this agent has given, and what kubelet says about it.
#[derive(Debug, Clone)]
pub struct Holders {
    /// What seems taken.
    pub ledger: Arc<Ledger>,
    /// What is.
    pub pods: PodResources,
}

impl Holders {
    /// Of these devices, those that a container has; when kubelet does not answer, those that seem so.
    pub async fn taken(&self, ids: &[DeviceId]) -> BTreeSet<DeviceId> {
        self.owners().await.map_or_else(|_| self.ledger.taken(ids), |owners| owners.into_keys().collect())
    }

    /// Makes sure that no container has one of these.
    ///
    /// # Errors
    /// When one has, or when one seems taken and kubelet does not answer.
    pub async fn free(&self, ids: &[DeviceId]) -> Result<(), Refused> {
        match self.ask().await {
            Ok(owners) => unowned(ids, &owners),
            Err(status) => match self.ledger.taken(ids).pop_first() {
                Some(id) => Err(Refused::Unknown(id, status.message().to_owned())),
                None => Ok(()),
            },
        }
    }

    /// The owner of each device, as kubelet says.
    pub async fn owners(&self) -> Result<Owners, Status> {
        Ok(self.ledger.resolve(self.pods.owners(ours).await?))
    }

    async fn ask(&self) -> Result<Owners, Status> {
        let mut tries = 1;
        loop {
            match self.owners().await {
                Err(_) if tries < TRIES => tries += 1,
                answer => return answer,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

fn unowned(ids: &[DeviceId], owners: &Owners) -> Result<(), Refused> {
    match ids.iter().find_map(|id| owners.get_key_value(id)) {
        Some((id, owner)) => Err(Refused::Held { id: id.clone(), owner: owner.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
