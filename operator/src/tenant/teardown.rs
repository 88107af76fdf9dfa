//! The decision about a tenant that is being deleted: in what order what is its goes, and when it is let go. Pure.

use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt as _;

use super::{
    decide::Write,
    observe::{Observed, Role},
    pull, render,
};

/// How long a deletion waits for namespaces before it says what blocks and lets the tenant go.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// What to write for a tenant that is being deleted. Grants go before their namespaces: from then on no new pod is admitted, and
/// the namespace controller of an API server that has just started does not know yet of kinds that are not its own, so that it lets
/// a namespace go and leaves a grant behind that nobody can delete.
pub fn writes(seen: &Observed) -> Vec<Write> {
    if seen.tenant.spec.deletion_protection {
        return Vec::new();
    }
    let mut writes = Vec::new();
    let mut terminating = Vec::new();
    for (name, role) in seen.roles() {
        let retained = seen.namespaces.get(&name).is_some_and(|ns| ns.labels().contains_key(render::RETAINED_FROM));
        match role {
            Role::Missing | Role::Foreign | Role::Adoptable => {}
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
            Role::Active | Role::Retained => {
                let made = seen.made_by_us(&name);
                writes.extend(pull::withdrawal(seen, &name));
                writes.push(Write::Release { namespace: name, made });
            }
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
