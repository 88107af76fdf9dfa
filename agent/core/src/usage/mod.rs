//! How busy devices and containers are, and for how long.
//!
//! A [`reading`] is what NVML measures of a GPU. [`activity`] chooses the best source for each device, [`containers`] divides it among the containers
//! that have the device of all [`devices`], and [`seconds`] adds up the time that tenants had devices and used them. A value that the hardware does not show stays absent:
//! it is never 0.

pub mod activity;
pub mod containers;
pub mod devices;
pub mod reading;
pub mod seconds;
