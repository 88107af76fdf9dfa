//! A client whose connection errors name the server.

use std::time::Duration;

use kube::{
    Client, Config,
    client::{AuthError, ClientBuilder},
};
use tower::{BoxError, util::MapErrLayer};

use crate::{error::Unreachable, text::deepest};

/// A client for this configuration. A connection that fails, or that is silent for the time limits of the configuration, is an
/// [`Unreachable`] with the address of the server and this remedy.
///
/// # Errors
/// When the configuration cannot be used.
pub fn named(config: Config, remedy: &'static str) -> kube::Result<Client> {
    let naming = naming(&config, remedy);
    Ok(ClientBuilder::try_from(config)?.with_layer(&naming).build())
}

/// The layer of such a client.
pub fn naming(
    config: &Config,
    remedy: &'static str,
) -> MapErrLayer<impl Fn(BoxError) -> BoxError + Clone + Send + 'static> {
    let (server, limit) = (config.cluster_url.to_string(), config.read_timeout.or(config.connect_timeout));
    let server = server.trim_end_matches('/').to_owned();
    MapErrLayer::new(move |error: BoxError| unreachable(&server, limit, remedy, error))
}

/// Errors of kube itself, and those of credentials, are left as they are.
fn unreachable(server: &str, limit: Option<Duration>, remedy: &'static str, error: BoxError) -> BoxError {
    if error.is::<kube::Error>() || error.is::<AuthError>() {
        return error;
    }
    let cause = match (deepest(&*error), limit) {
        (text, Some(limit)) if text.is_empty() || text.contains("timed out") || text.contains("elapsed") => {
            format!("nothing within {} s", limit.as_secs())
        }
        (text, _) => text,
    };
    let (cause, remedy) = match cause {
        text if text.contains("UnknownIssuer") => (
            "its certificate is not of the kubeconfig's certificate authority".to_owned(),
            "; write the certificate authority of this cluster into the kubeconfig, or name another cluster",
        ),
        // it runs and was reached
        text if text.contains("invalid peer certificate") => {
            (text, "; renew the server's certificate, or name the server as its certificate does")
        }
        text => (text, remedy),
    };
    Box::new(Unreachable { server: server.to_owned(), cause, remedy })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use tokio::net::TcpListener;

    use super::*;
    use crate::error::sentence;

    async fn get(port: u16) -> String {
        let mut config = Config::new(format!("http://127.0.0.1:{port}").parse().unwrap());
        (config.connect_timeout, config.read_timeout) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(1)));
        config.default_retry = false;
        let pods = Api::<Pod>::default_namespaced(named(config, "; look").unwrap());
        sentence(&pods.get("a").await.unwrap_err())
    }

    #[test]
    fn wrong_certificate_has_another_remedy_than_a_server_that_does_not_answer() {
        let of = |text: &'static str| unreachable("https://a", None, "; look", text.into()).to_string();
        let authority = of("invalid peer certificate: UnknownIssuer");
        assert!(
            authority
                .contains("https://a: its certificate is not of the kubeconfig's certificate authority; write the"),
            "{authority}"
        );
        let expired = of("invalid peer certificate: Expired");
        assert!(expired.contains("Expired; renew the server's certificate"), "{expired}");
        assert!(of("Connection refused").ends_with("Connection refused; look"));
    }

    #[tokio::test]
    async fn refused_connection_names_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let expected = format!("no answer from the API server at http://127.0.0.1:{port}: Connection refused; look");
        assert_eq!(get(port).await, expected);
    }

    #[tokio::test]
    async fn silent_server_is_named_with_the_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let expected = format!("no answer from the API server at http://127.0.0.1:{port}: nothing within 1 s; look");
        assert_eq!(get(port).await, expected);
    }
}
