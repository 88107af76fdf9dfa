//! The chart as helm renders it without a cluster, and the page of rights.

pub(crate) mod chart;
mod chart_names;
mod chart_options;
mod rights_page;
mod wrong_values;
