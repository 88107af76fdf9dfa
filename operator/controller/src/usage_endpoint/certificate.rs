//! The TLS configuration: from a mounted Secret, which is read again after a renewal, or a certificate of this replica's own.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    },
};

/// kubelet renews a mounted Secret within about a minute.
const INTERVAL: Duration = Duration::from_mins(1);

/// Why there is no TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("reading {}: {error}; the Secret of usageEndpoint.tlsSecretName has to be of type kubernetes.io/tls", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{} is not PEM: {error}", .path.display())]
    Pem { path: PathBuf, error: rustls::pki_types::pem::Error },
    #[error("certificate and key: {0}")]
    Tls(#[from] rustls::Error),
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// The newest TLS configuration.
pub type Acceptor = watch::Receiver<TlsAcceptor>;

/// Reads the files of the folder, and follows them; without one, makes a certificate for these names. Waits until there is a right one.
pub async fn acceptor(folder: Option<PathBuf>, names: Vec<String>) -> Acceptor {
    let first = || match &folder {
        Some(folder) => Files::read(folder).and_then(|files| Ok((files.configured(folder)?, Some(files)))),
        None => Ok((own(names.clone())?, None)),
    };
    let (acceptor, files) = loop {
        match first() {
            Ok(first) => break first,
            Err(error) => tracing::error!(%error, "the usage endpoint is not served, retrying in a minute"),
        }
        time::sleep(INTERVAL).await;
    };
    let (newest, acceptor) = watch::channel(acceptor);
    let (Some(folder), Some(mut files)) = (folder, files) else { return acceptor };
    tokio::spawn(async move {
        while !newest.is_closed() {
            time::sleep(INTERVAL).await;
            match renewed(&folder, &files) {
                Ok(Some((read, acceptor))) => {
                    files = read;
                    tracing::info!(folder = %folder.display(), "the certificate of the usage endpoint is renewed");
                    newest.send_replace(acceptor);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "the certificate of the usage endpoint is not renewed"),
            }
        }
    });
    acceptor
}

/// A certificate of this replica's own.
fn own(names: Vec<String>) -> Result<TlsAcceptor, CertificateError> {
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    configured(vec![cert.der().clone()], key)
}

/// The files if they differ from the last ones.
fn renewed(folder: &Path, last: &Files) -> Result<Option<(Files, TlsAcceptor)>, CertificateError> {
    let files = Files::read(folder)?;
    if files == *last {
        return Ok(None);
    }
    let acceptor = files.configured(folder)?;
    Ok(Some((files, acceptor)))
}

/// The files of a Secret of type `kubernetes.io/tls`.
#[derive(PartialEq, Eq)]
struct Files {
    certificates: Vec<u8>,
    key: Vec<u8>,
}

const CERTIFICATES: &str = "tls.crt";
const KEY: &str = "tls.key";

impl Files {
    fn read(folder: &Path) -> Result<Self, CertificateError> {
        let read = |name| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|error| CertificateError::File { path, error })
        };
        Ok(Self { certificates: read(CERTIFICATES)?, key: read(KEY)? })
    }

    fn configured(&self, folder: &Path) -> Result<TlsAcceptor, CertificateError> {
        let wrong = |name| {
            let path = folder.join(name);
            |error| CertificateError::Pem { path, error }
        };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificates).collect();
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(wrong(KEY))?;
        configured(certificates.map_err(wrong(CERTIFICATES))?, key)
    }
}

fn configured(
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<TlsAcceptor, CertificateError> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path) {
        let pair = rcgen::generate_simple_self_signed(vec!["usage".to_owned()]).unwrap();
        std::fs::write(folder.join(CERTIFICATES), pair.cert.pem()).unwrap();
        std::fs::write(folder.join(KEY), pair.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn renewed_files_are_used_and_a_wrong_one_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Files::read(folder.path()).err().unwrap().to_string();
        assert!(missing.contains("tls.crt") && missing.contains("kubernetes.io/tls"), "{missing}");
        write(folder.path());
        let files = Files::read(folder.path()).unwrap();
        assert!(files.configured(folder.path()).is_ok());
        assert!(renewed(folder.path(), &files).unwrap().is_none(), "nothing changed");
        write(folder.path());
        assert!(renewed(folder.path(), &files).unwrap().is_some());
        std::fs::write(folder.path().join(KEY), "no key").unwrap();
        let wrong = renewed(folder.path(), &files).err().unwrap().to_string();
        assert!(wrong.contains("tls.key is not PEM"), "{wrong}");
    }
}
