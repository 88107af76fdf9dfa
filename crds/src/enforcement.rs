//! What a pool demands of the limits of shares.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::Isolation;

/// What is demanded of the limits of shares.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Enforcement {
    /// Weakest means that may limit the memory of shares: Hardware, Driver, Server (MPS), Software or None. Nodes that cannot give it for a
    /// kind of share get no shares of that kind; idle shares that exist are withdrawn, and pods that run keep theirs. With Hardware there
    /// are no shares, only MIG instances and whole GPUs.
    #[serde(default)]
    pub minimum: Isolation,
}

impl Enforcement {
    /// Is it the default, which is not written?
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
