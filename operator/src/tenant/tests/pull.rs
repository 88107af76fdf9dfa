//! Image pull secrets: what is copied where, whom service accounts name, and what is said of what cannot be had.
#![allow(clippy::needless_pass_by_value, reason = "a test reads better without ampersands before json!")]

use std::sync::Arc;

use serde_json::{Value, json};

use super::{carry_out, decide, observed, reason, render, settle, teardown};
use crate::{
    cache::pull::{KEY, SlimAccount, SlimSecret, Source, TYPE},
    tenant::{decide::Write, observe::Observed, status},
};

const OURS: &str = "gputenancy";

fn secret(namespace: &str, type_: &str, content: &str, labels: Value) -> Value {
    let meta =
        json!({"name": "registry", "namespace": namespace, "uid": "s-1", "resourceVersion": "40", "labels": labels});
    json!({"metadata": meta, "type": type_, "data": {KEY: content}})
}

fn source(seen: &mut Observed, type_: &str, content: &str) {
    let source: Source = serde_json::from_value(secret(&seen.home, type_, content, json!({}))).unwrap();
    seen.pulls.sources.insert("registry".into(), Some(Arc::new(source)));
}

fn put(seen: &mut Observed, namespace: &str, secret: Value) {
    let slim: SlimSecret = serde_json::from_value(secret).unwrap();
    seen.pulls.secrets.insert((namespace.into(), "registry".into()), Arc::new(slim));
}

fn account(seen: &mut Observed, namespace: &str, names: &[&str]) {
    let names: Vec<Value> = names.iter().map(|n| json!({"name": n})).collect();
    let object = json!({"metadata": {"name": "default", "namespace": namespace, "resourceVersion": "7"}, "imagePullSecrets": names});
    let slim: SlimAccount = serde_json::from_value(object).unwrap();
    seen.pulls.accounts.insert(namespace.into(), Arc::new(slim));
}

fn named(seen: &Observed, namespace: &str) -> Vec<String> {
    seen.pulls.accounts[namespace].image_pull_secrets.iter().map(|n| n.name.clone()).collect()
}

/// A tenant that wants `registry`, which the chart allows and the operator's namespace has.
fn wanting() -> Observed {
    let mut seen = observed(&json!({"imagePullSecrets": ["registry"]}));
    source(&mut seen, TYPE, "e30=");
    for namespace in ["a1", "a2"] {
        account(&mut seen, namespace, &["own"]);
    }
    seen
}

fn served() -> Observed {
    let mut seen = wanting();
    settle(&mut seen);
    seen
}

/// What is written, in short.
fn told(writes: &[Write]) -> Vec<String> {
    let one = |write: &Write| match write {
        Write::Pull(copy) => format!("{}/{} {}", copy.namespace, copy.name, if copy.anew { "anew" } else { "" }),
        Write::Account(account) => format!("{} names {}", account.namespace, account.names.join(" ")),
        Write::Unpull { namespace, name, .. } => format!("{namespace}/{name} gone"),
        other => format!("{other:?}"),
    };
    writes.iter().map(|w| one(w).trim_end().to_owned()).collect()
}

#[test]
fn each_namespace_gets_a_copy_and_its_account_names_it_beside_the_teams_own() {
    let mut seen = wanting();
    let writes = decide::writes(&seen);
    let of_pulls = told(&writes[writes.len() - 4..]);
    assert_eq!(of_pulls, ["a1/registry", "a1 names own registry", "a2/registry", "a2 names own registry"]);
    let copies = writes.iter().filter_map(|write| match write {
        Write::Pull(copy) => Some(render::pull_secret("team-a", copy)),
        _ => None,
    });
    insta::assert_yaml_snapshot!(copies.collect::<Vec<_>>());
    assert_eq!(reason(&seen, "PullSecretsReady").1, "Applying");
    carry_out(&mut seen, writes);
    assert_eq!(decide::writes(&seen), []);
    assert_eq!((reason(&seen, "PullSecretsReady").1.as_str(), reason(&seen, "Ready").0.as_str()), ("Copied", "True"));
}

