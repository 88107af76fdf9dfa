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

use crate::device::{Device, DeviceId};

/// Vendor and class of the devices.
pub const KIND: &str = "gputenancy.io/gpu";

/// Name of a device within the specification. CDI allows letters, digits and `_-.:`; profiles such as `1g.10gb+me` have more.
pub fn name(id: &DeviceId) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.:".contains(c) { c } else { '.' };
    id.as_str().chars().map(plain).collect()
}

/// Name of a share for a container that does not get the library that limits it.
pub fn plain_name(id: &DeviceId) -> String {
    format!("{}-unlimited", name(id))
}

/// Name of a device for the container runtime; `plain` for a container that does not get the library that limits memory.
pub fn qualified_name(device: &Device, plain: bool) -> String {
    let of_sandbox = plain && device.share.as_ref().is_some_and(|share| share.limit_mib.is_some());
    let name = if of_sandbox { plain_name(&device.id) } else { name(&device.id) };
    format!("{KIND}={name}")
}
