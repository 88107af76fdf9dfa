//! Names as types, so that a pool's name is never taken for a profile's.

use std::{borrow::Borrow, fmt, ops::Deref, sync::Arc};

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        // shared: a plan of a large fleet repeats each name many times
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as it is written in manifests.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<Arc<str>> for $type {
            fn from(name: Arc<str>) -> Self {
                Self(name)
            }
        }

        impl From<&str> for $type {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }

        impl From<String> for $type {
            fn from(name: String) -> Self {
                Self(name.into())
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// Name of a `GpuProfile`.
    ProfileName
);
name!(
    /// Name of a `GpuPool`.
    PoolName
);
name!(
    /// Name of a `GpuTenant`.
    TenantName
);
name!(
    /// Name of a Node and of its `GpuNode`.
    NodeName
);
name!(
    /// NVML's UUID of a GPU.
    GpuUuid
);

name!(
    /// A text that many objects repeat: a namespace, a resource, NVIDIA's name of a profile.
    Text
);

impl Text {
    /// The text itself, to be shared.
    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.0
    }
}

impl ProfileName {
    /// As [`Text::shared`].
    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

/// A GPU of the fleet: node first, so that GPUs of one node are neighbours in a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuKey {
    /// Its node.
    pub node: NodeName,
    /// NVML's UUID.
    pub uuid: GpuUuid,
}

/// A pod by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
