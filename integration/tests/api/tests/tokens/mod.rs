//! What a program may do, and what its stolen token may not.

pub(crate) mod access;
mod lease_priority;
mod rights;
mod security_lists;
mod stolen_tokens;
mod virtual_cluster_token;
