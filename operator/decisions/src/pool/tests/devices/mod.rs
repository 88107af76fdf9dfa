//! Devices that are retained, resized or repaired.

mod left_over;
mod repairs;
mod resized;
mod retained;