#[test]
fn a_tenant_that_names_none_is_told_nothing_of_them() {
    let mut seen = observed(&json!({}));
    source(&mut seen, TYPE, "e30=");
    account(&mut seen, "a1", &["own"]);
    settle(&mut seen);
    assert!(seen.pulls.secrets.is_empty());
    assert!(!status::status(&seen, None).conditions.iter().any(|c| c.type_ == "PullSecretsReady"));
}

#[test]
fn copies_follow_their_source_and_what_somebody_changes_or_deletes_is_set_right() {
    let mut seen = served();
    source(&mut seen, TYPE, "e30K");
    assert_eq!(told(&decide::writes(&seen)), ["a1/registry", "a2/registry"]);
    settle(&mut seen);
    put(
        &mut seen,
        "a1",
        secret("a1", TYPE, "bm8=", json!({"app.kubernetes.io/managed-by": OURS, "gputenancy.io/tenant": "team-a"})),
    );
    seen.pulls.secrets.remove(&("a2".into(), "registry".into()));
    account(&mut seen, "a2", &[]);
    assert_eq!(told(&decide::writes(&seen)), ["a1/registry", "a2/registry", "a2 names registry"]);
    settle(&mut seen);
    // the tenant's label is set right as well, and what is added to the data or the list stays
    let mut more =
        secret("a1", TYPE, "e30K", json!({"app.kubernetes.io/managed-by": OURS, "gputenancy.io/tenant": "x"}));
    more["data"]["note"] = json!("eA==");
    put(&mut seen, "a1", more.clone());
    assert_eq!(told(&decide::writes(&seen)), ["a1/registry"]);
    more["metadata"]["labels"]["gputenancy.io/tenant"] = json!("team-a");
    put(&mut seen, "a1", more);
    account(&mut seen, "a1", &["registry", "own", "own"]);
    assert_eq!(decide::writes(&seen), []);
}

#[test]
fn a_copy_is_written_for_the_version_that_was_seen_or_for_none() {
    let mut seen = wanting();
    put(&mut seen, "a2", secret("a2", TYPE, "bm8=", json!({"app.kubernetes.io/managed-by": OURS})));
    let writes = decide::writes(&seen);
    let on: Vec<_> =
        writes.iter().filter_map(|w| if let Write::Pull(c) = w { Some(c.decided_on.clone()) } else { None }).collect();
    assert_eq!(on, [(Some("1".into()), None), (Some("40".into()), Some("s-1".into()))]);
}

#[test]
fn what_cannot_be_changed_is_made_anew() {
    let labels = json!({"app.kubernetes.io/managed-by": OURS, "gputenancy.io/tenant": "team-a"});
    let mut frozen = secret("a1", TYPE, "bm8=", labels.clone());
    frozen["immutable"] = json!(true);
    let mut same = secret("a1", TYPE, "e30=", labels.clone());
    same["immutable"] = json!(true);
    for (present, expected) in [
        (frozen, &["a1/registry anew"][..]),
        (secret("a1", "Opaque", "e30=", labels), &["a1/registry anew"]),
        (same, &[]),
    ] {
        let mut seen = served();
        put(&mut seen, "a1", present);
        assert_eq!(told(&decide::writes(&seen)), expected);
    }
}

#[test]
fn a_name_that_is_taken_off_the_tenant_goes_from_the_account_first_and_then_altogether() {
    let mut seen = served();
    seen.tenant.spec.image_pull_secrets.clear();
    let gone = ["a1 names own", "a1/registry gone", "a2 names own", "a2/registry gone"];
    assert_eq!(told(&decide::writes(&seen)), gone);
    settle(&mut seen);
    assert!(seen.pulls.secrets.is_empty() && named(&seen, "a1") == ["own"]);
}

