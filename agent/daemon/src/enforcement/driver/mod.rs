//! Memory limits by the driver, from version 615 on: a hard limit for the cgroup of each container with a share of a GPU without MIG, which also
//! holds programs that do not load the library in their container.
//!
//! [`cgroups`] finds the containers' cgroups, [`gputenancy_agent_core::enforcement::driver_limits`] compares what is wanted with what was set, [`record`] keeps that over restarts of the
//! agent, and [`task`] calls the driver.

mod cgroups;
mod record;
mod task;

pub use cgroups::Cgroups;
pub use task::{Channels, DriverLimiter, INTERVAL};
