//! Enforces `NetworkPolicy`, which the bridge plugin does not: every node's nftables are derived from the cluster's policies.
//!
//! [`rules`] computes permitted ingress and egress of a node's pods, [`table`] renders them as one nftables table, and
//! [`follow`] updates the table when policies, pods and namespaces change. As with most engines, a pod is protected once its
//! address is in the API, not from its first packet.

mod follow;
mod rules;
mod table;

pub use follow::follow;
