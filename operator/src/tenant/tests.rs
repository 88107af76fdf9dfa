//! Decisions about tenants, without a cluster.
