//! The decision about one tenant: what to write now. Pure; the same observation gives the same writes, and none when all is as it should be.

use std::collections::BTreeMap;

use gputenancy_crds::GpuGrant;
use k8s_openapi::{
    api::{
        core::v1::{Namespace, ResourceQuota},
        rbac::v1::{RoleBinding, Subject},
    },
    jiff::SignedDuration,
};
use kube::ResourceExt as _;

use super::{
    observe::{Observed, Role},
    render,
    split::Order,
};

/// One write, in the order in which they are carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create the namespace; it must not be there.
    Create(Box<Namespace>),
    /// Repair a namespace's labels; `drops`: the tenant has stopped listing it just now.
    Label {
        /// The namespace.
        namespace: Box<Namespace>,
        /// Tell that it is retained.
        retained: bool,
    },
    /// Apply a grant.
    Grant(Box<GpuGrant>),
    /// Apply a quota, if it is still of the version that it carries.
    Quota(Box<ResourceQuota>),
    /// Apply a role binding; `anew`: delete it first, for its role cannot be changed.
    Binding {
        /// The binding.
        binding: Box<RoleBinding>,
        /// Delete the present one first.
        anew: bool,
    },
    /// Delete the grant of a namespace that is about to go.
    Revoke(String),
    /// Delete a namespace that we made, unless another has its name by now.
    Delete {
        /// Its name.
        namespace: String,
        /// Its uid.
        uid: Option<String>,
    },
    /// Take our quota, role binding and labels off a namespace that stays.
    Release(String),
    /// Remove the tenant's finalizer; the sentence, if any, is told in an event.
    Finish(Option<String>),
}

/// How long a deletion waits for namespaces before it says what blocks and lets the tenant go.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// What to write for a tenant that lives.
pub fn writes(seen: &Observed) -> Vec<Write> {
    let tenant = seen.name();
    let roles = seen.roles();
    let (names, step) = seen.step();
    let mut orders: BTreeMap<String, Order> = names.into_iter().zip(step.orders).collect();
    let mut writes = Vec::new();
    let mut grants = Vec::new();
    let mut quotas = Vec::new();
    let mut bindings = Vec::new();
    for (name, role) in &roles {
        let retained = *role == Role::Retained;
        let order = orders.remove(name).unwrap_or(Order::Leave);
        match role {
            Role::Foreign => continue,
            Role::Terminating => {
                quotas.extend(quota(seen, name, order));
                continue;
            }
            Role::Missing => {
                let namespace =
                    render::namespace(&seen.tenant, name, false, Some(seen.tenant.uid().unwrap_or_default()));
                writes.push(Write::Create(Box::new(namespace)));
            }
            Role::Active | Role::Retained => {
                let wanted = render::namespace_labels(&tenant, retained);
                let labels = seen.namespaces.get(name).map(|ns| ns.labels().clone()).unwrap_or_default();
                let stale_mark = !retained && labels.contains_key(render::RETAINED_FROM);
                if stale_mark || !wanted.iter().all(|(k, v)| labels.get(k) == Some(v)) {
                    // what we created is ours by annotation; server-side apply must name it again or lose it
                    let created_for =
                        seen.namespaces.get(name).and_then(|ns| ns.annotations().get(render::CREATED_FOR).cloned());
                    let namespace = Box::new(render::namespace(&seen.tenant, name, retained, created_for));
                    let newly = retained && !labels.contains_key(render::RETAINED_FROM);
                    writes.push(Write::Label { namespace, retained: newly });
                }
            }
        }
        let (granted, present) = (seen.grant(name), seen.grants.get(name));
        if !present.is_some_and(|g| g.spec == granted && has_labels(g.labels(), &tenant)) {
            // before the limits: without a grant the policies refuse every pod
            grants.push(Write::Grant(Box::new(render::grant(&tenant, name, granted))));
        }
        quotas.extend(quota(seen, name, order));
        let wanted = render::owners(&seen.tenant, name);
        let present = seen.bindings.get(name);
        let same = present.is_some_and(|b| {
            b.role_ref == wanted.role_ref
                && same_subjects(&b.subjects, wanted.subjects.as_deref().unwrap_or_default())
                && has_labels(b.labels(), &tenant)
        });
        if !same {
            let anew = present.is_some_and(|b| b.role_ref != wanted.role_ref);
            bindings.push(Write::Binding { binding: Box::new(wanted), anew });
        }
    }
    // limits come when all namespaces are there and ours: others may be making them just now; access comes when limits are written
    writes.extend(grants);
    writes.extend(quotas);
    writes.extend(bindings);
    writes
}

