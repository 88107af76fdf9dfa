//! Random documents for the tests of decoders.
//!
//! [`check`] runs a property with [`Choices`], random numbers that decide what a document contains. [`schema`] makes valid objects from
//! the schemas of CRDs, [`mutated`] and [`damaged`] break them.

mod choices;
mod damage;
mod run;
pub mod schema;

pub use choices::Choices;
pub use damage::{damaged, mutated, tree};
pub use proptest::{
    prop_assert, prop_assert_eq,
    test_runner::{TestCaseError, TestCaseResult},
};
pub use run::{Times, check, check_slow};
