//! A library at the place of one of the driver's libraries: how it is linked, and how it calls the functions of the driver's own file.
//!
//! [`link::in_front_of`] is for build scripts. [`Function`] and [`call!`] are for the library itself.

mod function;
pub mod link;

pub use function::Function;
