//! What is reported: statuses of pools and profiles, and what the controller of tenants sees of the fleet.

pub mod pools;
pub mod profiles;
pub mod view;
