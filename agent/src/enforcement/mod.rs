//! Limits of shares: memory, and for fractions the GPU's time, by the libraries that containers get in place of `libcuda.so.1` (the shim) and
//! of `libnvidia-ml.so.1` (the view).
//!
//! [`install`] puts them on the node, [`limit`] decides what a share may allocate and [`turns`] when it may launch, [`node`] what the node can
//! give next to other products ([`other_limiter`]), whose limits [`other_limits`] reads from pods, and [`files`] gives each container its limits and a ledger of its own when kubelet allocates the share. The CDI specification mounts
//! all of them. [`driver`] sets limits in the driver as well, where it has them.

pub mod driver;
mod files;
mod install;
mod limit;
mod node;
mod other_limiter;
mod other_limits;
mod turns;

pub use files::ShareFiles;
pub use install::{Library, SHARES, install};
pub use limit::{CONTEXT_MIB, cordon_weak, means_of, of_fraction, of_time_slice};
pub use node::{NOT_INSTALLED, conflict, of_node};
pub use other_limiter::find as other_limiter;
pub use other_limits::OtherLimits;
pub use turns::of_share as pace_of;
