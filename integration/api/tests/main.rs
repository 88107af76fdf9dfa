//! Tests of what the API server decides: admission policies, rules of the CRDs, roles, tokens and quotas. Most requests are dry runs, and no test
//! depends on what happens on a GPU, so that no board is reset between them. Tests in modules `offline` need no cluster.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test panics with its finding"
)]
#![allow(clippy::needless_pass_by_value, reason = "a table of json! reads better without ampersands")]

mod access;
mod bypass;
mod bypass_claims;
mod bypass_cordons;
mod bypass_plugins;
mod crd_validation;
mod crd_virtual_cluster;
mod default_counts;
mod gitops;
mod lease_priority;
mod multi_tenancy_benchmarks;
mod nvsentinel;
mod offline;
mod other_products;
mod policies;
mod priority_classes;
mod pull_secrets;
mod rights;
mod security_lists;
mod sharing_admission;
mod stolen_tokens;
mod unmanaged_namespaces;
mod virtual_cluster_rules;
mod virtual_cluster_token;
