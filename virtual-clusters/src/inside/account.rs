//! The team's account inside: a `ServiceAccount`, its binding, and its tokens.

use std::time::Duration;

use gputenancy_cluster::write::{FieldManager, present};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRoleBinding, RoleRef, Subject},
};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use serde_json::json;

use super::connect::bounded;
use crate::names::{INSIDE_ACCOUNT, INSIDE_NAMESPACE, MANAGER};

/// A token and when it expires.
pub struct Token {
    /// The token.
    pub token: String,
    /// When it expires.
    pub expires: Timestamp,
}

/// Makes the account and its binding, unless they are right, and returns the account's uid.
pub async fn ensure(client: &Client, cluster_role: &str) -> Result<String, String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), INSIDE_NAMESPACE);
    let manager = FieldManager::new(MANAGER);
    let what = format!("the team's account {INSIDE_NAMESPACE}/{INSIDE_ACCOUNT}");
    let account = if let Some(account) = bounded(&what, accounts.get_opt(INSIDE_ACCOUNT)).await? {
        account
    } else {
        let object = json!({"metadata": {"name": INSIDE_ACCOUNT}});
        bounded(&what, manager.apply_fields(&accounts, INSIDE_ACCOUNT, object)).await?
    };
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let what = format!("the binding of {INSIDE_ACCOUNT}");
    let wanted = binding(cluster_role);
    let present = bounded(&what, bindings.get_opt(INSIDE_ACCOUNT)).await?;
    if present.as_ref().is_some_and(|p| p.role_ref != wanted.role_ref) {
        // the role of a binding cannot be changed
        bounded(&what, bindings.delete(INSIDE_ACCOUNT, &DeleteParams::default())).await?;
    }
    if present.is_none_or(|p| p.role_ref != wanted.role_ref || p.subjects != wanted.subjects) {
        bounded(&what, manager.apply(&bindings, INSIDE_ACCOUNT, &wanted)).await?;
    }
    account.metadata.uid.ok_or_else(|| format!("the team's account {INSIDE_ACCOUNT} has no uid"))
}

/// Deletes the account and its binding, and with them all its tokens.
pub async fn remove(client: &Client) -> Result<(), String> {
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), INSIDE_NAMESPACE);
    let params = DeleteParams::default();
    let binding = async { present(bindings.delete(INSIDE_ACCOUNT, &params).await) };
    bounded(&format!("deleting the binding of {INSIDE_ACCOUNT}"), binding).await?;
    let account = async { present(accounts.delete(INSIDE_ACCOUNT, &params).await) };
    bounded(&format!("deleting the team's account {INSIDE_NAMESPACE}/{INSIDE_ACCOUNT}"), account).await.map(drop)
}

fn binding(cluster_role: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: ObjectMeta { name: Some(INSIDE_ACCOUNT.into()), ..ObjectMeta::default() },
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "ClusterRole".into(),
            name: cluster_role.into(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: INSIDE_ACCOUNT.into(),
            namespace: Some(INSIDE_NAMESPACE.into()),
            ..Subject::default()
        }]),
    }
}

/// A new token of the account. The API server may give it a shorter life.
pub async fn token(client: &Client, life: Duration) -> Result<Token, String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), INSIDE_NAMESPACE);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: i64::try_from(life.as_secs()).ok(),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let what = format!("a token of {INSIDE_ACCOUNT}");
    let answer =
        bounded(&what, accounts.create_token_request(INSIDE_ACCOUNT, &PostParams::default(), &request)).await?;
    let status = answer.status.and_then(|s| s.token.zip(s.expiration_timestamp));
    let (token, expires) = status.ok_or_else(|| format!("{what}: the answer has none"))?;
    Ok(Token { token, expires: expires.0 })
}
