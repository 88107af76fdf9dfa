//! Image pull secrets of a tenant: the Secrets that its namespaces should have, and those that their `ServiceAccount`s should name. Pure.

use gputenancy_crds::{
    GpuTenant,
    condition::ConditionUpdate,
    names::{self, DEFAULT_ACCOUNT},
    reasons,
};
use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt as _, api::ObjectMeta};

use super::{
    roles::Roles,
    write::{AccountPullSecrets, PullSecretCopy, Write, absent},
};
use crate::{
    cache::{
        SlimSecret,
        pull::{Content, TYPE},
    },
    tenant::{
        observe::{Observed, PullSecrets},
        render,
    },
};

/// Condition of tenants with `spec.imagePullSecrets`.
const CONDITION: &str = "PullSecretsReady";

/// Why a Secret cannot be copied.
enum Uncopied {
    NotAllowed,
    Missing,
    OtherType(String),
}

impl PullSecrets {
    fn present(&self, namespace: &str, name: &str) -> Option<&SlimSecret> {
        self.secrets.get(&(namespace.to_owned(), name.to_owned())).map(|secret| &**secret)
    }

    /// The Secret of this name that the operator manages.
    fn copy(&self, namespace: &str, name: &str) -> Option<&SlimSecret> {
        self.present(namespace, name).filter(|secret| is_managed(secret))
    }

    fn content(&self, name: &str) -> Result<&Content, Uncopied> {
        let source = self.sources.get(name).ok_or(Uncopied::NotAllowed)?.as_ref().ok_or(Uncopied::Missing)?;
        let content = source.content.as_ref().filter(|_| source.type_ == TYPE);
        content.ok_or_else(|| Uncopied::OtherType(source.type_.clone()))
    }
}

fn is_managed(secret: &SlimSecret) -> bool {
    secret.labels().get(names::MANAGED_BY_LABEL).is_some_and(|by| by == names::MANAGED_BY)
}

/// The copy of an image pull secret, rendered.
pub fn secret(tenant: &GpuTenant, copy: &PullSecretCopy) -> Secret {
    let (resource_version, uid) = copy.decided_on.clone();
    Secret {
        metadata: ObjectMeta { resource_version, uid, ..render::meta(tenant, &copy.namespace, &copy.name) },
        type_: Some(TYPE.into()),
        data: Some(copy.content.data()),
        ..Secret::default()
    }
}

/// What to write into a namespace of the tenant. A copy stays while its source is missing: a platform team that recreates the source must
/// not break all tenants meanwhile.
pub fn writes(seen: &Observed, namespace: &str) -> Vec<Write> {
    writes_for(seen, namespace, &seen.tenant.spec.image_pull_secrets)
}

/// What to write into a namespace that is released: deletes all copies.
pub fn release(seen: &Observed, namespace: &str) -> Vec<Write> {
    writes_for(seen, namespace, &[])
}

fn writes_for(seen: &Observed, namespace: &str, wanted: &[String]) -> Vec<Write> {
    let (mut writes, mut deletes) = (Vec::new(), Vec::new());
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    for name in seen.pull_secrets.sources.keys() {
        let copy = seen.pull_secrets.copy(namespace, name);
        if !wanted.contains(name) {
            if let Some(secret) = copy {
                remove.push(name.as_str());
                let (namespace, name) = (namespace.into(), name.clone());
                deletes.push(Write::DeletePullSecret { namespace, name, uid: secret.uid() });
            }
            continue;
        }
        if seen.pull_secrets.present(namespace, name).is_some() && copy.is_none() {
            continue;
        }
        let new = seen.pull_secrets.content(name).ok().and_then(|content| new_copy(seen, namespace, name, content));
        if copy.is_some() || new.is_some() {
            add.push(name.as_str());
        }
        writes.extend(new.map(|new| Write::ApplyPullSecret(Box::new(new))));
    }
    // the account never names a Secret that does not exist: named after the first apply, removed before the delete
    writes.extend(account(seen, namespace, &add, &remove).map(Write::SetPullSecrets));
    writes.extend(deletes);
    writes
}

/// The copy to write, unless it exists as it should be.
fn new_copy(seen: &Observed, namespace: &str, name: &str, content: &Content) -> Option<PullSecretCopy> {
    let present = seen.pull_secrets.copy(namespace, name);
    let same = |s: &SlimSecret| s.type_ == TYPE && s.hash == Some(content.hash());
    if present.is_some_and(|s| same(s) && render::is_labelled(s, &seen.name())) {
        return None;
    }
    Some(PullSecretCopy {
        namespace: namespace.into(),
        name: name.into(),
        content: content.clone(),
        decided_on: present.map_or_else(absent, |s| (s.resource_version(), s.uid())),
        recreate: present.is_some_and(|s| s.type_ != TYPE || (s.immutable && !same(s))),
    })
}

