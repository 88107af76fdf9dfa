//! Changes as text: a table on a terminal, a line for each update elsewhere.

use super::{
    style::{GREEN, styled, wrapped},
    table::table,
};
use crate::{
    changes::{ChangeList, RunningChange},
    units::span,
};

/// All changes as a table.
pub fn changes(list: &ChangeList) -> String {
    let mut text = if list.items.is_empty() {
        if list.pending.is_empty() { styled(GREEN, "no GPU is changing") + "\n" } else { String::new() }
    } else {
        let rows = list.items.iter().map(|c| {
            let bar = format!("{}{}", "#".repeat(c.step.into()), "-".repeat((c.steps - c.step).into()));
            vec![format!("{} GPU {}", c.node, c.gpu), c.phase.clone(), bar, span(c.seconds), action(c).to_owned()]
        });
        table(&["GPU", "PHASE", "STEP", "SINCE", "WAITS FOR"], rows)
    };
    for pending in &list.pending {
        wrapped(&mut text, 2, "", pending);
    }
    text
}

/// Current action; a description of the phase until the pool's status has caught up.
fn action(change: &RunningChange) -> &str {
    match change.phase.as_str() {
        _ if change.failed => &change.reason,
        _ if !change.message.is_empty() => &change.message,
        "Noticed" => "notifying owners",
        "Held" => "withdrawing free devices of removed instances",
        "Evicting" => "evicting owners",
        "Idle" => "waiting until NVML shows no process on removed instances",
        "Partitioning" => "the agent is partitioning the GPU",
        "Canary" => "waiting for canary pods to verify the new devices",
        "RollingBack" => "restoring the old layout",
        _ => "waiting for kubelet and the Node's allocatable",
    }
}

/// One change as a line without times, so that it changes only with the state.
pub fn change_line(change: &RunningChange) -> String {
    let RunningChange { node, gpu, phase, step, steps, .. } = change;
    format!("{node} GPU {gpu}: {phase} ({step}/{steps}): {}", action(change))
}

/// Why a GPU is changed, as a line.
pub fn reason_line(change: &RunningChange) -> String {
    format!("{} GPU {}: {}", change.node, change.gpu, change.reason)
}
