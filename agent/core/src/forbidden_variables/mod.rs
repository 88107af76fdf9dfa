//! Variables that tenants may not set: the [`containers`] that can get them by `envFrom`, and which of theirs are [`violations`].

pub mod containers;
pub mod violations;
