//! `NetworkPolicy` in force: the bridge plugin knows none, so every node's own nftables are written after the cluster's policies.
//!
//! [`rules`] says what may reach a node's pods and what they may reach, [`table`] writes that as one nftables table, and
//! [`follow`] keeps the table true while policies, pods and namespaces change. A pod is guarded from the moment at which the
//! API server knows its address, as with most engines: not from its first packet.

mod follow;
mod rules;
mod table;

pub use follow::follow;
