//! The container of each GPU process: [`processes`] decides from the inventory and the open files, [`containers`] what the status lists of it,
//! and [`memory`] what holds the memory of devices.

pub mod containers;
pub mod memory;
pub mod processes;