#[test]
fn somebody_elses_secret_is_left_alone_and_named_until_it_is_gone() {
    let mut seen = wanting();
    put(&mut seen, "a2", secret("a2", "Opaque", "bm8=", json!({"team": "a"})));
    settle(&mut seen);
    assert_eq!((named(&seen, "a1").len(), named(&seen, "a2").len()), (2, 1));
    let (_, why, message) = reason(&seen, "Stalled");
    assert_eq!(why, "PullSecretForeign");
    assert!(message.contains("Secret registry of namespace a2 is not the operator's"), "{message}");
    // nor is it touched when the tenant no longer wants it, or names it itself
    let mut other = seen.clone();
    other.tenant.spec.image_pull_secrets.clear();
    account(&mut other, "a2", &["registry"]);
    assert_eq!(told(&decide::writes(&other)), ["a1 names own", "a1/registry gone"]);
    seen.pulls.secrets.remove(&("a2".into(), "registry".into()));
    settle(&mut seen);
    assert_eq!(reason(&seen, "PullSecretsReady").0, "True");
}

#[test]
fn what_is_not_allowed_missing_or_of_another_type_is_said_and_the_rest_of_the_tenant_is_made() {
    let (mut unknown, mut missing, mut other) = (wanting(), wanting(), wanting());
    unknown.pulls.sources.clear();
    missing.pulls.sources.insert("registry".into(), None);
    source(&mut other, "Opaque", "e30=");
    for (mut seen, expected, words) in [
        (unknown, "PullSecretNotAllowed", "add the name to tenants.imagePullSecrets in the chart's values"),
        (missing, "PullSecretMissing", "namespace gputenancy-system has no Secret registry: make it with kubectl"),
        (other, "PullSecretOtherType", "is of type Opaque and not kubernetes.io/dockerconfigjson"),
    ] {
        settle(&mut seen);
        assert!(seen.pulls.secrets.is_empty() && named(&seen, "a1") == ["own"], "{expected}");
        assert_eq!((seen.quotas.len(), seen.bindings.len()), (2, 2), "{expected}");
        let (_, why, message) = reason(&seen, "Stalled");
        assert!(why == expected && message.contains(words), "{why}: {message}");
        source(&mut seen, TYPE, "e30=");
        settle(&mut seen);
        assert_eq!(reason(&seen, "Ready").0, "True", "it heals by itself");
    }
}

#[test]
fn a_copy_stays_while_its_source_is_made_anew() {
    let mut seen = served();
    seen.pulls.sources.insert("registry".into(), None);
    assert_eq!(decide::writes(&seen), []);
    assert_eq!(reason(&seen, "PullSecretsReady").1, "PullSecretMissing");
    account(&mut seen, "a1", &[]);
    assert_eq!(told(&decide::writes(&seen)), ["a1 names registry"]);
}

#[test]
fn an_account_that_is_not_there_yet_is_waited_for() {
    let mut seen = wanting();
    seen.pulls.accounts.remove("a2");
    settle(&mut seen);
    let (_, why, message) = reason(&seen, "Reconciling");
    assert!(why == "Applying" && message.contains("namespace a2: there is no ServiceAccount default yet"), "{message}");
}

#[test]
fn a_namespace_that_is_let_go_keeps_nothing_of_it() {
    let mut seen = served();
    let mut retained = (*seen.namespaces["a2"]).clone();
    retained.metadata.annotations = None;
    seen.namespaces.insert("a2".into(), Arc::new(retained));
    let mut seen = super::deleted(seen, 0);
    let writes = teardown::writes(&seen);
    let of_a2 = told(&writes.iter().filter(|w| !matches!(w, Write::Revoke(_))).cloned().collect::<Vec<_>>());
    assert_eq!(of_a2[..2], ["a2 names own", "a2/registry gone"]);
    assert!(of_a2[2].starts_with("Release"), "{of_a2:?}");
    carry_out(&mut seen, writes);
    assert_eq!(named(&seen, "a2"), ["own"]);
}

#[test]
fn nothing_of_a_secret_is_in_what_is_shown_of_a_tenant() {
    let mut seen = wanting();
    source(&mut seen, TYPE, "c2VjcmV0");
    let shown = format!("{:?} {:?}", decide::writes(&seen), status::status(&seen, None));
    let bytes = format!("{:?}", b"secret");
    assert!(shown.contains("registry") && !shown.contains("c2VjcmV0"));
    assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
}
