//! A client of the virtual cluster's API server, with the administrator's certificate that the syncer has written.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use gputenancy_cluster::error::sentence;
use http::{Request, Response, Uri, header::ACCEPT, uri::InvalidUri};
use http_body_util::Limited;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::de::DeserializeOwned;
use tower::util::MapResponseLayer;

/// Largest answer that is read, in bytes: a few hundred nodes.
const MOST_BYTES: usize = 2 << 20;
/// Limit of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of all requests of one reconcile: a server that answers slowly must not hold up the deletion of its own tenant, nor other tenants.
pub const RECONCILE_TIMEOUT: Duration = Duration::from_secs(25);
/// Longest text from inside in a message, in bytes.
const MOST_TEXT: usize = 300;

/// Why something inside was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server inside refused the request, or was not reached.
    #[error("{doing}: {}", summary(source))]
    Refused {
        /// The request.
        doing: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// It did not answer the request in time.
    #[error("{doing}: no answer within {} seconds", TIMEOUT.as_secs())]
    Silent {
        /// The request.
        doing: String,
    },
    /// All requests together took too long.
    #[error("the API server of the virtual cluster took more than {} seconds", RECONCILE_TIMEOUT.as_secs())]
    Slow,
}

/// Why the administrator's credentials make no client.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The name of the Service is no address.
    #[error("the credentials in its Secret cannot be used: {0}")]
    Address(#[from] InvalidUri),
    /// Certificate or key are not valid.
    #[error("the credentials in its Secret cannot be used: {0}")]
    Certificate(#[from] KubeconfigError),
    /// They are not accepted by the TLS library.
    #[error("the credentials in its Secret cannot be used: {0}")]
    Client(#[source] Box<kube::Error>),
}

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
pub async fn client(admin: &Admin, service: &str) -> Result<Client, CredentialsError> {
    let url: Uri = format!("https://{service}").parse()?;
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
    let mut config = Config::from_custom_kubeconfig(config, &options).await?;
    (config.connect_timeout, config.read_timeout, config.write_timeout) =
        (Some(Duration::from_secs(3)), Some(TIMEOUT), Some(TIMEOUT));
    config.default_retry = false;
    let bounded = MapResponseLayer::new(|response: Response<Box<kube::client::DynBody>>| {
        response.map(|body| Limited::new(body, MOST_BYTES))
    });
    let builder = ClientBuilder::try_from(config).map_err(|error| CredentialsError::Client(Box::new(error)))?;
    Ok(builder.with_layer(&bounded).build())
}

/// An error in a few words: the team that runs the server chooses its text, which is written into a status.
fn summary(error: &kube::Error) -> String {
    let mut text = sentence(error);
    text.truncate(text.floor_char_boundary(MOST_TEXT));
    text
}

/// Fails after the time limit, also while the server is still sending. `doing`: the request, for the error.
pub async fn bounded<T>(doing: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| CallError::Refused { doing: doing.to_owned(), source: Box::new(error) }),
        Err(_) => Err(CallError::Silent { doing: doing.to_owned() }),
    }
}

/// Reads what is at this path, within the time limit. `accept`: another form of it than its own.
pub async fn get<T: DeserializeOwned>(
    client: &Client,
    doing: &str,
    path: &str,
    accept: Option<&'static str>,
) -> Result<T, CallError> {
    bounded(doing, async {
        let mut request = Request::get(path);
        if let Some(form) = accept {
            request = request.header(ACCEPT, form);
        }
        let request = request.body(Vec::new());
        let request =
            request.map_err(|error| kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error)))?;
        client.request(request).await
    })
    .await
}

/// Limits what happens inside in one reconcile.
pub async fn timed<T, E: From<CallError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    tokio::time::timeout(RECONCILE_TIMEOUT, work).await.unwrap_or_else(|_| Err(CallError::Slow.into()))
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
