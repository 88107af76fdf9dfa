//! Changes for people: a table on a terminal, a line for each piece of news elsewhere.

use super::{
    table::table,
    words::{GREEN, span, styled},
};
use crate::changes::{ChangeList, RunningChange};

/// All changes as a table.
pub fn changes(list: &ChangeList) -> String {
    let mut text = if list.items.is_empty() {
        if list.pending.is_empty() { styled(GREEN, "no GPU is changing") + "\n" } else { String::new() }
    } else {
        let rows = list.items.iter().map(|c| {
            let bar = format!("{}{}", "#".repeat(c.step.into()), "-".repeat((c.steps - c.step).into()));
            let said = if c.message.is_empty() || c.failed { &c.reason } else { &c.message };
            vec![format!("{} GPU {}", c.node, c.gpu), c.phase.clone(), bar, span(c.seconds), said.clone()]
        });
        table(&["GPU", "PHASE", "STEP", "SINCE", "WAITS FOR"], rows)
    };
    for pending in &list.pending {
        text.push_str(&format!("  {pending}\n"));
    }
    text
}

/// One change as a line without times, so that it differs only when something has happened.
pub fn line(change: &RunningChange) -> String {
    let RunningChange { node, gpu, phase, step, steps, message, reason, failed, .. } = change;
    let said = if message.is_empty() || *failed { reason } else { message };
    format!("{node} GPU {gpu}: {phase} ({step}/{steps}): {said}")
}
