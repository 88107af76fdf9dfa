//! The writes of a tenant, as they are decided.

use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use serde_json::Value;

use crate::{
    cache::pull::Content,
    tenant::observe::{managed::Managed, wake_controllers::Wake},
};

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create the namespace; fails if it exists.
    CreateNamespace(Box<Namespace>),
    /// Repair a namespace's labels.
    LabelNamespace {
        namespace: Box<Namespace>,
        /// The tenant no longer lists it since this write, which an event reports.
        retained: bool,
    },
    /// Label a namespace without a tenant, if it still has the version that this carries.
    AdoptNamespace(Box<Namespace>),
    /// Apply a managed object.
    Apply {
        kind: Managed,
        namespace: String,
        object: Value,
        /// Delete the present one first, for its role cannot be changed.
        recreate: bool,
    },
    /// Delete a managed object.
    Delete { kind: Managed, namespace: String },
    /// Apply a quota, if it still has the version that this carries.
    ApplyQuota(Box<ResourceQuota>),
    /// Apply the copy of an image pull secret, if the present one still has the version that this carries.
    ApplyPullSecret(Box<PullSecretCopy>),
    /// Set the image pull secrets of a `ServiceAccount`.
    SetPullSecrets(AccountPullSecrets),
    /// Delete the copy of an image pull secret, unless another object has its name by now.
    DeletePullSecret { namespace: String, name: String, uid: Option<String> },
    /// Delete a namespace that the operator created, unless another has its name by now.
    DeleteNamespace { namespace: String, uid: Option<String> },
    /// Delete all managed objects and labels of a namespace that stays.
    ReleaseNamespace {
        namespace: String,
        /// The operator created it, so it has the label of managed objects.
        created: bool,
    },
    /// Wake a controller for whose pod there is headroom.
    Wake(Wake),
    /// Remove the tenant's finalizer; an event reports the sentence, if any.
    RemoveFinalizer(Option<String>),
}

/// The copy of an image pull secret to write.
#[derive(Clone, Debug, PartialEq)]
pub struct PullSecretCopy {
    pub namespace: String,
    pub name: String,
    /// Its content.
    pub content: Content,
    /// Version and uid of the present copy; the API server refuses the write for any other.
    pub decided_on: Precondition,
    /// Delete the present one first: it is of another type, or immutable.
    pub recreate: bool,
}

/// Version and uid that the API server compares on a write.
pub type Precondition = (Option<String>, Option<String>);

/// The [`Precondition`] of a write that must create the object: no object has this version, so a write to a present one is refused.
pub fn absent() -> Precondition {
    (Some("1".into()), None)
}

/// The image pull secrets of the `ServiceAccount` of a namespace: the operator's and the team's own, for this version of it.
#[derive(Clone, Debug, PartialEq)]
pub struct AccountPullSecrets {
    pub namespace: String,
    /// Version of the account.
    pub version: Option<String>,
    /// Names of the Secrets.
    pub names: Vec<String>,
}
