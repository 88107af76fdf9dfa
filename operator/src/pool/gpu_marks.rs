//! Single GPUs that others have withdrawn, by the annotation `gputenancy.io/withdrawn-gpus` of their Node.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use gputenancy_crds::names::WITHDRAWN_GPUS;
use gputenancy_engine::{
    fleet::Fleet,
    verdict::{Settled, settle, withdrawn_gpus},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Most invalid entries of an annotation that a message names.
const MOST_NAMED: usize = 4;

/// Most characters of an invalid entry that a message has.
const LONGEST_ENTRY: usize = 48;

/// Verdicts of others on the GPUs of one node.
#[derive(Debug, Default)]
pub struct GpuMarks {
    /// By UUID.
    gpus: BTreeMap<String, Settled>,
    /// When the last verdict on a GPU ended.
    ended: BTreeMap<String, Timestamp>,
    /// What is wrong with the annotation, with the remedy.
    problem: Option<String>,
    clear_after: SignedDuration,
}

impl GpuMarks {
    /// The verdicts on the GPUs of a node at `now`, from those before.
    pub fn update(mut self, fleet: &Fleet, name: &str, now: Timestamp) -> Self {
        let found = fleet.nodes.get(name).map(|node| withdrawn_gpus(node)).unwrap_or_default();
        if found.gpus.is_empty() && found.malformed.is_empty() && self.gpus.is_empty() {
            return Self { ended: self.ended, ..Self::default() };
        }
        self.clear_after = fleet.clear_after(name);
        let named: BTreeSet<String> =
            found.gpus.keys().map(|uuid| (*uuid).to_owned()).chain(self.gpus.keys().cloned()).collect();
        for uuid in named {
            let before = self.gpus.remove(&uuid).unwrap_or_default();
            let settled = settle(&before, found.gpus.get(uuid.as_str()).cloned(), self.clear_after, now);
            if settled.why.is_some() {
                self.gpus.insert(uuid, settled);
            } else {
                self.ended.insert(uuid, now);
            }
        }
        let status = fleet.gpu_nodes.get(name).and_then(|node| node.status.as_ref());
        let absent = |uuid: &str| status.is_some_and(|status| status.gpus.iter().all(|gpu| gpu.uuid != uuid));
        let absent = found.gpus.keys().copied().filter(|uuid| absent(uuid));
        let invalid: Vec<&str> = found.malformed.iter().copied().chain(absent).collect();
        self.problem = problem(&invalid);
        self
    }

    /// What others say about a GPU, as a clause.
    pub fn of(&self, uuid: &str) -> Option<&str> {
        self.gpus.get(uuid)?.why.as_deref()
    }

    /// When the last verdict on a GPU ended.
    pub fn ended(&self, uuid: &str) -> Option<Timestamp> {
        self.ended.get(uuid).copied()
    }

    /// What has ended did so by `now`.
    pub fn ended_by(&mut self, now: Timestamp) {
        self.ended.values_mut().for_each(|at| *at = (*at).min(now));
    }

    /// UUIDs of the withdrawn GPUs, each with a clause that says why.
    pub fn clauses(&self) -> BTreeMap<&str, Cow<'_, str>> {
        self.gpus.iter().filter_map(|(uuid, gpu)| Some((uuid.as_str(), gpu.why.as_deref()?.into()))).collect()
    }

    /// Texts for a message: a clause for each GPU, and until when it counts if the annotation is gone.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        self.gpus.values().filter_map(|gpu| {
            let why = gpu.why.as_ref()?;
            let until = gpu.ends(self.clear_after).map(|ends| format!(", which is gone and counts until {ends}"));
            Some(format!("{why}{}", until.unwrap_or_default()))
        })
    }

    /// What is wrong with the annotation, with the remedy.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// When the next verdict ends.
    pub fn ends(&self) -> Option<Timestamp> {
        self.gpus.values().filter_map(|gpu| gpu.ends(self.clear_after)).min()
    }

    /// Some GPU is withdrawn.
    pub fn any(&self) -> bool {
        !self.gpus.is_empty()
    }

    /// Nothing has to be kept for the node.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty() && self.ended.is_empty() && self.problem.is_none()
    }
}

fn problem(invalid: &[&str]) -> Option<String> {
    let short = |entry: &&str| entry.chars().take(LONGEST_ENTRY).collect::<String>();
    let named: Vec<String> = invalid.iter().take(MOST_NAMED).map(|entry| format!("`{}`", short(entry))).collect();
    let more = invalid.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!invalid.is_empty()).then(|| {
        format!(
            "entries {}{more} of the annotation {WITHDRAWN_GPUS} are no UUID of a GPU of this node and withdraw nothing: write UUIDs as status.gpus of its GpuNode has them, or remove the entries",
            named.join(", ")
        )
    })
}
