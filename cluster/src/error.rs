//! Errors of the API server as sentences.

use std::error::Error;

use kube::{client::AuthError, runtime::watcher};

use crate::{
    credentials, kubeconfig,
    text::{chain, deepest, one_line},
};

/// Longest text of an API server in a sentence, in bytes. Messages of a schema with many mistakes are longer than a condition should be.
const MOST_TEXT: usize = 1500;
/// Longest text of an answer that is no Status of Kubernetes, such as the page of a proxy, in bytes.
const MOST_FOREIGN: usize = 120;
/// Reason that kube gives an answer that is no Status of Kubernetes.
const FOREIGN: &str = "Failed to parse error data";

/// A request that got no answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer from the API server at {server}: {cause}{remedy}")]
pub struct Unreachable {
    /// Address of the server.
    pub server: String,
    /// Why, in the words of the operating system or the TLS library.
    pub cause: String,
    /// The remedy, with the separator in front.
    pub remedy: &'static str,
}

/// An error as a sentence without a full stop, for messages, conditions and logs: what the API server answered, or why it did not.
///
/// Takes errors that have a `kube::Error` as a source too, such as those of a watch.
pub fn sentence(error: &(dyn Error + 'static)) -> String {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(unreachable) = error.downcast_ref::<Unreachable>() {
            return unreachable.to_string();
        }
        if let Some(error) = error.downcast_ref::<kube::Error>() {
            return of_client(error);
        }
        if let Some(error) = error.downcast_ref::<AuthError>() {
            return no_credentials(error);
        }
        if let Some(status) = error.downcast_ref::<kube::core::Status>() {
            return of_status(status);
        }
        // as the error of a watch has it
        if let Some(status) = error.downcast_ref::<Box<kube::core::Status>>() {
            return of_status(status);
        }
        next = error.source();
    }
    error.to_string()
}

/// The API server has no longer the version from which a watch would go on, so that the watch lists its objects again. This is routine where few
/// objects change, as with events: etcd forgets old versions every five minutes.
pub fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchError(status) if status.code == 410)
        || matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

fn of_client(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => of_status(status),
        kube::Error::Service(error) => match (error.downcast_ref::<Unreachable>(), error.downcast_ref::<AuthError>()) {
            (Some(unreachable), _) => unreachable.to_string(),
            (None, Some(error)) => no_credentials(error),
            (None, None) => format!("no answer from the API server: {}", deepest(&**error)),
        },
        kube::Error::HyperError(error) => format!("the connection to the API server broke: {}", deepest(error)),
        kube::Error::ReadEvents(error) => format!("the connection to the API server broke: {}", deepest(error)),
        kube::Error::SerdeError(error) => format!("the answer of the API server has not the expected fields: {error}"),
        kube::Error::Auth(error) => no_credentials(error),
        kube::Error::InferKubeconfig(error) => kubeconfig::sentence(error, None),
        error => chain(error),
    }
}

fn no_credentials(error: &AuthError) -> String {
    format!("no credentials for the API server: {}", credentials::sentence(error))
}

fn of_status(status: &kube::core::Status) -> String {
    let kube::core::Status { code, message, reason, .. } = status;
    if reason == FOREIGN {
        return match one_line(message, MOST_FOREIGN) {
            text if text.is_empty() => format!("the server answered with code {code} without a text"),
            text => format!("the server answered with code {code}, which is not from Kubernetes: {text}"),
        };
    }
    match (one_line(message, MOST_TEXT), code) {
        (text, 401) => {
            format!("the API server does not accept the credentials: {text}; they are wrong or have expired")
        }
        (text, _) if text.is_empty() => format!("the API server answered with code {code} {reason}"),
        (text, _) => text,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn api(code: u16, reason: &str, message: &str) -> kube::Error {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        kube::Error::Api(Box::new(Status { code, reason, message, ..Status::default() }))
    }

    #[test]
    fn answer_of_the_api_server_is_its_message_alone() {
        let text = r#"pods is forbidden: User "ann" cannot list resource "pods" in API group "" at the cluster scope"#;
        assert_eq!(sentence(&api(403, "Forbidden", text)), text);
        assert_eq!(
            sentence(&api(401, "Unauthorized", "Unauthorized")),
            "the API server does not accept the credentials: Unauthorized; they are wrong or have expired"
        );
        assert_eq!(sentence(&api(500, "InternalError", "")), "the API server answered with code 500 InternalError");
    }

    #[test]
    fn watch_error_is_that_of_its_request() {
        let error = watcher::Error::InitialListFailed(api(403, "Forbidden", "no"));
        assert_eq!(sentence(&error), "no");
    }

    #[test]
    fn missing_credentials_are_called_so_also_when_a_token_is_renewed() {
        let expected =
            "no credentials for the API server: a credential plugin of the kubeconfig failed; run it by hand";
        let error = || AuthError::AuthExec("x".into());
        for error in [kube::Error::Auth(error()), kube::Error::Service(Box::new(error()))] {
            assert_eq!(sentence(&error), expected);
        }
    }

    #[test]
    fn watch_whose_version_is_too_old_is_routine_and_has_the_message_alone() {
        let status = |code: u16| {
            let (reason, message) =
                ("Expired".to_owned(), "The resourceVersion for the provided watch is too old.".to_owned());
            watcher::Error::WatchError(Box::new(Status { code, reason, message, ..Status::default() }))
        };
        assert_eq!(sentence(&status(410)), "The resourceVersion for the provided watch is too old.");
        assert!(is_expired(&status(410)) && !is_expired(&status(500)));
        assert!(is_expired(&watcher::Error::WatchStartFailed(api(410, "Expired", "too old"))));
        assert!(!is_expired(&watcher::Error::InitialListFailed(api(403, "Forbidden", "no"))));
    }

    #[test]
    fn page_of_a_proxy_is_short_and_on_one_line() {
        let page = format!("<html>\n<h1>\u{1b}[2J502</h1>{}", "x".repeat(5000));
        let text = sentence(&api(502, FOREIGN, &page));
        assert!(
            text.starts_with("the server answered with code 502, which is not from Kubernetes: <html> <h1> [2J502"),
            "{text}"
        );
        assert!(text.len() < 250 && text.ends_with('…'), "{text}");
    }

    #[test]
    fn no_sentence_has_the_debug_text_of_a_struct() {
        let invalid = api(422, "Invalid", "ResourceQuota \"a\" is invalid: spec.hard: Invalid value");
        let broken = kube::Error::SerdeError(serde_json_error());
        for error in [invalid, broken, kube::Error::Service("refused".into()), api(404, "", "404 page not found\n")] {
            let text = sentence(&error);
            assert!(!text.contains('{') && !text.contains("Error:") && !text.contains('\n'), "{text}");
        }
    }

    fn serde_json_error() -> serde_json::Error {
        serde_json::from_str::<u8>("x").unwrap_err()
    }
}
