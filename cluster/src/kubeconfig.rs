//! Why a kubeconfig cannot be used.

use std::path::Path;

use kube::config::{KubeconfigError, LoadDataError};

use crate::text::{deepest, one_line};

/// Longest text of a parser, in bytes.
const MOST_TEXT: usize = 200;

/// The cause, with the object. `file`: where it was read from, if one file was named.
pub fn sentence(error: &KubeconfigError, file: Option<&Path>) -> String {
    let this = file.map_or_else(|| "the kubeconfig".to_owned(), |file| format!("the kubeconfig {}", file.display()));
    match error {
        KubeconfigError::ReadConfig(error, path) => format!("reading {}: {}", path.display(), deepest(error)),
        KubeconfigError::LoadContext(name) => {
            format!("{this} has no context {name}: kubectl config get-contexts lists them")
        }
        KubeconfigError::LoadClusterOfContext(name) => format!("{this} has no cluster {name}, which its context names"),
        KubeconfigError::CurrentContextNotSet => format!("{this} has no current-context"),
        KubeconfigError::Parse(error) => {
            let text = error.to_string();
            format!("{this} is no kubeconfig: {}", one_line(text.lines().next().unwrap_or_default(), MOST_TEXT))
        }
        KubeconfigError::MissingClusterUrl => format!("{this} has a cluster without a server"),
        KubeconfigError::ParseClusterUrl(error) => {
            format!(
                "the server of a cluster in {this} is no address ({error}): write one such as https://10.0.0.1:6443"
            )
        }
        KubeconfigError::LoadCertificateAuthority(error) => data(&this, "certificate authority", error),
        KubeconfigError::LoadClientCertificate(error) => data(&this, "client certificate", error),
        KubeconfigError::LoadClientKey(error) => data(&this, "client key", error),
        error => format!("{this}: {error}"),
    }
}

fn data(this: &str, what: &str, error: &LoadDataError) -> String {
    match error {
        LoadDataError::ReadFile(error, path) => {
            format!("the {what} of {this} cannot be read: {}: {}", path.display(), deepest(error))
        }
        LoadDataError::DecodeBase64(error) => format!("the {what} of {this} is no base64 text: {error}"),
        LoadDataError::NoBase64DataOrFile => format!("{this} has no {what}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn cause_names_the_object_once_and_has_no_number_of_the_operating_system() {
        let missing = || io::Error::from_raw_os_error(2);
        let certificate =
            KubeconfigError::LoadClientCertificate(LoadDataError::ReadFile(missing(), "/nope.crt".into()));
        let expected = "the client certificate of the kubeconfig cannot be read: /nope.crt: No such file or directory";
        assert_eq!(sentence(&certificate, None), expected);
        let read = KubeconfigError::ReadConfig(missing(), "/nope".into());
        assert_eq!(sentence(&read, Some(Path::new("/nope"))), "reading /nope: No such file or directory");
        let context = KubeconfigError::CurrentContextNotSet;
        assert_eq!(sentence(&context, Some(Path::new("/x"))), "the kubeconfig /x has no current-context");
    }
}
