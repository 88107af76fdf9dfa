//! Who reaches an adopted namespace by role bindings and network policies that were there before it. They still hold; a person removes them,
//! because the operator may delete nothing but its own objects.

use std::fmt::Write as _;

use gputenancy_crds::{Network, condition::ConditionUpdate, reasons};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use crate::tenant::{
    decide::roles::{Role, Roles},
    observe::{
        Observed,
        foreign_access::{Access, AccessKind, LONGEST, shown},
    },
    render,
};

/// Type of the condition, which is absent where there is nothing to remove.
pub const EARLIER_ACCESS: &str = "EarlierAccess";
/// Most objects of a namespace that a message names.
const MOST_OBJECTS: usize = 8;
/// Most namespaces that a message speaks of: with the other limits it stays below 32 KiB, which a condition may have.
const MOST_NAMESPACES: usize = 4;

/// Is this a name that a shell takes as it is, and that is no option?
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
    name.len() <= LONGEST && !name.starts_with('-') && name.chars().all(plain)
}

/// The adopted namespaces that are the tenant's, with the time of adoption.
pub fn adopted(seen: &Observed, roles: &Roles) -> Vec<(String, Timestamp)> {
    let adoption = |namespace: &str| -> Option<Timestamp> {
        seen.namespaces.get(namespace)?.annotations().get(render::ADOPTED)?.parse().ok()
    };
    roles.with(Role::Active).filter_map(|name| Some((name.to_owned(), adoption(name)?))).collect()
}

/// Is there an adopted namespace whose objects could not be read?
pub fn is_unread(seen: &Observed, roles: &Roles) -> bool {
    adopted(seen, roles).iter().any(|(name, _)| !seen.foreign_access.contains_key(name))
}

/// The condition, where an adopted namespace has objects from before; as it was, where they could not be read.
pub fn condition(seen: &Observed, roles: &Roles) -> Option<ConditionUpdate> {
    let yes = |message: String| ConditionUpdate::yes(EARLIER_ACCESS, reasons::EARLIER_ACCESS, message);
    if is_unread(seen, roles) {
        let before = seen.tenant.status.iter().flat_map(|s| &s.conditions).find(|c| c.type_ == EARLIER_ACCESS)?;
        return Some(yes(before.message.clone()));
    }
    let all: Vec<String> =
        adopted(seen, roles).into_iter().filter_map(|(namespace, at)| message(seen, &namespace, at)).collect();
    let mut text = all.iter().take(MOST_NAMESPACES).cloned().collect::<Vec<_>>().join("; ");
    if let Some(more @ 1..) = all.len().checked_sub(MOST_NAMESPACES) {
        let _ = write!(text, "; and in {more} more namespaces");
    }
    (!all.is_empty()).then(|| yes(text))
}

/// The command comes first: an event's note is cut.
fn message(seen: &Observed, namespace: &str, adopted: Timestamp) -> Option<String> {
    // later ones are the owners' own; with spec.network: Open the operator writes no policy, and one that is there only restricts
    let open = seen.tenant.spec.network == Network::Open;
    let counts = |access: &&Access| {
        access.since.is_none_or(|since| since <= adopted) && !(open && access.kind == AccessKind::NetworkPolicy)
    };
    let found: Vec<&Access> = seen.foreign_access.get(namespace)?.iter().filter(counts).collect();
    if found.is_empty() {
        return None;
    }
    let named = || found.iter().take(MOST_OBJECTS);
    let mut text = format!("namespace {namespace}: {} from before its adoption still give access", found.len());
    let plain: Vec<String> = named()
        .filter(|access| is_plain(&access.name))
        .map(|access| format!("{}/{}", access.kind.resource(), access.name))
        .collect();
    if !plain.is_empty() {
        let _ = write!(text, "; delete those that should not: kubectl delete -n {namespace} {}", plain.join(" "));
    }
    if plain.len() < found.len() {
        let _ = write!(text, "; see the others: kubectl get rolebindings,networkpolicies -n {namespace}");
    }
    let each = named().map(|a| format!("{}/{} ({})", a.kind.resource(), shown(&a.name), a.allows)).collect::<Vec<_>>();
    let _ = write!(text, "; what they allow: {}", each.join(", "));
    Some(text)
}
