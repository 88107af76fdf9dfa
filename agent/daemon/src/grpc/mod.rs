//! The gRPC interfaces of kubelet and the container runtime, as the agent calls them.
//!
//! [`proto`] is generated, [`uds`] connects to sockets, [`pod_resources`] asks kubelet for owners of devices.

pub mod pod_resources;
pub mod proto;
pub mod uds;
