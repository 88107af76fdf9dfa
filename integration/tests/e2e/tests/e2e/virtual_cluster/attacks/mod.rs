//! What a team that is administrator inside, and its pods, cannot do.

pub(crate) mod bypasses;
pub(crate) mod hostile;
pub(crate) mod network;
