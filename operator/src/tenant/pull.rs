//! Image pull secrets of a tenant: which Secrets its namespaces should have, and whom their `ServiceAccount`s should name. Pure.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{condition::ConditionUpdate, names, reasons};
use kube::ResourceExt as _;

use super::{
    decide::{Write, is_of},
    observe::{Observed, Role},
};
use crate::cache::{
    SlimAccount, SlimSecret,
    pull::{ACCOUNT, Content, Source, TYPE},
};

/// Condition of tenants that name any.
const PULLS: &str = "PullSecretsReady";

/// What concerns the image pull secrets of one tenant, as the caches have it.
#[derive(Clone, Default)]
pub struct Pulls {
    /// The names that the chart allows, and what the operator's own namespace has of this name.
    pub sources: BTreeMap<String, Option<Arc<Source>>>,
    /// Every Secret of such a name in a namespace of the tenant, whoever made it, by namespace and name.
    pub secrets: BTreeMap<(String, String), Arc<SlimSecret>>,
    /// The `ServiceAccount` of pods that name none, by namespace.
    pub accounts: BTreeMap<String, Arc<SlimAccount>>,
}

/// A copy that is to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct PullCopy {
    /// Into which namespace.
    pub namespace: String,
    /// Under which name.
    pub name: String,
    /// What it has to hold.
    pub content: Content,
    /// Version and uid of the copy that is there; the write is void for any other, and so is one that was to make it.
    pub decided_on: (Option<String>, Option<String>),
    /// Delete that one first: it is of another type, or its content cannot be changed.
    pub anew: bool,
}

impl PullCopy {
    /// As [`Self::decided_on`] where there is none: no object is of this version, so the write makes one, or is refused.
    pub fn on_nothing() -> (Option<String>, Option<String>) {
        (Some("1".into()), None)
    }
}

/// Whom the `ServiceAccount` of a namespace is to name, ours and the team's own, if it is still of this version.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Of which namespace.
    pub namespace: String,
    /// The version.
    pub version: Option<String>,
    /// The names.
    pub names: Vec<String>,
}

/// Why a Secret cannot be copied.
enum Lack {
    NotAllowed,
    Missing,
    OtherType(String),
}

