//! Role bindings and network policies of a namespace that are not the operator's: what they are, and what they allow.

use std::fmt::{Debug, Write as _};

use gputenancy_crds::metadata::Unmanaged;
use k8s_openapi::{
    api::{
        networking::v1::{NetworkPolicy, NetworkPolicySpec},
        rbac::v1::{RoleBinding, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{Api, Client, api::ListParams};
use serde::de::DeserializeOwned;

use super::managed::Managed;
use crate::tenant::render;

/// Objects that are read at once: each may have more than a megabyte.
const PAGE: u32 = 10;
/// Most pages of a kind.
const MOST_PAGES: usize = 50;
/// Most subjects of a role binding that are named.
const MOST_SUBJECTS: usize = 3;
/// Most characters of a name in a message: those of users have no limit of their own.
pub const LONGEST: usize = 100;

/// A kind of object that gives access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// A `RoleBinding`.
    RoleBinding,
    /// A `NetworkPolicy`.
    NetworkPolicy,
}

impl AccessKind {
    /// As `kubectl` takes it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::RoleBinding => "rolebinding",
            Self::NetworkPolicy => "networkpolicy",
        }
    }

    fn of(managed: Managed) -> Option<Self> {
        match managed {
            Managed::NetworkPolicy => Some(Self::NetworkPolicy),
            Managed::Owners | Managed::Viewers | Managed::VirtualCluster => Some(Self::RoleBinding),
            Managed::LimitRange
            | Managed::PriorityClassQuota
            | Managed::PodAffinityQuota
            | Managed::Grant
            | Managed::Quota
            | Managed::TenantRole
            | Managed::TenantRoleBinding => None,
        }
    }
}

/// A role binding or network policy that is not the operator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// What it is.
    pub kind: AccessKind,
    /// Its name. For role bindings the API server admits nearly all characters.
    pub name: String,
    /// What it allows: `ClusterRole edit to Group devs`.
    pub allows: String,
    /// When it was created.
    pub since: Option<Timestamp>,
}

/// The role bindings, and the network policies that open something, of a namespace; none of the tenant's own.
pub async fn list(client: Client, tenant: &str, namespace: &str) -> Result<Vec<Access>, kube::Error> {
    let (bindings, policies) = (
        Api::<Unmanaged<RoleBinding>>::namespaced(client.clone(), namespace),
        Api::<Unmanaged<NetworkPolicy>>::namespaced(client, namespace),
    );
    let mut found = pages(&bindings, |page| foreign(tenant, page, &[])).await?;
    found.extend(pages(&policies, |page| foreign(tenant, &[], page)).await?);
    Ok(found)
}

