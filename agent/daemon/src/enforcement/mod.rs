//! Limits of shares: memory, and for fractions the GPU's time, by the libraries that containers get in place of `libcuda.so.1` (the shim) and
//! of `libnvidia-ml.so.1` (the view).
//!
//! [`install`] puts them on the node, [`limit`] decides what a share may allocate and [`turns`] when it may launch, [`arbitration`] relays between the shares of a GPU, [`node`] what the node can
//! give next to other products ([`other_limiter`]), whose limits [`other_limits`] reads from pods, and [`files`] gives each container its limits and a ledger of its own when kubelet allocates the share. The CDI specification mounts
//! all of them. [`resize`] gives running containers the new size of their profile. [`growth`] stops containers that make their ledger larger. [`driver`] sets limits in the driver as well, where it has them.

mod arbitration;
pub mod driver;
mod files;
mod growth;
mod install;
mod node;
mod other_limiter;
mod other_limits;
mod resize;
mod sampling;

pub use arbitration::{Arbitration, PodCompute};
pub use files::ShareFiles;
pub use gputenancy_agent_core::enforcement::limit::{cordon_weak, means_of};
pub use growth::GrowthWatch;
pub use install::{Library, SHARES, install};
pub use node::{NOT_INSTALLED, conflict, of_node};
pub use other_limiter::find as other_limiter;
pub use other_limits::OtherLimits;
pub use resize::{Resizer, ShareSize, ShareSizes};
pub use sampling::pause;
