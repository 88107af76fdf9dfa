//! What the status says about role bindings and network policies that were in an adopted namespace.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use crate::tenant::observe::foreign_access::{Access, AccessKind};

fn access(kind: AccessKind, name: &str, since: i64) -> Access {
    let allows = "ClusterRole edit to Group devs".into();
    Access { kind, name: name.into(), allows, since: Timestamp::from_second(since).ok() }
}

/// A tenant with one namespace that was adopted at second 100; `None`: its objects could not be read.
fn adopted(spec: &Value, all: Option<Vec<Access>>) -> Observed {
    let mut seen = converged(spec);
    for namespace in seen.namespaces.values_mut() {
        let at = Timestamp::from_second(100).unwrap().to_string();
        Arc::make_mut(namespace).metadata.annotations = Some([(render::ADOPTED.to_owned(), at)].into());
    }
    seen.foreign_access.extend(all.map(|all| ("old".to_owned(), all)));
    seen
}

fn message(seen: &Observed) -> Option<(String, String)> {
    let status = status_of(seen, None);
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.status.clone()).unwrap();
    status.conditions.into_iter().find(|c| c.type_ == "EarlierAccess").map(|c| (c.message, ready))
}

fn with_access(all: Vec<Access>) -> Option<(String, String)> {
    message(&adopted(&json!({"namespaces": [{"name": "old"}]}), Some(all)))
}

#[test]
fn objects_from_before_the_adoption_are_named_with_the_command_and_the_tenant_stays_ready() {
    let all = vec![access(AccessKind::RoleBinding, "ci", 50), access(AccessKind::NetworkPolicy, "open", 100)];
    let (message, ready) = with_access(all).unwrap();
    assert!(message.contains("kubectl delete -n old rolebinding/ci networkpolicy/open; what"), "{message}");
    assert!(message.ends_with(
        "rolebinding/ci (ClusterRole edit to Group devs), networkpolicy/open (ClusterRole edit to Group devs)"
    ));
    assert_eq!(ready, "True");
    let many = (0..20).map(|n| access(AccessKind::RoleBinding, &format!("b{n}"), 1)).collect();
    let (message, _) = with_access(many).unwrap();
    assert!(
        message.contains("kubectl get rolebindings,networkpolicies -n old") && !message.contains("b8 "),
        "{message}"
    );
}

#[test]
fn command_has_no_name_that_a_shell_or_kubectl_would_read_otherwise() {
    for name in ["x;reboot", "$(reboot)", "a b", "-A", "--all", "a\nb", "`x`", "é"] {
        let (message, _) = with_access(vec![access(AccessKind::RoleBinding, name, 1)]).unwrap();
        assert!(!message.contains("kubectl delete"), "{message}");
        assert!(message.contains("kubectl get rolebindings") && !message.contains('\n'), "{message}");
    }
    let long = "x".repeat(100_000);
    let many = (0..20).map(|_| access(AccessKind::RoleBinding, &long, 1)).collect();
    assert!(with_access(many).unwrap().0.len() < 4096);
}

#[test]
fn later_objects_and_namespaces_that_were_not_adopted_are_no_matter() {
    assert_eq!(with_access(vec![access(AccessKind::RoleBinding, "of-owners", 101)]), None);
    assert_eq!(with_access(vec![]), None);
    let mut made =
        adopted(&json!({"namespaces": [{"name": "old"}]}), Some(vec![access(AccessKind::RoleBinding, "ci", 50)]));
    for namespace in made.namespaces.values_mut() {
        Arc::make_mut(namespace).metadata.annotations = None;
    }
    assert_eq!(message(&made), None);
}

#[test]
fn policies_of_an_open_tenant_are_its_own_protection() {
    let open = json!({"namespaces": [{"name": "old"}], "network": "Open"});
    let policy = vec![access(AccessKind::NetworkPolicy, "closed-to-most", 50)];
    assert_eq!(message(&adopted(&open, Some(policy))), None);
}

#[test]
fn condition_stays_while_the_objects_cannot_be_read() {
    let spec = json!({"namespaces": [{"name": "old"}]});
    let read = adopted(&spec, Some(vec![access(AccessKind::RoleBinding, "ci", 50)]));
    let mut unread = adopted(&spec, None);
    assert_eq!(message(&unread), None);
    unread.tenant.status = Some(status_of(&read, None));
    assert_eq!(message(&unread), message(&read));
}

#[test]
fn adoption_is_noted_and_the_note_stays_with_new_labels() {
    let mut seen = observed(&json!({"namespaces": [{"name": "old", "adopt": true}]}));
    let labels = Some([("gputenancy.io/adoptable".to_owned(), "true".to_owned())].into());
    let metadata = ObjectMeta { name: Some("old".into()), labels, ..ObjectMeta::default() };
    seen.namespaces.insert("old".into(), Arc::new(SlimNamespace { metadata, ..SlimNamespace::default() }));
    let Some(Write::AdoptNamespace(namespace)) = to_write(&seen).into_iter().next() else { panic!("no adoption") };
    assert_eq!(namespace.annotations().get(render::ADOPTED), Some(&seen.now.to_string()));
    let mut seen = adopted(&json!({"namespaces": [{"name": "old"}], "podSecurity": "Baseline"}), Some(vec![]));
    for namespace in seen.namespaces.values_mut() {
        Arc::make_mut(namespace).labels_mut().remove("pod-security.kubernetes.io/enforce");
    }
    let labelled = to_write(&seen).into_iter().find_map(|write| match write {
        Write::LabelNamespace { namespace, .. } => Some(namespace),
        _ => None,
    });
    assert!(labelled.unwrap().annotations().contains_key(render::ADOPTED));
}
