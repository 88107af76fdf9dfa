//! Crashes, lost devices, empty answers, and what is not verified.

mod crashes;
pub(crate) mod empty_answers;
mod lost;
mod recovery;
mod unverified;
