//! What a share may use: [`limit`] of its memory, which the driver may set ([`driver_limits`]), and [`turns`] of its GPU's
//! time.

pub mod driver_limits;
pub mod limit;
pub mod turns;
