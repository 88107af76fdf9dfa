//! What a share may use: [`limit`] of its memory, [`turns`] of its GPU's time.

pub mod limit;
pub mod turns;
