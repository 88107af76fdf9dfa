//! The CDI specification: what the container runtime must do for each device that kubelet hands out.

mod caps;
mod driver;
mod file;
mod spec;
#[cfg(test)]
mod tests;

pub use caps::CapMinors;
pub use driver::{Driver, Mount, Node};
pub use file::SpecFile;
pub use spec::{Spec, render};

use crate::device::DeviceId;

/// Vendor and class of our devices.
pub const KIND: &str = "gputenancy.io/gpu";

/// The device's name within our specification. CDI knows letters, digits and `_-.:`; profiles such as `1g.10gb+me` have more.
pub fn name(id: &DeviceId) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.:".contains(c) { c } else { '.' };
    id.as_str().chars().map(plain).collect()
}

/// The device's name as the container runtime is given it.
pub fn qualified_name(id: &DeviceId) -> String {
    format!("{KIND}={}", name(id))
}
