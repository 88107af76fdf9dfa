//! Passes over fleets made by hand.
