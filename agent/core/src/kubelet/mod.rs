//! What kubelet gets to see: the [`device_list`] of each resource, the Node's [`allocatable`], and which [`stale_names`] are removed.

pub mod allocatable;
pub mod device_list;
pub mod stale_names;
