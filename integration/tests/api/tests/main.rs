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

mod bypass;
mod crds;
mod gitops;
mod nvsentinel;
mod offline;
mod policies;
mod tenants;
mod tokens;
