//! The decision about a tenant that lives: what to write now. Pure; the same observation gives the same writes, and none when all is as it should be.

use std::collections::BTreeMap;

use gputenancy_crds::GpuGrant;
use gputenancy_engine::{projection::SlimQuota, quota::QuotaAction};
use k8s_openapi::api::{
    core::v1::{LimitRange, LimitRangeSpec, Namespace, ResourceQuota, ResourceQuotaSpec},
    networking::v1::{NetworkPolicy, NetworkPolicySpec},
    rbac::v1::RoleBinding,
};
use kube::{Resource, ResourceExt as _};

use super::{
    observe::{Observed, Role},
    pull::{self, Account, PullCopy},
    render,
    wake_controllers::Wake,
};
use crate::cache::OwnedObject;

/// One write, in the order in which they are carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create the namespace; it must not be there.
    Create(Box<Namespace>),
    /// Repair a namespace's labels.
    Label {
        /// The namespace.
        namespace: Box<Namespace>,
        /// The tenant has stopped listing it just now, which is told.
        retained: bool,
    },
    /// Label a namespace that is nobody's, if it is still of the version that it carries.
    Adopt(Box<Namespace>),
    /// Apply a network policy.
    Network(Box<NetworkPolicy>),
    /// Apply a limit range.
    Limits(Box<LimitRange>),
    /// Apply the quota that knows `PriorityClasses`.
    Classes(Box<ResourceQuota>),
    /// Delete an object of ours that is not wanted any more.
    Remove {
        /// Which.
        what: Optional,
        /// Of which namespace.
        namespace: String,
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
    /// Apply the copy of an image pull secret, if the one that is there is still of the version that it carries.
    Pull(Box<PullCopy>),
    /// Say whom a `ServiceAccount` names.
    Account(Account),
    /// Delete the copy of an image pull secret, unless another has its name by now.
    Unpull {
        /// Of which namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid.
        uid: Option<String>,
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
    /// Take all our objects and labels off a namespace that stays.
    Release {
        /// Its name.
        namespace: String,
        /// We have made it, and said so in a label.
        made: bool,
    },
    /// Wake a controller for whose pod there is headroom.
    Wake(Wake),
    /// Remove the tenant's finalizer; the sentence, if any, is told in an event.
    Finish(Option<String>),
}

/// Objects that not every tenant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optional {
    /// The network policy.
    Network,
    /// The limit range.
    Limits,
    /// The quota that knows `PriorityClasses`.
    Classes,
    /// The owners' role binding.
    Owners,
    /// The viewers' role binding.
    Viewers,
}

