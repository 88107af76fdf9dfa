//! Quotas, limits and secrets of the namespaces of tenants.

mod default_counts;
mod multi_tenancy_benchmarks;
mod priority_classes;
mod pull_secrets;
mod queues;
mod sharing_admission;
