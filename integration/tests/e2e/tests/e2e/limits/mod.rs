//! Memory and compute limits of shares, and ways around them.

mod compute_limits;
mod driver_limits;
mod enforcement;
mod env_from;
mod limit_bypasses;
mod limits_without_agent;
mod live_resize;
mod memory_limits;
mod memory_scrub;
mod nvml_view;
mod share_audit;
mod unserved_containers;