/// Reads a few objects at a time: a team chooses the number and the size of its objects. What is beyond the last page is not named.
async fn pages<K>(api: &Api<Unmanaged<K>>, foreign: impl Fn(&[K]) -> Vec<Access>) -> Result<Vec<Access>, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let (mut found, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
    for _ in 0..MOST_PAGES {
        let list = api.list(&page).await?;
        let items: Vec<K> = list.items.into_iter().map(|Unmanaged(object)| object).collect();
        found.extend(foreign(&items));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    Ok(found)
}

/// Those of a namespace's objects that are not the operator's. A name of the operator's hides nothing without its labels.
fn foreign(tenant: &str, bindings: &[RoleBinding], policies: &[NetworkPolicy]) -> Vec<Access> {
    let foreign = |kind: AccessKind, meta: &ObjectMeta, labelled: bool| {
        let ours = |managed: Managed| {
            AccessKind::of(managed) == Some(kind) && meta.name.as_deref() == Some(&*managed.name(tenant))
        };
        !labelled || !Managed::all().any(ours)
    };
    let bindings =
        bindings.iter().filter(|b| foreign(AccessKind::RoleBinding, &b.metadata, render::is_labelled(*b, tenant)));
    let policies =
        policies.iter().filter(|p| foreign(AccessKind::NetworkPolicy, &p.metadata, render::is_labelled(*p, tenant)));
    bindings.filter_map(of_binding).chain(policies.filter_map(of_policy)).collect()
}

fn of_binding(binding: &RoleBinding) -> Option<Access> {
    let subject = |s: &Subject| match &s.namespace {
        Some(namespace) => format!("{} {}/{}", s.kind, shown(namespace), shown(&s.name)),
        None => format!("{} {}", s.kind, shown(&s.name)),
    };
    let all: Vec<&Subject> = binding.subjects.iter().flatten().collect();
    let mut subjects = all.iter().take(MOST_SUBJECTS).map(|s| subject(s)).collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = all.len().checked_sub(MOST_SUBJECTS) {
        let _ = write!(subjects, " and {more} more");
    }
    let allows = format!("{} {} to {subjects}", binding.role_ref.kind, shown(&binding.role_ref.name));
    (!all.is_empty()).then(|| of(AccessKind::RoleBinding, &binding.metadata, allows))
}

fn of_policy(policy: &NetworkPolicy) -> Option<Access> {
    let NetworkPolicySpec { egress, ingress, pod_selector: _, policy_types } = policy.spec.as_ref()?;
    let (ingress, egress) = (ingress.iter().flatten().count(), egress.iter().flatten().count());
    // without a list a policy is one of ingress, and of egress if it has rules for it
    let has = |name: &str| policy_types.as_ref().is_none_or(|types| types.iter().any(|t| t == name));
    // without a rule a policy only closes
    let opens = match (ingress > 0 && has("Ingress"), egress > 0 && has("Egress")) {
        (true, true) => "opens ingress and egress",
        (true, false) => "opens ingress",
        (false, true) => "opens egress",
        (false, false) => return None,
    };
    Some(of(AccessKind::NetworkPolicy, &policy.metadata, opens.into()))
}

fn of(kind: AccessKind, meta: &ObjectMeta, allows: String) -> Access {
    let since = meta.creation_timestamp.as_ref().map(|time| time.0);
    Access { kind, name: meta.name.clone().unwrap_or_default(), allows, since }
}

/// A name of others in a message: without control characters, and cut.
pub fn shown(name: &str) -> String {
    let cut: String = name.chars().take(LONGEST).collect();
    if cut.len() < name.len() { format!("{}…", cut.escape_debug()) } else { cut.escape_debug().to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use gputenancy_crds::names;

    fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    fn binding(name: &str, tenant: Option<&str>, subjects: usize) -> RoleBinding {
        let labels =
            tenant.map(|tenant| json!({names::TENANT_LABEL: tenant, names::MANAGED_BY_LABEL: names::MANAGED_BY}));
        let subjects = vec![json!({"kind": "User", "name": "eve"}); subjects];
        read(
            json!({"metadata": {"name": name, "labels": labels}, "roleRef": {"apiGroup": "", "kind": "ClusterRole", "name": "edit"}, "subjects": subjects}),
        )
    }

    fn policy(name: &str, spec: &Value) -> NetworkPolicy {
        read(json!({"metadata": {"name": name}, "spec": spec}))
    }

    #[test]
    fn names_of_the_operator_hide_nothing_without_its_labels() {
        let own = Managed::Owners.name("team-a");
        let own = &*own;
        let all =
            [binding(own, Some("a"), 1), binding(own, Some("b"), 1), binding(own, None, 1), binding("c", Some("a"), 1)];
        let found = foreign("a", &all, &[]);
        assert_eq!(found.iter().map(|a| a.name.as_str()).collect::<Vec<_>>(), [own, own, "c"]);
        let closed = policy(&Managed::NetworkPolicy.name("team-a"), &json!({"ingress": [{}]}));
        assert_eq!(foreign("a", &[], &[closed]).len(), 1);
    }

    #[test]
    fn role_binding_says_what_it_gives_to_three_subjects() {
        let allows = |subjects| foreign("a", &[binding("c", None, subjects)], &[]).pop().map(|a| a.allows);
        assert_eq!(allows(0), None);
        assert_eq!(allows(1).as_deref(), Some("ClusterRole edit to User eve"));
        assert_eq!(allows(5).as_deref(), Some("ClusterRole edit to User eve, User eve, User eve and 2 more"));
    }

    #[test]
    fn network_policy_opens_only_what_it_has_rules_and_a_type_for() {
        let opens = |spec: Value| foreign("a", &[], &[policy("p", &spec)]).pop().map(|a| a.allows);
        assert_eq!(opens(json!({"ingress": [{}]})).as_deref(), Some("opens ingress"));
        assert_eq!(opens(json!({"ingress": [{}], "egress": [{}]})).as_deref(), Some("opens ingress and egress"));
        assert_eq!(
            opens(json!({"ingress": [{}], "egress": [{}], "policyTypes": ["Egress"]})).as_deref(),
            Some("opens egress")
        );
        assert_eq!(opens(json!({"ingress": [{}], "policyTypes": ["Egress"]})), None);
        assert_eq!(opens(json!({"podSelector": {}})), None);
        assert_eq!(opens(json!({"ingress": [], "policyTypes": ["Ingress"]})), None);
    }
}
