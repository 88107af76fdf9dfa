//! The planner: which instances each GPU shall carry, decided without any I/O.
