//! Inside a virtual cluster: its API server ([`connect`]), the team's account ([`account`]), the nodes that show the budget
//! ([`nodes`]), the catalog of the tenant's profiles with the `RuntimeClasses` ([`catalog`]) and the `PriorityClasses` ([`priorities`]),
//! events about pods that the quota refuses ([`refusals`]) and that wait for a device ([`pending`]), the report about the former
//! ([`refused`]), and host pods that the syncer cannot delete ([`orphans`]).
//!
//! The team is administrator there, so nothing that comes from inside is trusted: answers are bounded in size and time, and the
//! credentials are read key by key, never as a kubeconfig.

pub mod account;
pub mod catalog;
pub mod connect;
pub mod nodes;
pub mod objects;
pub mod orphans;
pub mod pending;
pub mod priorities;
pub mod refusals;
pub mod refused;
