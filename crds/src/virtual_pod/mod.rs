//! Attributes a pod on the host cluster to its tenant, and to the virtual namespace and pod if the tenant has a vCluster.
//!
//! vCluster 0.36 creates the pods of all virtual namespaces in one host namespace and writes their identity into annotations.
//! [`attribute()`] recomputes the host name from these annotations and compares; it never splits a name, see [`host_name`].
//! A pod that fails a check is [`Origin::Suspicious`] with a reason; its tenant is charged for it as for every other pod.
//! Only single-namespace mode is supported: with namespace sync pods keep their names, so nothing can be recomputed.

mod attribute;
mod names;
#[cfg(test)]
mod tests;

pub use attribute::{Attribution, HostPod, Origin, PodIdentity, attribute};
pub use names::{host_name, safe_concat_name};
