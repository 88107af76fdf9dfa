//! The team's access to its virtual cluster: the kubeconfig in its Secret, with a token of the account inside.

use std::time::Duration;

use gputenancy_cluster::{error::sentence, write::FieldManager};
use gputenancy_crds::{GpuTenant, VirtualCluster, VirtualClusterBackend};
use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Client, ResourceExt as _, api::ObjectMeta};
use serde_json::json;

use crate::{
    host::Host,
    inside::{
        account::{self, Account, AccountError},
        connect::{CallError, CredentialsError},
    },
    kubeconfig::{IssuedKubeconfig, KubeconfigInput},
    names,
    render::objects,
};

/// Why the team has no kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A Secret of the namespace was not read.
    #[error("reading Secret {secret}: {}", sentence(&**source))]
    Read {
        /// Its name.
        secret: String,
        /// The answer of the API server.
        source: Box<kube::Error>,
    },
    /// The control plane has not written its administrator's credentials.
    #[error("Secret {0} does not exist or is incomplete; the control plane writes it after its start: see its log")]
    NoAdmin(String),
    /// These credentials make no client.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The API server inside was not read.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The account inside was not made.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The Secret with the kubeconfig was not written.
    #[error("writing Secret {}: {}", names::KUBECONFIG_SECRET, sentence(&**.0))]
    Write(#[source] Box<kube::Error>),
    /// Another program changed it at the same time.
    #[error("Secret {} was changed meanwhile", names::KUBECONFIG_SECRET)]
    Changed,
}

/// What is to be done for the team's kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeconfigOrder {
    /// Nothing: this one serves.
    Keep(IssuedKubeconfig),
    /// This one serves, and the binding of its account is not as it should be.
    Bind(IssuedKubeconfig),
    /// A new one, with the account if it is missing.
    Issue,
}

/// What a kubeconfig depends on.
pub struct Access<'a> {
    /// The tenant.
    pub tenant: &'a GpuTenant,
    /// Its virtual cluster.
    pub cluster: &'a VirtualCluster,
    /// Certificate of the certificate authority inside, PEM.
    pub authority: &'a [u8],
    /// The account inside.
    pub account: &'a Account,
}

/// DNS name of the API server in this cluster. An adopted vCluster has the short one in its certificate, without further settings.
pub fn service(tenant: &GpuTenant, cluster: &VirtualCluster) -> String {
    let short = format!("{}.{}", tenant.name_any(), objects::namespace_of(tenant));
    if cluster.backend == VirtualClusterBackend::External { short } else { format!("{short}.svc") }
}

/// Address of the API server in the team's kubeconfig.
pub fn server(tenant: &GpuTenant, cluster: &VirtualCluster) -> String {
    match &cluster.expose {
        Some(expose) if expose.port == 443 => format!("https://{}", expose.host),
        Some(expose) => format!("https://{}:{}", expose.host, expose.port),
        None => format!("https://{}", service(tenant, cluster)),
    }
}

/// What is to be done, where the Secret has this kubeconfig. Pure.
pub fn decide(access: &Access<'_>, issued: Option<&IssuedKubeconfig>, now: Timestamp) -> KubeconfigOrder {
    let Access { tenant, cluster, authority, account } = access;
    let Some(uid) = &account.uid else { return KubeconfigOrder::Issue };
    let (name, server) = (tenant.name_any(), server(tenant, cluster));
    let input = KubeconfigInput { cluster: &name, server: &server, authority, account: uid };
    let life = SignedDuration::try_from(life(cluster)).unwrap_or(SignedDuration::from_hours(24));
    match issued.filter(|issued| issued.serves(&input, life, now)) {
        Some(issued) if account.is_bound(&cluster.kubeconfig.cluster_role) => KubeconfigOrder::Keep(issued.clone()),
        Some(issued) => KubeconfigOrder::Bind(issued.clone()),
        None => KubeconfigOrder::Issue,
    }
}

