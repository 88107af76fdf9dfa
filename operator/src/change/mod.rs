//! The change machine: one GPU from one layout to another, decided without any I/O.
