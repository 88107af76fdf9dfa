//! Rules of texts in the schemas, and enums that are read tolerantly.

pub mod patterns;
pub mod tolerant;
