//! Carving against a small model of NVML: every path ends at the layout wanted, and no client ever loses its instance.

mod cases;
mod laws;
pub mod model;
