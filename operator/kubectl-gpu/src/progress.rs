//! Progress of changes as lines, each once: what is new since the last list. Pure.
//!
//! The phase of a change is in its `GpuNode` and the message in its pool, so that one of them is a moment behind the other.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    changes::{ChangeList, RunningChange},
    render,
};

/// What has been printed.
#[derive(Debug, Default)]
pub struct Progress {
    gpus: BTreeMap<(String, i32), Printed>,
    pending: Vec<String>,
}

/// Lines printed about the change of one GPU.
#[derive(Debug, Default)]
struct Printed {
    reason: String,
    step: u8,
    failed: bool,
    lines: BTreeSet<String>,
}

impl Progress {
    /// The new lines.
    pub fn lines(&mut self, list: &ChangeList) -> Vec<String> {
        let mut lines: Vec<String> = list.items.iter().flat_map(|change| self.of(change)).collect();
        let listed = |(node, gpu): &(String, i32)| list.items.iter().any(|c| c.node == *node && c.gpu == *gpu);
        self.gpus.retain(|gpu, printed| {
            let stays = listed(gpu);
            if !stays && !printed.failed {
                lines.push(format!("{} GPU {}: done", gpu.0, gpu.1));
            }
            stays
        });
        lines.extend(list.pending.iter().filter(|line| !self.pending.contains(line)).cloned());
        self.pending.clone_from(&list.pending);
        lines
    }

    fn of(&mut self, change: &RunningChange) -> Vec<String> {
        let printed = self.gpus.entry((change.node.clone(), change.gpu)).or_default();
        // another change of the same GPU, or the way back
        let again = change.step < printed.step || change.reason != printed.reason;
        if again {
            *printed = Printed { reason: change.reason.clone(), ..Printed::default() };
        }
        let line = render::change_line(change);
        // without a message of the pool the line only describes the phase
        let described = change.message.is_empty() && !change.failed && change.step == printed.step;
        let reason = again.then(|| render::reason_line(change));
        let line = (!described && printed.lines.insert(line.clone())).then_some(line);
        (printed.step, printed.failed) = (change.step, change.failed);
        reason.into_iter().chain(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(phase: &str, step: u8, message: &str) -> RunningChange {
        RunningChange {
            node: "n".into(),
            gpu: 0,
            pool: None,
            phase: phase.into(),
            step,
            steps: 6,
            since: String::new(),
            seconds: 0,
            message: message.into(),
            reason: "create 3g.40gb".into(),
            failed: phase == "Stuck",
        }
    }

    fn list(items: Vec<RunningChange>) -> ChangeList {
        ChangeList { api_version: String::new(), kind: String::new(), items, pending: vec![] }
    }

    fn printed(lists: Vec<Vec<RunningChange>>) -> Vec<String> {
        let mut progress = Progress::default();
        lists.into_iter().flat_map(|items| progress.lines(&list(items))).collect()
    }

    #[test]
    fn every_line_comes_once_and_a_description_only_before_a_message() {
        let lists = vec![
            vec![change("Noticed", 1, "")],
            vec![change("Noticed", 1, "evictions begin at ten")],
            vec![change("Noticed", 1, "")],
            vec![change("Evicting", 3, "")],
            vec![change("Evicting", 3, "pod a/b is terminating")],
            vec![change("Evicting", 3, "pod a/c is terminating")],
            vec![change("Evicting", 3, "pod a/b is terminating")],
            vec![],
        ];
        assert_eq!(
            printed(lists),
            [
                "n GPU 0: create 3g.40gb",
                "n GPU 0: Noticed (1/6): notifying owners",
                "n GPU 0: Noticed (1/6): evictions begin at ten",
                "n GPU 0: Evicting (3/6): evicting owners",
                "n GPU 0: Evicting (3/6): pod a/b is terminating",
                "n GPU 0: Evicting (3/6): pod a/c is terminating",
                "n GPU 0: done",
            ]
        );
    }

    #[test]
    fn next_change_of_a_gpu_begins_anew_and_a_failed_one_is_not_done() {
        let again = printed(vec![vec![change("Verifying", 6, "x")], vec![change("Noticed", 1, "y")]]);
        assert_eq!(again.iter().filter(|line| *line == "n GPU 0: create 3g.40gb").count(), 2, "{again:?}");
        let failed = printed(vec![vec![change("Stuck", 6, "")], vec![change("Stuck", 6, "")], vec![]]);
        assert_eq!(failed, ["n GPU 0: create 3g.40gb", "n GPU 0: Stuck (6/6): create 3g.40gb"]);
    }
}
