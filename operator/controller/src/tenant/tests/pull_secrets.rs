//! Tests of image pull secrets: copies, lists of service accounts, and conditions.
#![allow(clippy::needless_pass_by_value, reason = "a test reads better without ampersands before json!")]

use std::sync::Arc;

use serde_json::{Value, json};

use super::{apply_writes, converge, observed, reason, status_of, to_write};
use crate::{
    cache::pull::{KEY, SlimAccount, SlimSecret, Source, TYPE},
    tenant::{
        decide::{pull_secrets, write::Write},
        observe::{Observed, managed::Managed},
    },
};

const OPERATOR: &str = "gputenancy";

fn secret(namespace: &str, type_: &str, content: &str, labels: Value) -> Value {
    let meta =
        json!({"name": "registry", "namespace": namespace, "uid": "s-1", "resourceVersion": "40", "labels": labels});
    json!({"metadata": meta, "type": type_, "data": {KEY: content}})
}

fn source(seen: &mut Observed, type_: &str, content: &str) {
    let source: Source = serde_json::from_value(secret(&seen.operator_namespace, type_, content, json!({}))).unwrap();
    seen.pull_secrets.sources.insert("registry".into(), Some(Arc::new(source)));
}

fn insert(seen: &mut Observed, namespace: &str, secret: Value) {
    let slim: SlimSecret = serde_json::from_value(secret).unwrap();
    seen.pull_secrets.secrets.insert((namespace.into(), "registry".into()), Arc::new(slim));
}

fn account(seen: &mut Observed, namespace: &str, names: &[&str]) {
    let names: Vec<Value> = names.iter().map(|n| json!({"name": n})).collect();
    let object = json!({"metadata": {"name": "default", "namespace": namespace, "resourceVersion": "7"}, "imagePullSecrets": names});
    let slim: SlimAccount = serde_json::from_value(object).unwrap();
    seen.pull_secrets.accounts.insert(namespace.into(), Arc::new(slim));
}

fn named(seen: &Observed, namespace: &str) -> Vec<String> {
    seen.pull_secrets.accounts[namespace].image_pull_secrets.iter().map(|n| n.name.clone()).collect()
}

/// A tenant with pull secret `registry`, which the chart allows and the operator's namespace has.
fn new_tenant() -> Observed {
    let mut seen = observed(&json!({"imagePullSecrets": ["registry"]}));
    source(&mut seen, TYPE, "e30=");
    for namespace in ["a1", "a2"] {
        account(&mut seen, namespace, &["own"]);
    }
    seen
}

fn with_copies() -> Observed {
    let mut seen = new_tenant();
    converge(&mut seen);
    seen
}

/// Writes in short.
fn short(writes: &[Write]) -> Vec<String> {
    let one = |write: &Write| match write {
        Write::ApplyPullSecret(copy) => {
            format!("{}/{} {}", copy.namespace, copy.name, if copy.recreate { "recreated" } else { "" })
        }
        Write::SetPullSecrets(account) => format!("{} names {}", account.namespace, account.names.join(" ")),
        Write::DeletePullSecret { namespace, name, .. } => format!("{namespace}/{name} deleted"),
        other => format!("{other:?}"),
    };
    writes.iter().map(|w| one(w).trim_end().to_owned()).collect()
}

#[test]
fn pull_secret_is_copied_to_each_namespace_and_named_by_its_service_account() {
    let mut seen = new_tenant();
    let writes = to_write(&seen);
    let of_pulls = short(&writes[writes.len() - 4..]);
    assert_eq!(of_pulls, ["a1/registry", "a1 names own registry", "a2/registry", "a2 names own registry"]);
    let copies = writes.iter().filter_map(|write| match write {
        Write::ApplyPullSecret(copy) => Some(pull_secrets::secret(&seen.tenant, copy)),
        _ => None,
    });
    insta::assert_yaml_snapshot!(copies.collect::<Vec<_>>());
    assert_eq!(reason(&seen, "PullSecretsReady").1, "Applying");
    apply_writes(&mut seen, writes);
    assert_eq!(to_write(&seen), []);
    assert_eq!((reason(&seen, "PullSecretsReady").1.as_str(), reason(&seen, "Ready").0.as_str()), ("Copied", "True"));
}

