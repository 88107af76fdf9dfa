//! The operator's decisions as pure state machines: no client, no clock, no randomness.
