//! The team's kubeconfig: its text, and when its token is renewed. Pure.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{hex::hex, names};

/// What a kubeconfig is made for. With any other of these it is made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeconfigInput<'a> {
    /// Name of the virtual cluster, in the kubeconfig also that of context and user.
    pub cluster: &'a str,
    /// Address of its API server.
    pub server: &'a str,
    /// Certificate of its certificate authority, PEM.
    pub authority: &'a [u8],
    /// Uid of the account inside: tokens of a deleted one are invalid.
    pub account: &'a str,
}

impl KubeconfigInput<'_> {
    /// A short text that differs for any other.
    pub fn mark(&self) -> String {
        let Self { cluster, server, authority, account } = self;
        let mut hash = Sha256::new();
        for part in [cluster.as_bytes(), server.as_bytes(), authority, account.as_bytes()] {
            hash.update(u64::try_from(part.len()).unwrap_or_default().to_le_bytes());
            hash.update(part);
        }
        hex(hash.finalize().get(..12).unwrap_or_default())
    }

    /// The kubeconfig. JSON is YAML, and kubectl reads it.
    pub fn text(&self, token: &str) -> String {
        let Self { cluster, server, authority, .. } = self;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": BASE64_STANDARD.encode(authority)}}],
            "users": [{"name": cluster, "user": {"token": token}}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster}}],
            "current-context": cluster,
        });
        serde_saphyr::to_string(&config).unwrap_or_else(|_| config.to_string())
    }
}

/// The present Secret, as far as it decides about a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedKubeconfig {
    /// What it was made for: [`KubeconfigInput::mark`].
    pub mark: String,
    /// When its token was issued.
    pub issued: Timestamp,
    /// When its token expires.
    pub expires: Timestamp,
}

impl IssuedKubeconfig {
    /// Reads the Secret; `None`: it is incomplete, as after an edit.
    pub fn of(secret: &Secret) -> Option<Self> {
        let note = |key: &str| secret.metadata.annotations.as_ref()?.get(key).cloned();
        let filled = secret.data.as_ref().and_then(|d| d.get("config")).is_some_and(|ByteString(c)| !c.is_empty());
        filled.then_some(())?;
        let time = |key: &str| note(key)?.parse().ok();
        Some(Self { mark: note(names::MADE_FOR)?, issued: time(names::ISSUED)?, expires: time(names::EXPIRES)? })
    }

    /// Still good: made for the same, and less than half of its life and of the wanted life have passed.
    pub fn serves(&self, input: &KubeconfigInput<'_>, ttl: SignedDuration, now: Timestamp) -> bool {
        let (age, life) = (now.duration_since(self.issued), self.expires.duration_since(self.issued));
        self.mark == input.mark() && age >= SignedDuration::ZERO && age < life.min(ttl) / 2
    }
}

#[cfg(test)]
impl IssuedKubeconfig {
    /// One with these times.
    pub(crate) fn example(issued: &str, expires: &str) -> Self {
        Self { mark: String::new(), issued: issued.parse().unwrap(), expires: expires.parse().unwrap() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(server: &str) -> KubeconfigInput<'_> {
        KubeconfigInput { cluster: "team-a", server, authority: b"PEM", account: "uid-1" }
    }

    fn present(issued: &str, expires: &str, server: &str) -> IssuedKubeconfig {
        IssuedKubeconfig {
            mark: made(server).mark(),
            issued: issued.parse().unwrap(),
            expires: expires.parse().unwrap(),
        }
    }

    #[test]
    fn token_is_renewed_at_half_of_its_life() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (day, token) =
            (SignedDuration::from_hours(24), present("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "https://a"));
        assert!(token.serves(&made("https://a"), day, at("2026-01-01T11:59:00Z")));
        assert!(!token.serves(&made("https://a"), day, at("2026-01-01T12:00:00Z")));
        assert!(!token.serves(&made("https://b"), day, at("2026-01-01T00:01:00Z")), "another server");
        assert!(
            !token.serves(&made("https://a"), SignedDuration::from_hours(1), at("2026-01-01T01:00:00Z")),
            "shorter"
        );
        assert!(!token.serves(&made("https://a"), day, at("2025-12-31T00:00:00Z")), "issued in the future");
    }

    #[test]
    fn incomplete_secret_counts_as_none() {
        assert_eq!(IssuedKubeconfig::of(&Secret::default()), None);
    }

    #[test]
    fn kubeconfig_names_server_authority_and_token() {
        insta::assert_snapshot!(made("https://team-a.ns-a.svc").text("TOKEN"));
    }
}