/// The list of the `ServiceAccount` with these names added and removed, unless it is right.
fn account(seen: &Observed, namespace: &str, add: &[&str], remove: &[&str]) -> Option<AccountPullSecrets> {
    let account = seen.pull_secrets.accounts.get(namespace)?;
    let before: Vec<&str> = account.image_pull_secrets.iter().map(|s| s.name.as_str()).collect();
    let mut names: Vec<&str> = before.iter().copied().filter(|n| !remove.contains(n)).collect();
    names.extend(add.iter().filter(|n| !before.contains(n)));
    (names != before).then(|| AccountPullSecrets {
        namespace: namespace.into(),
        version: account.resource_version(),
        names: names.iter().map(|n| (*n).to_owned()).collect(),
    })
}

/// The condition; `None` without `spec.imagePullSecrets`.
pub fn condition(seen: &Observed, roles: &Roles) -> Option<ConditionUpdate> {
    let names = &seen.tenant.spec.image_pull_secrets;
    if names.is_empty() {
        return None;
    }
    let uncopied = |name: &String| Some(uncopied(seen, name, &seen.pull_secrets.content(name).err()?));
    let wrong = names.iter().find_map(uncopied).or_else(|| foreign(seen, roles)).or_else(|| pending(seen, roles));
    Some(wrong.unwrap_or_else(|| {
        let message = format!("each namespace has {}: pods that name no other pull with it", names.join(", "));
        ConditionUpdate::yes(CONDITION, reasons::COPIED, message)
    }))
}

fn uncopied(seen: &Observed, name: &str, why: &Uncopied) -> ConditionUpdate {
    let home = &seen.operator_namespace;
    let otherwise = "or remove it from spec.imagePullSecrets";
    let (reason, message) = match why {
        Uncopied::NotAllowed => (
            reasons::PULL_SECRET_NOT_ALLOWED,
            format!(
                "image pull secret {name} is not allowed: add the name to tenants.imagePullSecrets in the chart's values and the Secret to namespace {home}, {otherwise}"
            ),
        ),
        Uncopied::Missing => (
            reasons::PULL_SECRET_MISSING,
            format!(
                "namespace {home} has no Secret {name}: create it with kubectl create secret docker-registry, {otherwise}; copies that exist stay"
            ),
        ),
        Uncopied::OtherType(type_) => (
            reasons::PULL_SECRET_INVALID_TYPE,
            format!(
                "Secret {name} of namespace {home} is of type {type_} and not {TYPE}: delete it and create it with kubectl create secret docker-registry, {otherwise}"
            ),
        ),
    };
    ConditionUpdate::no(CONDITION, reason, message)
}

/// A Secret with such a name that the operator does not manage.
fn foreign(seen: &Observed, roles: &Roles) -> Option<ConditionUpdate> {
    for namespace in roles.managed() {
        let mut names = seen.tenant.spec.image_pull_secrets.iter();
        let taken = |n: &&String| seen.pull_secrets.present(namespace, n).is_some_and(|s| !is_managed(s));
        if let Some(name) = names.find(taken) {
            let message = format!(
                "Secret {name} of namespace {namespace} is not managed by the operator, which does not change it: delete it, or remove {name} from spec.imagePullSecrets"
            );
            return Some(ConditionUpdate::no(CONDITION, reasons::PULL_SECRET_CONFLICT, message));
        }
    }
    None
}

/// A write that is not cached yet.
fn pending(seen: &Observed, roles: &Roles) -> Option<ConditionUpdate> {
    for namespace in roles.managed() {
        let what = if let Some(write) = writes(seen, namespace).first() {
            match write {
                Write::ApplyPullSecret(copy) => format!("Secret {} is not copied yet", copy.name),
                Write::SetPullSecrets(_) => {
                    format!("ServiceAccount {DEFAULT_ACCOUNT} does not name its image pull secrets yet")
                }
                _ => "a Secret that spec.imagePullSecrets no longer names still exists".to_owned(),
            }
        } else if !seen.pull_secrets.accounts.contains_key(namespace) {
            format!("there is no ServiceAccount {DEFAULT_ACCOUNT} yet, which kube-controller-manager creates")
        } else {
            continue;
        };
        return Some(ConditionUpdate::no(CONDITION, reasons::APPLYING, format!("namespace {namespace}: {what}")));
    }
    None
}
