//! A client of the virtual cluster's API server, with the administrator's certificate that the syncer has written.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use gputenancy_cluster::error::sentence;
use http::{Response, Uri};
use http_body_util::Limited;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use tower::util::MapResponseLayer;

/// Largest answer that is read, in bytes: a few hundred nodes.
const MOST_BYTES: usize = 2 << 20;
/// Limit of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of all requests of one pass: a server that answers slowly must not hold up the deletion of its own tenant, nor other tenants.
pub const PASS_TIMEOUT: Duration = Duration::from_secs(25);
/// Longest text from inside in a message, in bytes.
const MOST_TEXT: usize = 300;

/// The administrator's credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Admin {
    /// Certificate of the certificate authority, PEM.
    pub authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Admin {
    /// Reads the Secret that the syncer writes. Not its key `config`: a kubeconfig can name a program to run, and a user who writes Secrets in
    /// the tenant's namespace would run it here.
    pub fn of(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let part = |key: &str| data.get(key).map(|ByteString(bytes)| bytes.clone()).filter(|b| !b.is_empty());
        Some(Self {
            authority: part("certificate-authority")?,
            certificate: part("client-certificate")?,
            key: part("client-key")?,
        })
    }
}

/// A client of the API server at this Service.
pub async fn client(admin: &Admin, service: &str) -> Result<Client, String> {
    let failed = |error: &dyn std::fmt::Display| format!("the credentials in its Secret cannot be used: {error}");
    let url: Uri = format!("https://{service}").parse().map_err(|e| failed(&e))?;
    let config = Kubeconfig {
        clusters: vec![kube::config::NamedCluster {
            name: "inside".into(),
            cluster: Some(kube::config::Cluster {
                server: Some(url.to_string()),
                certificate_authority_data: Some(BASE64_STANDARD.encode(&admin.authority)),
                ..kube::config::Cluster::default()
            }),
            ..kube::config::NamedCluster::default()
        }],
        contexts: vec![kube::config::NamedContext {
            name: "inside".into(),
            context: Some(kube::config::Context {
                cluster: "inside".into(),
                user: Some("inside".into()),
                ..kube::config::Context::default()
            }),
            ..kube::config::NamedContext::default()
        }],
        auth_infos: vec![kube::config::NamedAuthInfo {
            name: "inside".into(),
            auth_info: Some(AuthInfo {
                client_certificate_data: Some(BASE64_STANDARD.encode(&admin.certificate)),
                client_key_data: Some(BASE64_STANDARD.encode(&admin.key).into()),
                ..AuthInfo::default()
            }),
            ..kube::config::NamedAuthInfo::default()
        }],
        current_context: Some("inside".into()),
        ..Kubeconfig::default()
    };
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(config, &options).await.map_err(|e| failed(&e))?;
    (config.connect_timeout, config.read_timeout, config.write_timeout) =
        (Some(Duration::from_secs(3)), Some(TIMEOUT), Some(TIMEOUT));
    config.default_retry = false;
    let bounded = MapResponseLayer::new(|response: Response<Box<kube::client::DynBody>>| {
        response.map(|body| Limited::new(body, MOST_BYTES))
    });
    Ok(ClientBuilder::try_from(config).map_err(|e| failed(&e))?.with_layer(&bounded).build())
}

/// An error in a few words: the team that runs the server chooses its text, which is written into a status.
fn summary(error: &kube::Error) -> String {
    let mut text = sentence(error);
    text.truncate(text.floor_char_boundary(MOST_TEXT));
    text
}

/// Fails after the time limit, also while the server is still sending.
pub async fn bounded<T>(what: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| format!("{what}: {}", summary(&error))),
        Err(_) => Err(format!("{what}: no answer within {} seconds", TIMEOUT.as_secs())),
    }
}

/// Limits what happens inside in one pass.
pub async fn timed<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || format!("the API server of the virtual cluster took more than {} seconds", PASS_TIMEOUT.as_secs());
    tokio::time::timeout(PASS_TIMEOUT, work).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn text_from_inside_is_short_and_has_no_control_characters() {
        let status = Status { code: 500, message: format!("\u{1b}[2J{}", "x".repeat(1 << 20)), ..Status::default() };
        let text = summary(&kube::Error::Api(Box::new(status)));
        assert!(text.len() <= MOST_TEXT && text.starts_with("[2Jxx"), "{text}");
    }

    #[test]
    fn kubeconfig_of_the_secret_is_never_read() {
        let data = |keys: &[&str]| keys.iter().map(|k| ((*k).to_owned(), ByteString(b"x".to_vec()))).collect();
        let only_config = Secret { data: Some(data(&["config"])), ..Secret::default() };
        assert!(Admin::of(&only_config).is_none());
        let keys = Secret {
            data: Some(data(&["certificate-authority", "client-certificate", "client-key"])),
            ..Secret::default()
        };
        assert!(Admin::of(&keys).is_some());
    }
}
