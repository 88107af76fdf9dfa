//! Has no code. Cargo unifies features over the selected packages, and the Makefile always selects the whole workspace: with the features of
//! `Cargo.toml` here, which tests of other crates add, `cargo build` and `cargo test` compile each dependency once.
//! `dependencies_have_the_same_features_in_builds_and_tests` in `integration/tests/structure/tests/crates.rs` names what is missing.
