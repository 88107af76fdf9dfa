//! The role by which owners and viewers read their tenant, and its binding.

use k8s_openapi::api::rbac::v1::{AggregationRule, ClusterRole, ClusterRoleBinding};

use super::*;

fn readable(spec: &Value) -> Observed {
    Observed { readable: true, ..converged(spec) }
}

/// With both objects, and the writes that made them.
fn with_objects(spec: &Value) -> (Observed, Vec<Write>) {
    let mut seen = readable(spec);
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes.clone());
    (seen, writes)
}

fn objects(writes: &[Write]) -> Vec<Value> {
    let object = |write: &Write| match write {
        Write::Apply { namespace, object, recreate: false, .. } if namespace == Managed::NO_NAMESPACE => object.clone(),
        other => panic!("{other:?}"),
    };
    writes.iter().map(object).collect()
}

/// The write after an edit of the object.
fn after_edit(kind: Managed, path: &str, value: Value) -> Vec<Write> {
    let (mut seen, made) = with_objects(&json!({}));
    let of = |write: &&Write| matches!(write, Write::Apply { kind: found, .. } if *found == kind);
    let Some(Write::Apply { object, .. }) = made.iter().find(of) else { panic!("{made:?}") };
    let mut object = object.clone();
    *object.pointer_mut(path).unwrap() = value;
    seen.managed.insert((kind, Managed::NO_NAMESPACE.to_owned()), Arc::new(stored(kind, object)));
    to_write(&seen)
}

#[test]
fn owners_and_viewers_read_their_tenant_and_no_other() {
    let viewers = json!([{"kind": "ServiceAccount", "name": "audit", "namespace": "ci"}]);
    let owners = json!([{"kind": "Group", "name": "team-a"}]);
    let (_, writes) = with_objects(&json!({"owners": owners, "viewers": viewers}));
    insta::assert_yaml_snapshot!(objects(&writes));
    assert_eq!(writes.len(), 2);
}

#[test]
fn without_owners_and_viewers_or_with_the_flag_off_there_are_none() {
    assert_eq!(to_write(&readable(&json!({"owners": []}))), []);
    assert_eq!(to_write(&converged(&json!({}))), []);
    let (mut seen, _) = with_objects(&json!({}));
    seen.tenant.spec.owners.clear();
    let others = to_write(&Observed { readable: false, ..seen.clone() });
    apply_writes(&mut seen, others);
    let delete = |kind| Write::Delete { kind, namespace: String::new() };
    assert_eq!(to_write(&seen), Managed::OF_CLUSTER.map(delete), "the people are gone");
}

#[test]
fn objects_as_wanted_are_left_and_edited_ones_are_applied() {
    let (seen, _) = with_objects(&json!({}));
    assert_eq!(to_write(&seen), []);
    for (kind, path, value) in [
        (Managed::TenantRole, "/rules/0/verbs", json!(["*"])),
        (Managed::TenantRole, "/rules/0/resourceNames", json!(["team-a", "team-b"])),
        (Managed::TenantRole, "/metadata/labels", json!({"gputenancy.io/tenant": "team-a"})),
        (Managed::TenantRole, "/metadata/ownerReferences", json!([])),
        (Managed::TenantRoleBinding, "/subjects/0/name", json!("all")),
    ] {
        let writes = after_edit(kind, path, value);
        assert!(
            matches!(writes.as_slice(), [Write::Apply { kind: found, recreate: false, .. }] if *found == kind),
            "{path}: {writes:?}"
        );
    }
}

#[test]
fn objects_that_apply_cannot_repair_are_recreated() {
    let recreated = |writes: &[Write], kind: Managed| matches!(writes, [Write::Apply { kind: found, recreate: true, .. }] if *found == kind);
    let kind = Managed::TenantRoleBinding;
    assert!(recreated(&after_edit(kind, "/roleRef/name", json!("view")), kind));
    let (mut seen, made) = with_objects(&json!({}));
    let role: ClusterRole = serde_json::from_value(objects(&made).remove(0)).unwrap();
    let aggregated = ClusterRole { aggregation_rule: Some(AggregationRule::default()), ..role };
    let key = (Managed::TenantRole, Managed::NO_NAMESPACE.to_owned());
    seen.managed.insert(key, Arc::new(OwnedObject::of(&aggregated)));
    assert!(recreated(&to_write(&seen), Managed::TenantRole));
}

#[test]
fn binding_names_the_role_of_its_tenant() {
    let (_, made) = with_objects(&json!({}));
    let binding: ClusterRoleBinding = serde_json::from_value(objects(&made).remove(1)).unwrap();
    assert_eq!(
        (&*binding.role_ref.name, &*Managed::TenantRole.name("team-a")),
        ("gputenancy-tenant-team-a", "gputenancy-tenant-team-a")
    );
}
