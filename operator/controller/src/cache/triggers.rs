//! Which changes trigger which reconciles.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

use gputenancy_cluster::watch::Change;
use gputenancy_crds::GpuPool;

use super::awaited_window::AwaitedWindow;

/// Tenants to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// One tenant.
    Tenant(String),
    /// The tenant of this namespace, or all that list it.
    Namespace(String),
    /// The tenants with a guarantee for a profile of this pool.
    Pool(String),
    /// All tenants.
    AllTenants,
}

/// Where changes are reported.
#[derive(Clone)]
pub struct Triggers {
    /// The fleet's pass: profiles, pools, tenants, nodes, pods.
    pub fleet: Arc<Notify>,
    /// Tenants.
    pub tenants: mpsc::UnboundedSender<Trigger>,
    /// Queues of a batch scheduler.
    pub queues: Arc<Notify>,
}

impl Triggers {
    /// Triggers the fleet's pass.
    pub fn fleet<V>(&self) -> impl FnMut(Change<V>) + Send + use<V> {
        let fleet = self.fleet.clone();
        move |_| fleet.notify_one()
    }

    /// Triggers the queues.
    pub fn queues<V>(&self) -> impl FnMut(Change<V>) + Send + use<V> {
        let queues = self.queues.clone();
        move |_| queues.notify_one()
    }

    /// Triggers the fleet's pass, and the queues: a pod that no queue has admitted lowers their limits.
    pub fn pods<V>(&self) -> impl FnMut(Change<V>) + Send + use<V> {
        let Self { fleet, tenants: _, queues } = self.clone();
        move |_| {
            fleet.notify_one();
            queues.notify_one();
        }
    }

    /// Triggers the fleet's pass, and the tenants of a pool whose changes wait for another window than before.
    pub fn pools(&self) -> impl FnMut(Change<GpuPool>) + Send + use<> {
        let Self { fleet, tenants, queues: _ } = self.clone();
        move |change| {
            fleet.notify_one();
            let window = |pool: Option<Arc<GpuPool>>| pool.and_then(|pool| AwaitedWindow::of(&pool));
            if window(change.old) != window(change.new) {
                drop(tenants.send(Trigger::Pool(change.key.name.into())));
            }
        }
    }

    /// Triggers the tenants that `of` names of a change.
    pub fn tenants<V, F: Fn(Change<V>) -> Vec<Trigger> + Send + 'static>(
        &self,
        of: F,
    ) -> impl FnMut(Change<V>) + Send + use<V, F> {
        let tenants = self.tenants.clone();
        // fails only when the controller has ended, and the program with it
        move |change| of(change).into_iter().for_each(|trigger| drop(tenants.send(trigger)))
    }

    /// Triggers all tenants.
    pub fn all_tenants<V>(&self) -> impl FnMut(Change<V>) + Send + use<V> {
        self.tenants(|_| vec![Trigger::AllTenants])
    }

    /// Triggers the tenants of the object's namespace.
    pub fn namespace<V>(&self) -> impl FnMut(Change<V>) + Send + use<V> {
        self.tenants(|change| vec![Trigger::Namespace(change.key.namespace.into())])
    }
}

/// The triggers of an object before and after a change.
pub fn distinct(old: Option<Trigger>, new: Option<Trigger>) -> Vec<Trigger> {
    let same = old == new;
    old.into_iter().filter(|_| !same).chain(new).collect()
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::watch::Key;
    use serde_json::json;

    use super::*;

    #[test]
    fn tenants_of_a_pool_are_triggered_when_its_changes_wait_for_another_window() {
        let (tenants, mut received) = mpsc::unbounded_channel();
        let triggers = Triggers { fleet: Arc::new(Notify::new()), tenants, queues: Arc::default() };
        let pool = |message: &str| -> Arc<GpuPool> {
            let pool = serde_json::from_value(json!({
                "metadata": {"name": "p"},
                "spec": {"nodeSelector": {"matchLabels": {"x": "y"}}, "profiles": ["small"]},
                "status": {"pending": [{"node": "n", "gpu": 0, "message": message}]},
            }));
            Arc::new(pool.unwrap())
        };
        let mut changed = triggers.pools();
        let mut triggered = |old: Option<&str>, new: Option<&str>| {
            changed(Change { key: Key::new("", "p"), old: old.map(pool), new: new.map(pool) });
            received.try_recv().ok()
        };
        let first = Some("Pending: nextWindow=2026-12-05T01:00:00Z");
        let (second, other) = (Some("Pending: nextWindow=never"), Some("Pending: waiting for the agent to report"));
        let of_pool = Some(Trigger::Pool("p".into()));
        assert_eq!(triggered(None, first), of_pool);
        assert_eq!(triggered(first, first), None);
        assert_eq!(triggered(first, second), of_pool);
        assert_eq!(triggered(second, other), of_pool);
        assert_eq!(triggered(other, None), None);
    }

    #[test]
    fn trigger_of_both_owners_is_sent_when_an_object_moves() {
        let tenant = |name: &str| Some(Trigger::Tenant(name.into()));
        assert_eq!(distinct(tenant("a"), tenant("a")).len(), 1);
        assert_eq!(distinct(tenant("a"), tenant("b")).len(), 2);
        assert_eq!(distinct(tenant("a"), None).len(), 1);
    }
}
