//! Changes from outside, kills, stops, and what is restored.

pub(crate) mod disruption;
pub(crate) mod killer;
pub(crate) mod restore;
pub(crate) mod suspend;
