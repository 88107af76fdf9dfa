//! Blocks in which a device's memory is given out.

/// Bytes of a block.
pub const BLOCK: u64 = 2 << 20;
