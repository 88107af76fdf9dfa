//! The checks, in the order in which they run.

mod memory;
mod pace;
mod processes;
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
    ("timing", timing::check),
    ("pace", pace::check),
    ("torch", torch::check),
];