/// What to write for a tenant that lives.
pub fn writes(seen: &Observed) -> Vec<Write> {
    let tenant = seen.name();
    let roles = seen.roles();
    let (names, decision) = seen.decide_quotas();
    let mut actions: BTreeMap<String, QuotaAction> = names.into_iter().zip(decision.actions).collect();
    let mut writes = Vec::new();
    let mut fences = Vec::new();
    let mut grants = Vec::new();
    let mut quotas = Vec::new();
    let mut bindings = Vec::new();
    let mut pulls = Vec::new();
    let wanted_fences = Fences::of(seen);
    for (name, role) in &roles {
        let retained = *role == Role::Retained;
        let action = actions.remove(name).unwrap_or(QuotaAction::Keep);
        match role {
            Role::Foreign => continue,
            Role::Terminating => {
                quotas.extend(quota(seen, name, action));
                continue;
            }
            Role::Missing => {
                let namespace =
                    render::namespace(&seen.tenant, name, false, Some(seen.tenant.uid().unwrap_or_default()));
                writes.push(Write::Create(Box::new(namespace)));
            }
            Role::Adoptable => {
                // the rest comes when it is ours: another tenant may be taking it just now
                let mut namespace = render::namespace(&seen.tenant, name, false, None);
                namespace.metadata.resource_version = seen.namespaces.get(name).and_then(|ns| ns.resource_version());
                writes.push(Write::Adopt(Box::new(namespace)));
                continue;
            }
            Role::Active | Role::Retained => {
                let wanted = render::namespace_labels(&seen.tenant, retained, seen.made_by_us(name));
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
        fences.extend(wanted_fences.writes(seen, name));
        if !seen.has_grant(name) {
            // before the limits: without a grant the policies refuse every pod
            grants.push(Write::Grant(Box::new(render::grant(&tenant, name, seen.grant(name)))));
        }
        quotas.extend(quota(seen, name, action));
        for (what, wanted, present) in [
            (Optional::Owners, render::owners(&seen.tenant, name), seen.bindings.get(name)),
            (Optional::Viewers, render::viewers(&seen.tenant, name), seen.viewers.get(name)),
        ] {
            match wanted {
                Some(wanted) => bindings.extend(binding(wanted, present.map(|b| &**b))),
                None => bindings.extend(unwanted(what, name, present.is_some())),
            }
        }
        pulls.extend(pull::writes(seen, name));
    }
    // limits come when all namespaces are there and ours: others may be making them just now; access comes when limits are written.
    // Without a grant no pod is admitted, so a namespace is fenced in before its first one.
    writes.extend(fences);
    writes.extend(grants);
    writes.extend(quotas);
    writes.extend(bindings);
    writes.extend(seen.refused.wakes(seen.now).into_iter().map(Write::Wake));
    // last: a feature that fails keeps nothing else from the tenant
    writes.extend(pulls);
    writes
}

/// What the network policy, the limit range and the quota for `PriorityClasses` of every namespace have to say, computed once.
pub struct Fences {
    network: Option<NetworkPolicySpec>,
    limits: Option<LimitRangeSpec>,
    classes: Option<ResourceQuotaSpec>,
}

impl Fences {
    /// What they have to say for this tenant.
    pub fn of(seen: &Observed) -> Self {
        Self {
            network: seen.network(),
            limits: render::default_requests(&seen.standard),
            classes: render::no_other_classes(&seen.tenant),
        }
    }

    /// What to write about them in a namespace.
    pub fn writes(&self, seen: &Observed, namespace: &str) -> Vec<Write> {
        let tenant = seen.name();
        let mut writes = Vec::new();
        let network = self.network.clone().map(|spec| render::network(&tenant, namespace, spec));
        match (network, seen.networks.get(namespace)) {
            (Some(wanted), Some(present)) if present.is_like(&wanted) => {}
            (Some(wanted), _) => writes.push(Write::Network(Box::new(wanted))),
            (None, present) => writes.extend(unwanted(Optional::Network, namespace, present.is_some())),
        }
        let limits = self.limits.clone().map(|spec| render::limits(&tenant, namespace, spec));
        match (limits, seen.limits.get(namespace)) {
            (Some(wanted), Some(present)) if present.is_like(&wanted) => {}
            (Some(wanted), _) => writes.push(Write::Limits(Box::new(wanted))),
            (None, present) => writes.extend(unwanted(Optional::Limits, namespace, present.is_some())),
        }
        let classes = seen.classes.get(namespace);
        let says = |q: &SlimQuota, spec: &ResourceQuotaSpec| {
            Some(&q.spec.hard) == spec.hard.as_ref() && q.spec.scope == spec.scope_selector
        };
        match &self.classes {
            Some(spec) if !classes.is_some_and(|q| says(q, spec) && is_of(&**q, &tenant)) => {
                writes.push(Write::Classes(Box::new(render::classes(&tenant, namespace, spec.clone()))));
            }
            Some(_) => {}
            None => writes.extend(unwanted(Optional::Classes, namespace, classes.is_some())),
        }
        writes
    }
}

/// The removal of what is there.
fn unwanted(what: Optional, namespace: &str, there: bool) -> Option<Write> {
    there.then(|| Write::Remove { what, namespace: namespace.to_owned() })
}

/// The write of a role binding, unless it is as wanted.
fn binding(wanted: RoleBinding, present: Option<&OwnedObject>) -> Option<Write> {
    let of = OwnedObject::of(&wanted);
    let same = present.is_some_and(|b| b.content == of.content);
    let anew = present.is_some_and(|b| b.fixed != of.fixed);
    (!same).then(|| Write::Binding { binding: Box::new(wanted), anew })
}

/// The write of a quota, if the action needs one.
fn quota(seen: &Observed, namespace: &str, action: QuotaAction) -> Option<Write> {
    let tenant = seen.name();
    let present = seen.quotas.get(namespace);
    let as_it_is = || present.map(|q| q.spec.hard.clone()).unwrap_or_default();
    let hard = match action {
        QuotaAction::Write(hard) => hard,
        QuotaAction::Touch => as_it_is(),
        QuotaAction::Keep if present.is_some_and(|q| !has_labels(q.labels(), &tenant)) => as_it_is(),
        QuotaAction::Keep => return None,
    };
    let mut quota = render::quota(&tenant, namespace, hard);
    (quota.metadata.resource_version, quota.metadata.uid) = seen.decided_on(namespace);
    Some(Write::Quota(Box::new(quota)))
}

fn has_labels(labels: &BTreeMap<String, String>, tenant: &str) -> bool {
    render::labels(tenant).iter().all(|(k, v)| labels.get(k) == Some(v))
}

/// Is this object of ours, and the tenant's?
pub fn is_of(object: &impl Resource, tenant: &str) -> bool {
    has_labels(object.labels(), tenant)
}
