//! The decision about a tenant. Pure; the same observation gives the same decision, and no write once converged.

pub mod budget;
pub mod desired;
pub mod pull_secrets;
pub mod roles;
pub mod teardown;
pub mod write;

use std::collections::BTreeMap;

use gputenancy_decisions::quota::QuotaAction;
use kube::ResourceExt as _;

use super::{
    observe::{Observed, managed::Managed},
    render,
};

use self::{
    budget::Quotas,
    roles::{Role, Roles},
    write::Write,
};

/// What is decided of one observation, once: writes and status follow from the same.
#[derive(Debug)]
pub struct Decided {
    /// The namespaces with their roles.
    pub roles: Roles,
    /// The decision about their quotas.
    pub quotas: Quotas,
    /// What to write, in this order.
    pub writes: Vec<Write>,
}

/// Decides about a tenant.
pub fn decide(seen: &Observed) -> Decided {
    let roles = Roles::of(seen);
    let quotas = Quotas::of(seen, &roles);
    let deleted = seen.tenant.metadata.deletion_timestamp.is_some();
    let writes = if deleted { teardown::writes(seen, &roles) } else { writes(seen, &roles, &quotas) };
    Decided { roles, quotas, writes }
}

/// What to write about a tenant that is not being deleted.
fn writes(seen: &Observed, roles: &Roles, quotas: &Quotas) -> Vec<Write> {
    let Quotas { namespaces, decision } = quotas;
    let mut actions: BTreeMap<&str, QuotaAction> =
        namespaces.iter().map(String::as_str).zip(decision.actions.iter().cloned()).collect();
    let (mut writes, mut quotas, mut namespaces) = (Vec::new(), Vec::new(), Vec::new());
    for (name, role) in roles.iter() {
        let action = actions.remove(name).unwrap_or(QuotaAction::Keep);
        match role {
            Role::Foreign => continue,
            Role::Terminating => {
                quotas.extend(quota(seen, name, action));
                continue;
            }
            Role::Missing => {
                let uid = seen.tenant.uid().unwrap_or_default();
                let namespace = render::namespace(&seen.tenant, name, false, Some(uid));
                writes.push(Write::CreateNamespace(Box::new(namespace)));
            }
            Role::Adoptable => {
                // its objects are written once its label is: another tenant may adopt it at the same time
                let mut namespace = render::namespace(&seen.tenant, name, false, None);
                namespace.metadata.annotations = Some([(render::ADOPTED.to_owned(), seen.now.to_string())].into());
                namespace.metadata.resource_version = seen.namespaces.get(name).and_then(|ns| ns.resource_version());
                writes.push(Write::AdoptNamespace(Box::new(namespace)));
                continue;
            }
            Role::Active | Role::Retained => writes.extend(labels(seen, name, role == Role::Retained)),
        }
        quotas.extend(quota(seen, name, action));
        namespaces.push(name);
    }
    let managed = |kind: Managed, namespace: &&str| desired::write(seen, kind, namespace);
    // the grant admits pods, so it follows isolation; quotas follow all namespaces, for another tenant may be creating one of them
    writes.extend(namespaces.iter().flat_map(|ns| Managed::ISOLATION.into_iter().filter_map(|kind| managed(kind, ns))));
    writes.extend(namespaces.iter().filter_map(|ns| managed(Managed::Grant, ns)));
    writes.extend(quotas);
    writes.extend(namespaces.iter().flat_map(|ns| Managed::ACCESS.into_iter().filter_map(|kind| managed(kind, ns))));
    writes.extend(seen.refused.wakes(seen.now).into_iter().map(Write::Wake));
    // last: if these fail, all else is written
    writes.extend(namespaces.iter().flat_map(|ns| pull_secrets::writes(seen, ns)));
    let readable = Managed::OF_CLUSTER.into_iter().filter(|_| seen.readable);
    writes.extend(readable.filter_map(|kind| desired::write(seen, kind, Managed::NO_NAMESPACE)));
    writes
}

/// The write of a namespace's labels, unless they are right.
fn labels(seen: &Observed, name: &str, retained: bool) -> Option<Write> {
    let namespace = seen.namespaces.get(name)?;
    let labels = namespace.labels();
    let marked = labels.contains_key(render::RETAINED_FROM);
    let wanted = render::namespace_labels(&seen.tenant, retained, seen.created_by_operator(name));
    if (retained || !marked) && render::includes(labels, &wanted) {
        return None;
    }
    // server-side apply removes an annotation that is left out
    let created_for = namespace.annotations().get(render::CREATED_FOR).cloned();
    let adopted = namespace.annotations().get_key_value(render::ADOPTED).map(|(k, v)| (k.clone(), v.clone()));
    let mut namespace = Box::new(render::namespace(&seen.tenant, name, retained, created_for));
    if let Some(adopted) = adopted {
        namespace.annotations_mut().extend([adopted]);
    }
    Some(Write::LabelNamespace { namespace, retained: retained && !marked })
}

/// The write of a quota, if the action needs one.
fn quota(seen: &Observed, namespace: &str, action: QuotaAction) -> Option<Write> {
    let present = seen.quotas.get(namespace);
    let unchanged = || present.map(|q| q.spec.hard.clone()).unwrap_or_default();
    let hard = match action {
        QuotaAction::Write(hard) => hard,
        QuotaAction::Touch => unchanged(),
        QuotaAction::Keep if present.is_some_and(|q| !render::is_labelled(&**q, &seen.name())) => unchanged(),
        QuotaAction::Keep => return None,
    };
    let mut quota = render::quota(&seen.tenant, namespace, hard);
    (quota.metadata.resource_version, quota.metadata.uid) = seen.decided_on(namespace);
    Some(Write::ApplyQuota(Box::new(quota)))
}