impl Pulls {
    fn present(&self, namespace: &str, name: &str) -> Option<&Arc<SlimSecret>> {
        self.secrets.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The Secret of this name that is ours.
    fn ours(&self, namespace: &str, name: &str) -> Option<&Arc<SlimSecret>> {
        self.present(namespace, name).filter(|s| is_ours(s))
    }

    fn content(&self, name: &str) -> Result<&Content, Lack> {
        let source = self.sources.get(name).ok_or(Lack::NotAllowed)?.as_ref().ok_or(Lack::Missing)?;
        let content = source.content.as_ref().filter(|_| source.type_ == TYPE);
        content.ok_or_else(|| Lack::OtherType(source.type_.clone()))
    }
}

fn is_ours(secret: &SlimSecret) -> bool {
    secret.labels().get(names::MANAGED_BY_LABEL).is_some_and(|by| by == names::MANAGED_BY)
}

/// What to write into a namespace of the tenant. A copy stays while its source is missing: who deletes a Secret to make it anew
/// must not take it from all teams meanwhile.
pub fn writes(seen: &Observed, namespace: &str) -> Vec<Write> {
    of(seen, namespace, &seen.tenant.spec.image_pull_secrets)
}

/// What to write into a namespace that is let go: all of ours is taken away.
pub fn withdrawal(seen: &Observed, namespace: &str) -> Vec<Write> {
    of(seen, namespace, &[])
}

fn of(seen: &Observed, namespace: &str, wanted: &[String]) -> Vec<Write> {
    let (mut writes, mut gone) = (Vec::new(), Vec::new());
    let (mut come, mut leave) = (Vec::new(), Vec::new());
    for name in seen.pulls.sources.keys() {
        let ours = seen.pulls.ours(namespace, name);
        if !wanted.contains(name) {
            if let Some(secret) = ours {
                gone.push(Write::Unpull { namespace: namespace.into(), name: name.clone(), uid: secret.uid() });
                leave.push(name.as_str());
            }
            continue;
        }
        if seen.pulls.present(namespace, name).is_some() && ours.is_none() {
            continue;
        }
        let copy = seen.pulls.content(name).ok().and_then(|content| copy(seen, namespace, name, content));
        if ours.is_some() || copy.is_some() {
            come.push(name.as_str());
        }
        writes.extend(copy.map(|copy| Write::Pull(Box::new(copy))));
    }
    // a name leads somewhere before it is named, and is no longer named when it does not
    writes.extend(account(seen, namespace, &come, &leave).map(Write::Account));
    writes.extend(gone);
    writes
}

/// The copy to write, unless it is there as it should be.
fn copy(seen: &Observed, namespace: &str, name: &str, content: &Content) -> Option<PullCopy> {
    let present = seen.pulls.ours(namespace, name);
    let same = |s: &SlimSecret| s.type_ == TYPE && s.mark == Some(content.mark());
    if present.is_some_and(|s| same(s) && is_of(&**s, &seen.name())) {
        return None;
    }
    Some(PullCopy {
        namespace: namespace.into(),
        name: name.into(),
        content: content.clone(),
        decided_on: present.map_or_else(PullCopy::on_nothing, |s| (s.resource_version(), s.uid())),
        anew: present.is_some_and(|s| s.type_ != TYPE || (s.immutable && !same(s))),
    })
}

fn account(seen: &Observed, namespace: &str, come: &[&str], leave: &[&str]) -> Option<Account> {
    let account = seen.pulls.accounts.get(namespace)?;
    let before: Vec<&str> = account.image_pull_secrets.iter().map(|s| s.name.as_str()).collect();
    let mut names: Vec<&str> = before.iter().copied().filter(|n| !leave.contains(n)).collect();
    names.extend(come.iter().filter(|n| !before.contains(n)));
    let names_of = || names.iter().map(|n| (*n).to_owned()).collect();
    (names != before).then(|| Account {
        namespace: namespace.into(),
        version: account.resource_version(),
        names: names_of(),
    })
}

/// How it stands with them; `None`: the tenant names none.
pub fn verdict(seen: &Observed) -> Option<ConditionUpdate> {
    let names = &seen.tenant.spec.image_pull_secrets;
    if names.is_empty() {
        return None;
    }
    let lacking = names.iter().find_map(|name| Some(lack(seen, name, &seen.pulls.content(name).err()?)));
    let wrong = lacking.or_else(|| foreign(seen)).or_else(|| late(seen));
    Some(wrong.unwrap_or_else(|| {
        let message = format!("each namespace has {}: pods that name no other pull with it", names.join(", "));
        ConditionUpdate::yes(PULLS, reasons::COPIED, message)
    }))
}

fn lack(seen: &Observed, name: &str, lack: &Lack) -> ConditionUpdate {
    let home = &seen.home;
    let leave = "or remove it from spec.imagePullSecrets";
    let (reason, message) = match lack {
        Lack::NotAllowed => (
            reasons::PULL_SECRET_NOT_ALLOWED,
            format!(
                "image pull secret {name} is not allowed: add the name to tenants.imagePullSecrets in the chart's values and the Secret to namespace {home}, {leave}"
            ),
        ),
        Lack::Missing => (
            reasons::PULL_SECRET_MISSING,
            format!(
                "namespace {home} has no Secret {name}: make it with kubectl create secret docker-registry, {leave}; copies that exist stay"
            ),
        ),
        Lack::OtherType(type_) => (
            reasons::PULL_SECRET_OTHER_TYPE,
            format!(
                "Secret {name} of namespace {home} is of type {type_} and not {TYPE}: delete it and make it with kubectl create secret docker-registry, {leave}"
            ),
        ),
    };
    ConditionUpdate::no(PULLS, reason, message)
}

/// The namespaces that get copies.
fn namespaces(seen: &Observed) -> impl Iterator<Item = String> {
    let gets = |role| matches!(role, Role::Active | Role::Missing | Role::Retained);
    seen.roles().into_iter().filter(move |(_, role)| gets(*role)).map(|(name, _)| name)
}

/// A Secret of such a name that somebody else has made.
fn foreign(seen: &Observed) -> Option<ConditionUpdate> {
    for namespace in namespaces(seen) {
        let names = seen.tenant.spec.image_pull_secrets.iter();
        let taken = |n: &&String| seen.pulls.present(&namespace, n).is_some_and(|s| !is_ours(s));
        if let Some(name) = names.clone().find(taken) {
            let message = format!(
                "Secret {name} of namespace {namespace} is not the operator's and is left alone: delete it, or remove {name} from spec.imagePullSecrets"
            );
            return Some(ConditionUpdate::no(PULLS, reasons::PULL_SECRET_FOREIGN, message));
        }
    }
    None
}

/// What is not written yet.
fn late(seen: &Observed) -> Option<ConditionUpdate> {
    for namespace in namespaces(seen) {
        let what = if let Some(write) = writes(seen, &namespace).first() {
            match write {
                Write::Pull(copy) => format!("Secret {} is not copied yet", copy.name),
                Write::Account(_) => format!("ServiceAccount {ACCOUNT} does not name its image pull secrets yet"),
                _ => "a Secret that is not wanted any more is still there".to_owned(),
            }
        } else if !seen.pulls.accounts.contains_key(&namespace) {
            format!("there is no ServiceAccount {ACCOUNT} yet, which kube-controller-manager makes")
        } else {
            continue;
        };
        return Some(ConditionUpdate::no(PULLS, reasons::APPLYING, format!("namespace {namespace}: {what}")));
    }
    None
}
