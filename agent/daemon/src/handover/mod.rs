//! A device is handed over only when it is clean: it is given to a container only when no process of another pod uses it. kubelet forgets
//! a pod that was deleted with force while its processes still run, so kubelet's list of owners proves nothing.
//!
//! [`occupied`] decides from processes and owners which devices must not be handed over. [`check`] reads the processes at each allocation;
//! [`withdrawal`] withdraws such devices meanwhile, and [`terminate`] ends their processes if the administrator asks for that.

pub mod check;
pub mod occupied;
pub mod terminate;
pub mod withdrawal;

pub use check::HandoverCheck;
pub use occupied::Unattributed;
pub use terminate::{Policy, ProcessPolicy, Terminator};
pub use withdrawal::Withdrawal;