/// Does what is to be done, and returns the kubeconfig of the Secret.
pub async fn execute(
    access: &Access<'_>,
    order: &KubeconfigOrder,
    (host, client): (&Host, &Client),
    now: Timestamp,
) -> Result<IssuedKubeconfig, AccessError> {
    let Access { tenant, cluster, authority, account } = access;
    let role = &cluster.kubeconfig.cluster_role;
    match order {
        KubeconfigOrder::Keep(issued) => Ok(issued.clone()),
        KubeconfigOrder::Bind(issued) => {
            account::ensure(client, account, role).await?;
            Ok(issued.clone())
        }
        KubeconfigOrder::Issue => {
            let account = account::ensure(client, account, role).await?;
            let (name, server) = (tenant.name_any(), server(tenant, cluster));
            let input = KubeconfigInput { cluster: &name, server: &server, authority, account: &account };
            let token = account::token(client, life(cluster)).await?;
            let secret = json!(secret(&input, &token, now));
            let manager = FieldManager::new(names::MANAGER);
            let applied = manager.apply_fields(&host.secrets(), names::KUBECONFIG_SECRET, secret).await;
            let applied = applied.map_err(|error| AccessError::Write(Box::new(error)))?;
            IssuedKubeconfig::of(&applied).ok_or(AccessError::Changed)
        }
    }
}

/// Lifetime of a token.
fn life(cluster: &VirtualCluster) -> Duration {
    cluster.kubeconfig.ttl.get().unwrap_or(Duration::from_hours(24))
}

fn secret(input: &KubeconfigInput<'_>, token: &account::Token, now: Timestamp) -> Secret {
    let labels = [
        (gputenancy_crds::names::MANAGED_BY_LABEL, names::MANAGED_BY.to_owned()),
        (gputenancy_crds::names::TENANT_LABEL, input.cluster.to_owned()),
    ];
    let notes = [
        (names::MADE_FOR, input.mark()),
        (names::ISSUED, now.to_string()),
        (names::EXPIRES, token.expires.to_string()),
    ];
    let owned = |(key, value): (&str, String)| (key.to_owned(), value);
    Secret {
        metadata: ObjectMeta {
            name: Some(names::KUBECONFIG_SECRET.into()),
            labels: Some(labels.map(owned).into()),
            annotations: Some(notes.map(owned).into()),
            ..ObjectMeta::default()
        },
        data: Some([("config".to_owned(), ByteString(input.text(&token.token).into_bytes()))].into()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{GpuTenantSpec, TenantNamespace};

    use super::*;

    #[test]
    fn address_is_in_the_certificate_without_further_settings() {
        let mut cluster: VirtualCluster =
            serde_json::from_value(json!({"version": "0.36.1", "backend": "External"})).unwrap();
        let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
        let tenant = GpuTenant::new("team-a", GpuTenantSpec { namespaces, ..GpuTenantSpec::default() });
        assert_eq!(service(&tenant, &cluster), "team-a.ns-a");
        cluster.backend = VirtualClusterBackend::Helm;
        assert_eq!(service(&tenant, &cluster), "team-a.ns-a.svc");
    }

    #[test]
    fn kubeconfig_of_a_deleted_account_is_issued_again() {
        let cluster: VirtualCluster = serde_json::from_value(json!({"version": "0.36.1"})).unwrap();
        let tenant = GpuTenant::new("team-a", GpuTenantSpec::default());
        let issued = IssuedKubeconfig::example("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let decided = |account: &Account, issued: &IssuedKubeconfig| {
            let access = Access { tenant: &tenant, cluster: &cluster, authority: b"PEM", account };
            decide(&access, Some(issued), issued.issued)
        };
        assert_eq!(decided(&Account::default(), &issued), KubeconfigOrder::Issue);
        let account = Account { uid: Some("u".into()), ..Account::default() };
        assert_eq!(decided(&account, &issued), KubeconfigOrder::Issue, "it was made for another account");
        let server = server(&tenant, &cluster);
        let input = KubeconfigInput { cluster: "team-a", server: &server, authority: b"PEM", account: "u" };
        let own = IssuedKubeconfig { mark: input.mark(), ..issued };
        assert_eq!(decided(&account, &own), KubeconfigOrder::Bind(own.clone()));
    }
}
