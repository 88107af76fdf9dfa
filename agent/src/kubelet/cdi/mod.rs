//! The CDI specification: what the container runtime does for each device that kubelet allocates.

mod driver;
mod file;
mod hooks;
mod spec;
#[cfg(test)]
mod tests;

pub use driver::{DeviceNode, Driver, Mount};
pub use file::SpecFile;
pub use spec::render;

use crate::device::DeviceId;

/// Vendor and class of the devices.
pub const KIND: &str = "gputenancy.io/gpu";

/// Name of a device within the specification. CDI allows letters, digits and `_-.:`; profiles such as `1g.10gb+me` have more.
pub fn name(id: &DeviceId) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.:".contains(c) { c } else { '.' };
    id.as_str().chars().map(plain).collect()
}

/// Name of a device for the container runtime.
pub fn qualified_name(id: &DeviceId) -> String {
    format!("{KIND}={}", name(id))
}
