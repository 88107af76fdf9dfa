//! The team's access to its virtual cluster: the kubeconfig in its Secret, with a token of the account inside.

use std::time::Duration;

use gputenancy_cluster::{error::sentence, write::FieldManager};
use gputenancy_crds::{GpuTenant, VirtualCluster};
use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use kube::{ResourceExt as _, api::ObjectMeta};
use serde_json::json;

use crate::{
    backend,
    context::Memory,
    host::Host,
    inside::{
        account,
        connect::{self, Admin},
    },
    kubeconfig::{Made, Present},
    names,
};

/// Address of the API server in the team's kubeconfig.
pub fn server(tenant: &GpuTenant, cluster: &VirtualCluster) -> String {
    match &cluster.expose {
        Some(expose) if expose.port == 443 => format!("https://{}", expose.host),
        Some(expose) => format!("https://{}:{}", expose.host, expose.port),
        None => format!("https://{}", backend::service(tenant, cluster)),
    }
}

/// The kubeconfig in its Secret, made again when it no longer serves.
pub async fn kubeconfig(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    host: &Host,
    memory: &mut Memory,
) -> Result<Present, String> {
    let name = tenant.name_any();
    let secrets = host.secrets();
    let read = async |secret: &str| {
        secrets.get_opt(secret).await.map_err(|error| format!("reading Secret {secret}: {}", sentence(&error)))
    };
    let admin_secret = names::admin_secret(&name);
    let admin = read(&admin_secret).await?.as_ref().and_then(Admin::of);
    let admin = admin.ok_or_else(|| {
        format!("Secret {admin_secret} does not exist or is incomplete; the control plane writes it after its start: see its log")
    })?;
    let client = match &memory.inside {
        Some((known, client)) if *known == admin => client.clone(),
        _ => {
            let client = connect::client(&admin, &backend::service(tenant, cluster)).await?;
            memory.inside = Some((admin.clone(), client.clone()));
            client
        }
    };
    let account = account::ensure(&client, &cluster.kubeconfig.cluster_role).await?;
    let server = server(tenant, cluster);
    let made = Made { cluster: &name, server: &server, authority: &admin.authority, account: &account };
    let (now, ttl) = (Timestamp::now(), cluster.kubeconfig.ttl.get().unwrap_or(Duration::from_hours(24)));
    let life = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::from_hours(24));
    let present = read(names::KUBECONFIG_SECRET).await?.as_ref().and_then(Present::of);
    if let Some(present) = present.filter(|p| p.serves(&made, life, now)) {
        return Ok(present);
    }
    let token = account::token(&client, ttl).await?;
    let secret = secret(tenant, &made, &token, now);
    let manager = FieldManager::new(names::MANAGER);
    let applied = manager.apply_fields(&secrets, names::KUBECONFIG_SECRET, json!(secret)).await;
    let applied =
        applied.map_err(|error| format!("writing Secret {}: {}", names::KUBECONFIG_SECRET, sentence(&error)))?;
    Present::of(&applied).ok_or_else(|| format!("Secret {} was changed meanwhile", names::KUBECONFIG_SECRET))
}

fn secret(tenant: &GpuTenant, made: &Made<'_>, token: &account::Token, now: Timestamp) -> Secret {
    let labels = [
        (gputenancy_crds::names::MANAGED_BY_LABEL, names::MANAGED_BY.to_owned()),
        (gputenancy_crds::names::TENANT_LABEL, tenant.name_any()),
    ];
    let notes =
        [(names::MADE_FOR, made.mark()), (names::ISSUED, now.to_string()), (names::EXPIRES, token.expires.to_string())];
    let owned = |(key, value): (&str, String)| (key.to_owned(), value);
    Secret {
        metadata: ObjectMeta {
            name: Some(names::KUBECONFIG_SECRET.into()),
            labels: Some(labels.map(owned).into()),
            annotations: Some(notes.map(owned).into()),
            ..ObjectMeta::default()
        },
        data: Some([("config".to_owned(), ByteString(made.text(&token.token).into_bytes()))].into()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}
