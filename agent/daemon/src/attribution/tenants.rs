//! Tenants of namespaces with GPU processes, by the namespace's grant.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gputenancy_cluster::error::sentence;
use gputenancy_crds::{GpuGrant, names::GRANT};
use kube::{Api, Client};
use tokio::time::timeout;

use crate::mps::host::Call;

/// A namespace is read again after this time: it can change its tenant.
const AGAIN: Duration = Duration::from_mins(5);
/// The same after a failure, and for a namespace without a tenant.
const SOON: Duration = Duration::from_mins(1);

/// Limit of one read.
const LIMIT: Duration = Duration::from_secs(3);

/// Reads the tenant of a namespace; `None`: it has none.
pub type Read = Call<String, Option<String>, kube::Error>;

/// The name of the tenant in a namespace's grant. Without the right to read grants there is none.
pub fn by_grant(client: Client) -> Read {
    std::sync::Arc::new(move |namespace: String| {
        let grants: Api<GpuGrant> = Api::namespaced(client.clone(), &namespace);
        Box::pin(async move {
            let grant = grants.get_opt(GRANT).await;
            grant.map(|grant| grant.map(|grant| grant.spec.tenant))
        })
    })
}

/// The tenants that are known.
pub struct Tenants {
    read: Read,
    known: BTreeMap<String, (Option<String>, Instant)>,
}

impl Tenants {
    /// None is known.
    pub fn new(read: Read) -> Self {
        Self { read, known: BTreeMap::new() }
    }

    /// The tenants of these namespaces; others are forgotten. After a failure a tenant is as it was.
    pub async fn of(&mut self, namespaces: BTreeSet<&str>, now: Instant) -> BTreeMap<String, String> {
        self.known.retain(|namespace, _| namespaces.contains(namespace.as_str()));
        for namespace in namespaces {
            if self.known.get(namespace).is_some_and(|(_, until)| now < *until) {
                continue;
            }
            // without an answer of the API server the others would not have one either
            let Ok(read) = timeout(LIMIT, (self.read)(namespace.to_owned())).await else { break };
            let (tenant, again) = match read {
                Ok(Some(tenant)) => (Some(tenant), AGAIN),
                Ok(None) => (None, SOON),
                Err(error) => {
                    tracing::debug!(namespace, error = sentence(&error), "tenant of namespace not read");
                    (self.known.get(namespace).and_then(|(tenant, _)| tenant.clone()), SOON)
                }
            };
            self.known.insert(namespace.to_owned(), (tenant, now + again));
        }
        self.known.iter().filter_map(|(namespace, (tenant, _))| Some((namespace.clone(), tenant.clone()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn tenant_is_read_once_in_five_minutes_and_kept_over_a_failure() {
        let (answer, reads) = (Arc::new(Mutex::new(Some(Some("a".to_owned())))), Arc::new(Mutex::new(0)));
        let (from, count) = (answer.clone(), reads.clone());
        let read: Read = Arc::new(move |_| {
            *count.lock().unwrap() += 1;
            let answer = from.lock().unwrap().clone();
            Box::pin(async move { answer.ok_or(kube::Error::LinesCodecMaxLineLengthExceeded) })
        });
        let (mut tenants, start) = (Tenants::new(read), Instant::now());
        let mut of = async |second: u64| tenants.of(["team-a"].into(), start + Duration::from_secs(second)).await;
        let a = BTreeMap::from([("team-a".to_owned(), "a".to_owned())]);
        assert_eq!([of(0).await, of(299).await], [a.clone(), a.clone()]);
        assert_eq!(*reads.lock().unwrap(), 1);
        *answer.lock().unwrap() = None;
        assert_eq!(of(300).await, a);
        *answer.lock().unwrap() = Some(None);
        assert_eq!([of(330).await, of(361).await], [a, BTreeMap::new()]);
        assert_eq!(*reads.lock().unwrap(), 3);
    }
}
