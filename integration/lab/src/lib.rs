//! A real multi-node Kubernetes on one machine, as one process tree in its own namespaces.

pub mod address;
pub mod cgroup;
mod client;
pub mod command;
pub mod component;
pub mod control;
pub mod error;
mod firewall;
pub mod image;
pub mod init;
pub mod keeper;
mod kwok;
pub mod lab;
mod mount;
pub mod node;
pub mod node_init;
mod node_root;
pub mod pki;
pub mod place;
mod power;
pub mod prerequisites;
pub mod process;
mod progress;
mod render;
pub mod spec;
pub mod start;
mod supervise;
pub mod wait;

mod collect;

pub use command::Output;
pub use error::{Error, Result};
pub use lab::Lab;
pub use node::NodeHandle;
pub use progress::Progress;
pub use spec::{GPU_LABEL, LabSpec, Profile};
pub use wait::{PATIENCE, node_is_ready, pod_is_ready, wait_for, wait_for_all};
