//! The checks, in the order in which they run.

mod agent;
mod memory;
mod mps;
mod pace;
mod processes;
mod residue;
mod routing;
mod timing;
mod torch;
mod view;

use std::error::Error;

use crate::{container::Container, report::Report};

/// A check; an error is one of this machine, not of what is checked.
type Check = fn(&Container, &mut Report) -> Result<(), Box<dyn Error>>;

/// All, by name.
pub const ALL: &[(&str, Check)] = &[
    ("driver", memory::driver),
    ("routing", routing::check),
    ("memory", memory::families),
    ("processes", processes::check),
    ("view", view::check),
    ("agent", agent::check),
    ("residue", residue::check),
    ("mps", mps::check),
    ("timing", timing::check),
    ("pace", pace::check),
    ("torch", torch::check),
];
