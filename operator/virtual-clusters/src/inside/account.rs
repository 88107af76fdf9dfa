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

use super::connect::{CallError, bounded};
use crate::names::{INSIDE_ACCOUNT, INSIDE_NAMESPACE, MANAGER};

/// Why the team has no account or token.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// A request has failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The API server inside has answered without a uid.
    #[error("the team's account {INSIDE_ACCOUNT} has no uid")]
    Uid,
    /// The API server inside has answered without a token.
    #[error("a token of {INSIDE_ACCOUNT}: the answer has none")]
    Token,
}

/// The account as it is inside.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Its uid; `None`: it does not exist.
    pub uid: Option<String>,
    /// Its binding.
    pub binding: Option<ClusterRoleBinding>,
}

impl Account {
    /// It exists, and is bound to this role alone.
    pub fn is_bound(&self, cluster_role: &str) -> bool {
        let wanted = binding(cluster_role);
        let bound =
            self.binding.as_ref().is_some_and(|b| b.role_ref == wanted.role_ref && b.subjects == wanted.subjects);
        self.uid.is_some() && bound
    }
}

/// A token and when it expires.
pub struct Token {
    /// The token.
    pub token: String,
    /// When it expires.
    pub expires: Timestamp,
}

/// The request for the account, in errors.
fn described() -> String {
    format!("the team's account {INSIDE_NAMESPACE}/{INSIDE_ACCOUNT}")
}

/// The request for its binding, in errors.
fn described_binding() -> String {
    format!("the binding of {INSIDE_ACCOUNT}")
}

/// Reads the account and its binding.
pub async fn read(client: &Client) -> Result<Account, CallError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), INSIDE_NAMESPACE);
    let account = bounded(&described(), accounts.get_opt(INSIDE_ACCOUNT)).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let binding = bounded(&described_binding(), bindings.get_opt(INSIDE_ACCOUNT)).await?;
    Ok(Account { uid: account.and_then(|account| account.metadata.uid), binding })
}

/// Makes the account and its binding as they should be, and returns the account's uid.
pub async fn ensure(client: &Client, account: &Account, cluster_role: &str) -> Result<String, AccountError> {
    let manager = FieldManager::new(MANAGER);
    let uid = if let Some(uid) = &account.uid {
        uid.clone()
    } else {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), INSIDE_NAMESPACE);
        let object = json!({"metadata": {"name": INSIDE_ACCOUNT}});
        let made = bounded(&described(), manager.apply_fields(&accounts, INSIDE_ACCOUNT, object)).await?;
        made.metadata.uid.ok_or(AccountError::Uid)?
    };
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let (what, wanted) = (described_binding(), binding(cluster_role));
    if account.binding.as_ref().is_some_and(|b| b.role_ref != wanted.role_ref) {
        // the role of a binding cannot be changed
        let deleted = async { present(bindings.delete(INSIDE_ACCOUNT, &DeleteParams::default()).await) };
        bounded(&what, deleted).await?;
    }
    if account.binding.as_ref().is_none_or(|b| b.role_ref != wanted.role_ref || b.subjects != wanted.subjects) {
        bounded(&what, manager.apply(&bindings, INSIDE_ACCOUNT, &wanted)).await?;
    }
    Ok(uid)
}

/// Deletes the account and its binding, and with them all its tokens.
pub async fn remove(client: &Client) -> Result<(), CallError> {
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
pub async fn token(client: &Client, life: Duration) -> Result<Token, AccountError> {
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
    let (token, expires) = status.ok_or(AccountError::Token)?;
    Ok(Token { token, expires: expires.0 })
}
