//! The order of a team's waiting jobs as text.

use super::{style::wrapped, table::table};
use crate::{
    tenant::{QueueOrder, QueuedJob},
    units::{counted, span},
};

/// Most jobs that are shown.
const MOST: usize = 10;

/// The first jobs of the queue, and how long others have waited.
pub(super) fn order(order: &QueueOrder) -> String {
    let mut text = String::new();
    if let Some(why) = &order.not_visible {
        wrapped(&mut text, 2, "", &format!("positions are not visible: {why}"));
    }
    if !order.jobs.is_empty() {
        let row = |job: &QueuedJob| {
            let created = job.seconds.map_or_else(|| "?".to_owned(), |seconds| format!("{} ago", span(seconds)));
            vec![job.position.to_string(), format!("{}/Job/{}", job.namespace, job.job), created]
        };
        text.push('\n');
        text.push_str(&table(&["POSITION", "JOB", "CREATED"], order.jobs.iter().take(MOST).map(row)));
    }
    if let Some(more) = order.jobs.len().checked_sub(MOST).filter(|more| *more > 0) {
        wrapped(&mut text, 2, "", &format!("and {more} more: -o json has all"));
    }
    let expected = match &order.recent {
        Some(recent) => format!(
            "about {}, the median of {} that waited and were admitted in the last day",
            span(u64::try_from(recent.median_seconds).unwrap_or_default()),
            counted(recent.jobs, "job")
        ),
        None => "unknown, because no job that waited was admitted in the last day".to_owned(),
    };
    wrapped(&mut text, 2, "expected wait: ", &expected);
    text
}
