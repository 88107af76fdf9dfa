//! The metrics of an agent, as other programs read them: [`read`] asks for the text over a connection, [`Agent`] holds its series.

mod read;
mod series;

pub use read::{ReadError, read};
pub use series::{Agent, Sample, sample};

/// Default port of the agents' metrics, as in the chart.
pub const PORT: u16 = 9410;
