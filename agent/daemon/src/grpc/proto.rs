//! The gRPC interfaces of kubelet and the container runtime. `agent/daemon/proto/generated` has what tonic and prost generate from `agent/daemon/proto`: it follows their
//! style and is not documented, hence the allowances. The test `generated` of the agent compares, and generates it again.

/// The device plugin API.
#[allow(missing_docs, clippy::pedantic, reason = "generated code")]
pub mod plugin {
    include!("../../proto/generated/v1beta1.rs");

    /// Version that a plugin names when it registers.
    pub const VERSION: &str = "v1beta1";
    /// A device that may be given away.
    pub const HEALTHY: &str = "Healthy";
    /// A device that kubelet counts in the node's capacity but gives to nobody.
    pub const UNHEALTHY: &str = "Unhealthy";
}

/// The pod resources API.
#[allow(missing_docs, clippy::pedantic, reason = "generated code")]
pub mod podresources {
    include!("../../proto/generated/v1.rs");
}

/// The container runtime interface.
#[allow(missing_docs, clippy::pedantic, reason = "generated code")]
pub mod runtime {
    include!("../../proto/generated/runtime.v1.rs");
}
