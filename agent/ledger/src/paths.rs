//! Where the files of a share are: the agent writes and mounts them, the shim and the view of NVML open them.

/// Name of the limits in the folder of a share on the node.
pub const LIMITS_FILE: &str = "limits";
/// Name of the ledger in the folder of a share on the node.
pub const USAGE_FILE: &str = "usage";
/// The limits in a container with the share, which only reads them.
pub const LIMITS: &str = "/run/gputenancy/share/limits";
/// The ledger in a container with the share.
pub const USAGE: &str = "/run/gputenancy/share/usage";
