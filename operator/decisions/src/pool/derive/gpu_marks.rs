//! Single GPUs that others have withdrawn, by the annotation `gputenancy.io/withdrawn-gpus` of their Node.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use gputenancy_crds::names::{CLEARED_FAULTS, WITHDRAWN_GPUS};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    fleet::Fleet,
    verdict::{Settled, cleared_faults, settle, withdrawn_gpus},
};

/// Most invalid entries of an annotation that a message names.
const MOST_NAMED: usize = 4;

/// Most characters of an invalid entry that a message has.
const LONGEST_ENTRY: usize = 96;

/// Verdicts of others on the GPUs of one node.
#[derive(Clone, Debug, Default)]
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
    #[must_use]
    pub fn update(mut self, fleet: &Fleet, name: &str, now: Timestamp) -> Self {
        let mut found = fleet.nodes.get(name).map(|node| withdrawn_gpus(node)).unwrap_or_default();
        let elsewhere = absent(fleet, name, found.gpus.keys().copied());
        found.gpus.retain(|uuid, _| !elsewhere.contains(uuid));
        found.malformed.extend(elsewhere);
        let mut cleared = fleet.nodes.get(name).map(|node| cleared_faults(node, now)).unwrap_or_default();
        cleared.malformed.extend(absent(fleet, name, cleared.gpus.keys().copied()));
        let problems = [problem(&WITHDRAWN, &found.malformed), problem(&CLEARED, &cleared.malformed)];
        let problem = problems.into_iter().flatten().reduce(|first, second| format!("{first}; {second}"));
        if found.gpus.is_empty() && problem.is_none() && self.gpus.is_empty() {
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
        // of GPUs that the node has lost nothing is remembered
        let lost = absent(fleet, name, self.ended.keys().map(String::as_str));
        let lost: BTreeSet<String> = lost.into_iter().map(str::to_owned).collect();
        self.ended.retain(|uuid, _| !lost.contains(uuid));
        self.problem = problem;
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
            Some(match gpu.ends(self.clear_after) {
                Some(ends) => {
                    let was = why.replacen(" is withdrawn ", " was withdrawn ", 1);
                    format!("{was}; it takes new pods again at {ends} (spec.health.clearAfter)")
                }
                None => why.clone(),
            })
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

/// Of these UUIDs those that are no GPU of the node. An agent that has reported no GPU yet says nothing about them.
fn absent<'u>(fleet: &Fleet, name: &str, uuids: impl Iterator<Item = &'u str>) -> Vec<&'u str> {
    let Some(node) = fleet.gpu_nodes.get(name) else { return Vec::new() };
    let listed = || node.status.iter().flat_map(|status| &status.gpus).map(|gpu| gpu.uuid.as_str());
    if listed().next().is_none() {
        return Vec::new();
    }
    let known: BTreeSet<&str> = listed().chain(node.spec.gpus.iter().map(|gpu| gpu.uuid.as_str())).collect();
    uuids.filter(|uuid| !known.contains(uuid)).collect()
}

/// An annotation of a Node, what entries that are not understood do not do, and the remedy.
struct Annotation {
    name: &'static str,
    fault: &'static str,
    remedy: &'static str,
}

const WITHDRAWN: Annotation = Annotation {
    name: WITHDRAWN_GPUS,
    fault: "are no UUID of a GPU of this node and withdraw nothing",
    remedy: "write UUIDs as status.gpus of its GpuNode has them, or remove the entries",
};

const CLEARED: Annotation = Annotation {
    name: CLEARED_FAULTS,
    fault: "are no GPU of this node with a time that has come, and clear nothing",
    remedy: "write UUID=time, such as GPU-5f0c…=2026-11-29T10:00:00Z, with UUIDs as status.gpus of its GpuNode has them, or remove the entries",
};

/// What is wrong with an annotation.
fn problem(annotation: &Annotation, invalid: &[&str]) -> Option<String> {
    let Annotation { name, fault, remedy } = annotation;
    let short = |entry: &&str| {
        let cut = if entry.chars().count() > LONGEST_ENTRY { "…" } else { "" };
        format!("{}{cut}", entry.chars().take(LONGEST_ENTRY).collect::<String>())
    };
    let named: Vec<String> = invalid.iter().take(MOST_NAMED).map(|entry| format!("`{}`", short(entry))).collect();
    let more = invalid.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let entries = named.join(", ");
    (!invalid.is_empty()).then(|| format!("entries {entries}{more} of the annotation {name} {fault}: {remedy}"))
}