/// The write of a quota, unless it is as ordered.
fn quota(seen: &Observed, namespace: &str, order: Order) -> Option<Write> {
    let tenant = seen.name();
    let present = seen.quotas.get(namespace);
    let as_it_is = || present.map(|q| q.spec.hard.clone()).unwrap_or_default();
    let hard = match order {
        Order::Write(hard) => hard,
        Order::Touch => as_it_is(),
        Order::Leave if present.is_some_and(|q| !has_labels(q.labels(), &tenant)) => as_it_is(),
        Order::Leave => return None,
    };
    let mut quota = render::quota(&tenant, namespace, hard);
    (quota.metadata.resource_version, quota.metadata.uid) = seen.decided_on(namespace);
    Some(Write::Quota(Box::new(quota)))
}

fn has_labels(labels: &BTreeMap<String, String>, tenant: &str) -> bool {
    render::labels(tenant).iter().all(|(k, v)| labels.get(k) == Some(v))
}

fn same_subjects(a: &[Subject], b: &[Subject]) -> bool {
    a.len() == b.len() && a.iter().all(|x| b.contains(x))
}

/// What to write for a tenant that is being deleted. Grants go before their namespaces: from then on no new pod is admitted, and
/// the namespace controller of an API server that has just started does not know yet of kinds that are not its own, so that it lets
/// a namespace go and leaves a grant behind that nobody can delete.
pub fn teardown(seen: &Observed) -> Vec<Write> {
    if seen.tenant.spec.deletion_protection {
        return Vec::new();
    }
    let mut writes = Vec::new();
    let mut terminating = Vec::new();
    for (name, role) in seen.roles() {
        let retained = seen.namespaces.get(&name).is_some_and(|ns| ns.labels().contains_key(render::RETAINED_FROM));
        match role {
            Role::Missing | Role::Foreign => {}
            Role::Terminating => {
                if seen.grants.contains_key(&name) {
                    writes.push(Write::Revoke(name.clone()));
                }
                terminating.push(name);
            }
            Role::Active if seen.made_by_us(&name) && !retained && seen.grants.contains_key(&name) => {
                writes.push(Write::Revoke(name));
            }
            Role::Active if seen.made_by_us(&name) && !retained => {
                let uid = seen.namespaces.get(&name).and_then(|ns| ns.uid());
                writes.push(Write::Delete { namespace: name, uid });
            }
            Role::Active | Role::Retained => writes.push(Write::Release(name)),
        }
    }
    let waited_long = deleted_for(seen) >= PATIENCE;
    if writes.is_empty() && (terminating.is_empty() || waited_long) {
        let farewell = (!terminating.is_empty()).then(|| {
            let blockers: Vec<String> = terminating.iter().map(|ns| blocker(seen, ns)).collect();
            format!("the tenant is let go while namespaces are still terminating: {}", blockers.join("; "))
        });
        writes.push(Write::Finish(farewell));
    }
    writes
}

/// How long ago the tenant was deleted.
pub fn deleted_for(seen: &Observed) -> SignedDuration {
    let since = seen.tenant.metadata.deletion_timestamp.as_ref().map_or(seen.now, |t| t.0);
    seen.now.duration_since(since)
}

/// What keeps a terminating namespace, in the namespace controller's words.
pub fn blocker(seen: &Observed, namespace: &str) -> String {
    let said: Vec<&str> = seen
        .namespaces
        .get(namespace)
        .map(|ns| ns.status.conditions.iter().filter(|c| c.status == "True").map(|c| c.message.as_str()).collect())
        .unwrap_or_default();
    if said.is_empty() { format!("{namespace} is terminating") } else { format!("{namespace}: {}", said.join(" ")) }
}