#[test]
fn tenant_without_pull_secrets_has_no_condition_about_them() {
    let mut seen = observed(&json!({}));
    source(&mut seen, TYPE, "e30=");
    account(&mut seen, "a1", &["own"]);
    converge(&mut seen);
    assert!(seen.pull_secrets.secrets.is_empty());
    assert!(!status_of(&seen, None).conditions.iter().any(|c| c.type_ == "PullSecretsReady"));
}

#[test]
fn pull_secret_copies_follow_their_source_and_drift_is_repaired() {
    let mut seen = with_copies();
    source(&mut seen, TYPE, "e30K");
    assert_eq!(short(&to_write(&seen)), ["a1/registry", "a2/registry"]);
    converge(&mut seen);
    insert(
        &mut seen,
        "a1",
        secret("a1", TYPE, "bm8=", json!({"app.kubernetes.io/managed-by": OPERATOR, "gputenancy.io/tenant": "team-a"})),
    );
    seen.pull_secrets.secrets.remove(&("a2".into(), "registry".into()));
    account(&mut seen, "a2", &[]);
    assert_eq!(short(&to_write(&seen)), ["a1/registry", "a2/registry", "a2 names registry"]);
    converge(&mut seen);
    // the tenant's label is repaired too; keys and names that the team adds stay
    let mut more =
        secret("a1", TYPE, "e30K", json!({"app.kubernetes.io/managed-by": OPERATOR, "gputenancy.io/tenant": "x"}));
    more["data"]["note"] = json!("eA==");
    insert(&mut seen, "a1", more.clone());
    assert_eq!(short(&to_write(&seen)), ["a1/registry"]);
    more["metadata"]["labels"]["gputenancy.io/tenant"] = json!("team-a");
    insert(&mut seen, "a1", more);
    account(&mut seen, "a1", &["registry", "own", "own"]);
    assert_eq!(to_write(&seen), []);
}

#[test]
fn pull_secret_write_carries_the_observed_version_or_absence() {
    let mut seen = new_tenant();
    insert(&mut seen, "a2", secret("a2", TYPE, "bm8=", json!({"app.kubernetes.io/managed-by": OPERATOR})));
    let writes = to_write(&seen);
    let on: Vec<_> = writes
        .iter()
        .filter_map(|w| if let Write::ApplyPullSecret(c) = w { Some(c.decided_on.clone()) } else { None })
        .collect();
    assert_eq!(on, [(Some("1".into()), None), (Some("40".into()), Some("s-1".into()))]);
}

#[test]
fn pull_secret_with_immutable_content_or_other_type_is_recreated() {
    let labels = json!({"app.kubernetes.io/managed-by": OPERATOR, "gputenancy.io/tenant": "team-a"});
    let mut frozen = secret("a1", TYPE, "bm8=", labels.clone());
    frozen["immutable"] = json!(true);
    let mut same = secret("a1", TYPE, "e30=", labels.clone());
    same["immutable"] = json!(true);
    for (present, expected) in [
        (frozen, &["a1/registry recreated"][..]),
        (secret("a1", "Opaque", "e30=", labels), &["a1/registry recreated"]),
        (same, &[]),
    ] {
        let mut seen = with_copies();
        insert(&mut seen, "a1", present);
        assert_eq!(short(&to_write(&seen)), expected);
    }
}

#[test]
fn pull_secret_removed_from_the_spec_is_removed_from_the_account_before_its_deletion() {
    let mut seen = with_copies();
    seen.tenant.spec.image_pull_secrets.clear();
    let expected = ["a1 names own", "a1/registry deleted", "a2 names own", "a2/registry deleted"];
    assert_eq!(short(&to_write(&seen)), expected);
    converge(&mut seen);
    assert!(seen.pull_secrets.secrets.is_empty() && named(&seen, "a1") == ["own"]);
}

