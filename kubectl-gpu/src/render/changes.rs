//! Changes for people: a table on a terminal, a line for each piece of news elsewhere.

use super::{
    table::{WIDTH, table},
    words::{GREEN, span, styled, wrapped},
};
use crate::changes::{ChangeList, RunningChange};

/// All changes as a table.
pub fn changes(list: &ChangeList) -> String {
    let mut text = if list.items.is_empty() {
        if list.pending.is_empty() { styled(GREEN, "no GPU is changing") + "\n" } else { String::new() }
    } else {
        let rows = list.items.iter().map(|c| {
            let bar = format!("{}{}", "#".repeat(c.step.into()), "-".repeat((c.steps - c.step).into()));
            vec![format!("{} GPU {}", c.node, c.gpu), c.phase.clone(), bar, span(c.seconds), said(c).to_owned()]
        });
        table(&["GPU", "PHASE", "STEP", "SINCE", "WAITS FOR"], rows)
    };
    for pending in &list.pending {
        for line in wrapped(pending, usize::from(WIDTH) - 2) {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

/// What is being done or waited for; until the pool's status has caught up with the phase, what the phase is about.
fn said(change: &RunningChange) -> &str {
    match change.phase.as_str() {
        _ if change.failed => &change.reason,
        _ if !change.message.is_empty() => &change.message,
        "Noticed" => "owners are being told",
        "Held" => "free devices that must go are being withdrawn",
        "Evicting" => "owners are being evicted",
        "Idle" => "NVML has yet to show that nothing uses what goes",
        "Partitioning" => "the agent is carving",
        "Canary" => "canary pods have yet to prove the new devices",
        "RollingBack" => "the old layout is being restored",
        _ => "kubelet and the Node's allocatable have yet to agree",
    }
}

/// One change as a line without times, so that it differs only when something has happened.
pub fn line(change: &RunningChange) -> String {
    let RunningChange { node, gpu, phase, step, steps, .. } = change;
    format!("{node} GPU {gpu}: {phase} ({step}/{steps}): {}", said(change))
}

/// Why a GPU is changed, as a line that is told once.
pub fn beginning(change: &RunningChange) -> String {
    format!("{} GPU {}: {}", change.node, change.gpu, change.reason)
}
