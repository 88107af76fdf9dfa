//! The cluster's keys, created for each lab on its tmpfs.

use crate::address::{API, Place, SERVICE_API};
use crate::error::{During, Error, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose as Purpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A certificate and its key, both PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub cert: String,
    /// The private key.
    pub key: String,
}

impl Pair {
    /// Writes `NAME.crt` and `NAME.key` (readable by root only).
    pub fn write(&self, folder: &Path, name: &str) -> Result<()> {
        write_private(&folder.join(format!("{name}.crt")), &self.cert)?;
        write_private(&folder.join(format!("{name}.key")), &self.key)
    }
}

/// Writes a file only its owner can read.
pub fn write_private(path: &Path, content: &str) -> Result<()> {
    std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .during(|| format!("writing {}", path.display()))
}

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate and key.
    pub pair: Pair,
}

fn failed(source: &rcgen::Error) -> Error {
    Error::Invalid { what: "making a certificate".to_owned(), why: source.to_string() }
}

fn params(name: &str, groups: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2060, 1, 1));
    params
}

impl Authority {
    /// A new authority.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let cert = params.self_signed(&key).map_err(|error| failed(&error))?.pem();
        let pair = Pair { cert, key: key.serialize_pem() };
        Ok(Self { issuer: Issuer::new(params, key), pair })
    }

    /// A certificate for `name` in `groups`.
    pub fn sign(&self, name: &str, groups: &[&str], uses: &[Purpose], names: &[SanType]) -> Result<Pair> {
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let mut params = params(name, groups);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = uses.to_vec();
        params.subject_alt_names = names.to_vec();
        let cert = params.signed_by(&key, &self.issuer).map_err(|error| failed(&error))?.pem();
        Ok(Pair { cert, key: key.serialize_pem() })
    }
}

/// All keys of the control plane; nodes get theirs from [`ControlPlane::node`].
pub struct ControlPlane {
    /// Signs everything but the front proxy's client.
    pub ca: Authority,
    /// Signs the API server's calls to extension API servers.
    pub front: Authority,
    /// Named pairs, as files are named.
    pub pairs: Vec<(&'static str, Pair)>,
    /// Signs service account tokens: private and public key.
    pub accounts: (String, String),
}

fn ip(address: Ipv4Addr) -> SanType {
    SanType::IpAddress(IpAddr::V4(address))
}

fn dns(name: &str) -> Result<SanType> {
    name.try_into().map(SanType::DnsName).map_err(|error| failed(&error))
}

impl ControlPlane {
    /// Creates all keys.
    pub fn new() -> Result<Self> {
        let (ca, front) = (Authority::new("kubernetes-ca")?, Authority::new("front-proxy-ca")?);
        let (client, server) = ([Purpose::ClientAuth], [Purpose::ServerAuth]);
        let both = [Purpose::ClientAuth, Purpose::ServerAuth];
        let loopback = [ip(Ipv4Addr::LOCALHOST)];
        let mut names = vec![ip(API), ip(Ipv4Addr::LOCALHOST), ip(SERVICE_API)];
        for name in ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"] {
            names.push(dns(name)?);
        }
        names.push(dns("kubernetes.default.svc.cluster.local")?);
        let pairs = vec![
            ("apiserver", ca.sign("kube-apiserver", &[], &server, &names)?),
            ("admin", ca.sign("kubernetes-admin", &["system:masters"], &client, &[])?),
            ("controller-manager", ca.sign("system:kube-controller-manager", &[], &both, &loopback)?),
            ("scheduler", ca.sign("system:kube-scheduler", &[], &both, &loopback)?),
            ("proxy", ca.sign("system:kube-proxy", &[], &client, &[])?),
            ("kubelet-client", ca.sign("kube-apiserver-kubelet-client", &["system:masters"], &client, &[])?),
            ("front", front.sign("front-proxy-client", &[], &client, &[])?),
        ];
        let accounts = KeyPair::generate().map_err(|error| failed(&error))?;
        let accounts = (accounts.serialize_pem(), accounts.public_key_pem());
        Ok(Self { ca, front, pairs, accounts })
    }

    /// The pair of this name.
    pub fn pair(&self, name: &str) -> Result<&Pair> {
        let found = self.pairs.iter().find(|(have, _)| *have == name).map(|(_, pair)| pair);
        found.ok_or_else(|| Error::Invalid { what: "keys".to_owned(), why: format!("there is no {name}") })
    }

    /// Writes all of it into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        self.ca.pair.write(folder, "ca")?;
        self.front.pair.write(folder, "front-ca")?;
        for (name, pair) in &self.pairs {
            pair.write(folder, name)?;
        }
        write_private(&folder.join("sa.key"), &self.accounts.0)?;
        write_private(&folder.join("sa.pub"), &self.accounts.1)
    }

    /// A node's client and serving pairs.
    pub fn node(&self, name: &str, place: Place) -> Result<(Pair, Pair)> {
        let user = format!("system:node:{name}");
        let client = self.ca.sign(&user, &["system:nodes"], &[Purpose::ClientAuth], &[])?;
        let names = [ip(place.node()), dns(name)?];
        let serving = self.ca.sign(&user, &["system:nodes"], &[Purpose::ServerAuth], &names)?;
        Ok((client, serving))
    }
}

/// A kubeconfig with everything inline.
pub fn kubeconfig(server: &str, ca: &str, pair: &Pair) -> String {
    let encode = |pem: &str| {
        let bytes = k8s_openapi::ByteString(pem.as_bytes().to_vec());
        serde_json::to_value(bytes).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: lab, cluster: {{server: \"{server}\", certificate-authority-data: {}}}}}]
users: [{{name: lab, user: {{client-certificate-data: {}, client-key-data: {}}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]
current-context: lab
",
        encode(ca),
        encode(&pair.cert),
        encode(&pair.key)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pki_creates_all_pairs_and_a_readable_kubeconfig() {
        let keys = ControlPlane::new().unwrap();
        for name in ["apiserver", "admin", "controller-manager", "scheduler", "proxy", "kubelet-client", "front"] {
            assert!(keys.pair(name).unwrap().cert.starts_with("-----BEGIN CERTIFICATE"), "{name}");
        }
        let text = kubeconfig("https://127.0.0.1:1", &keys.ca.pair.cert, keys.pair("admin").unwrap());
        let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("lab"));
    }
}