#[test]
fn pull_secret_of_the_team_is_not_changed_and_reported() {
    let mut seen = new_tenant();
    insert(&mut seen, "a2", secret("a2", "Opaque", "bm8=", json!({"team": "a"})));
    converge(&mut seen);
    assert_eq!((named(&seen, "a1").len(), named(&seen, "a2").len()), (2, 1));
    let (_, why, message) = reason(&seen, "Stalled");
    assert_eq!(why, "PullSecretConflict");
    assert!(message.contains("Secret registry of namespace a2 is not managed by the operator"), "{message}");
    // it is not changed either when the tenant removes the name, or its account has it
    let mut other = seen.clone();
    other.tenant.spec.image_pull_secrets.clear();
    account(&mut other, "a2", &["registry"]);
    assert_eq!(short(&to_write(&other)), ["a1 names own", "a1/registry deleted"]);
    seen.pull_secrets.secrets.remove(&("a2".into(), "registry".into()));
    converge(&mut seen);
    assert_eq!(reason(&seen, "PullSecretsReady").0, "True");
}

#[test]
fn pull_secret_that_cannot_be_copied_is_reported_and_all_else_is_written() {
    let (mut unknown, mut missing, mut other) = (new_tenant(), new_tenant(), new_tenant());
    unknown.pull_secrets.sources.clear();
    missing.pull_secrets.sources.insert("registry".into(), None);
    source(&mut other, "Opaque", "e30=");
    for (mut seen, expected, text) in [
        (unknown, "PullSecretNotAllowed", "add the name to tenants.imagePullSecrets in the chart's values"),
        (missing, "PullSecretMissing", "namespace gputenancy-system has no Secret registry: create it with kubectl"),
        (other, "PullSecretInvalidType", "is of type Opaque and not kubernetes.io/dockerconfigjson"),
    ] {
        converge(&mut seen);
        assert!(seen.pull_secrets.secrets.is_empty() && named(&seen, "a1") == ["own"], "{expected}");
        assert_eq!(
            (seen.quotas.len(), seen.managed.keys().filter(|(kind, _)| *kind == Managed::Owners).count()),
            (2, 2),
            "{expected}"
        );
        let (_, why, message) = reason(&seen, "Stalled");
        assert!(why == expected && message.contains(text), "{why}: {message}");
        source(&mut seen, TYPE, "e30=");
        converge(&mut seen);
        assert_eq!(reason(&seen, "Ready").0, "True", "recovers without an action");
    }
}

#[test]
fn pull_secret_copy_stays_while_its_source_is_missing() {
    let mut seen = with_copies();
    seen.pull_secrets.sources.insert("registry".into(), None);
    assert_eq!(to_write(&seen), []);
    assert_eq!(reason(&seen, "PullSecretsReady").1, "PullSecretMissing");
    account(&mut seen, "a1", &[]);
    assert_eq!(short(&to_write(&seen)), ["a1 names registry"]);
}

#[test]
fn missing_service_account_is_reported_as_applying() {
    let mut seen = new_tenant();
    seen.pull_secrets.accounts.remove("a2");
    converge(&mut seen);
    let (_, why, message) = reason(&seen, "Reconciling");
    assert!(why == "Applying" && message.contains("namespace a2: there is no ServiceAccount default yet"), "{message}");
}

#[test]
fn released_namespace_keeps_no_pull_secret() {
    let mut seen = with_copies();
    let mut retained = (*seen.namespaces["a2"]).clone();
    retained.metadata.annotations = None;
    seen.namespaces.insert("a2".into(), Arc::new(retained));
    let mut seen = super::deleted(seen, 0);
    let writes = to_write(&seen);
    let of_a2 = short(&writes.iter().filter(|w| !matches!(w, Write::Delete { .. })).cloned().collect::<Vec<_>>());
    assert_eq!(of_a2[..2], ["a2 names own", "a2/registry deleted"]);
    assert!(of_a2[2].starts_with("Release"), "{of_a2:?}");
    apply_writes(&mut seen, writes);
    assert_eq!(named(&seen, "a2"), ["own"]);
}

#[test]
fn pull_secret_content_is_in_no_write_or_status_output() {
    let mut seen = new_tenant();
    source(&mut seen, TYPE, "c2VjcmV0");
    let shown = format!("{:?} {:?}", to_write(&seen), status_of(&seen, None));
    let bytes = format!("{:?}", b"secret");
    assert!(shown.contains("registry") && !shown.contains("c2VjcmV0"));
    assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
}
