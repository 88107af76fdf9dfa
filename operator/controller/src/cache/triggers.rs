//! Which changes trigger which reconciles.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

use gputenancy_cluster::watch::Change;

/// Tenants to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// One tenant.
    Tenant(String),
    /// The tenant of this namespace, or all that list it.
    Namespace(String),
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
}

impl Triggers {
    /// Triggers the fleet's pass.
    pub fn fleet<V>(&self) -> impl FnMut(Change<V>) + Send + use<V> {
        let fleet = self.fleet.clone();
        move |_| fleet.notify_one()
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
    use super::*;

    #[test]
    fn trigger_of_both_owners_is_sent_when_an_object_moves() {
        let tenant = |name: &str| Some(Trigger::Tenant(name.into()));
        assert_eq!(distinct(tenant("a"), tenant("a")).len(), 1);
        assert_eq!(distinct(tenant("a"), tenant("b")).len(), 2);
        assert_eq!(distinct(tenant("a"), None).len(), 1);
    }
}
