//! Names of objects and devices as types, so that a pool's name is never taken for a profile's.

use std::{borrow::Borrow, fmt, sync::Arc};

macro_rules! names {
    ($($(#[$doc:meta])* $type:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        // shared: the plan of a large fleet repeats each name many times
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as manifests have it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<T: Into<Arc<str>>> From<T> for $type {
            fn from(name: T) -> Self {
                Self(name.into())
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )*};
}

names! {
    /// Name of a `GpuProfile`.
    ProfileName;
    /// Name of a `GpuPool`.
    PoolName;
    /// Name of a `GpuTenant`.
    TenantName;
    /// Name of a Node and of its `GpuNode`.
    NodeName;
    /// UUID of a GPU from NVML.
    GpuUuid;
}

/// A GPU of the fleet. The node comes first, so that the GPUs of a node are neighbours in a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuKey {
    /// Its node.
    pub node: NodeName,
    /// UUID from NVML.
    pub uuid: GpuUuid,
}

/// A pod by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: String,
}

impl PodName {
    /// Namespace and name.
    pub fn as_pair(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
