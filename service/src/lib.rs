//! What the operator and the agent share as long-running programs.
