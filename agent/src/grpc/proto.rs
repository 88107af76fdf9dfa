//! The gRPC interfaces of kubelet and the container runtime, generated from `agent/proto`.

/// The device plugin API.
#[allow(missing_docs, clippy::pedantic, reason = "generated code")]
pub mod plugin {
    tonic::include_proto!("v1beta1");

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
    tonic::include_proto!("v1");
}

/// The container runtime interface.
#[allow(missing_docs, clippy::pedantic, reason = "generated code")]
pub mod runtime {
    tonic::include_proto!("runtime.v1");
}
