//! Pods of this node by UID: those that exist, and those that the API server has deleted. kubelet names a pod by namespace and name only,
//! which the next pod of a `StatefulSet` has again; the cgroup of a process has the UID of its pod, by which the two differ.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

pub use gputenancy_agent_core::pod::{PodName, pod_name};

/// So many deleted pods are remembered.
const MOST: usize = 4096;

/// UIDs of pods; clones share them.
#[derive(Clone, Debug, Default)]
pub struct SeenPods(Arc<Mutex<Pods>>);

#[derive(Debug, Default)]
struct Pods {
    present: BTreeMap<String, PodName>,
    /// Oldest first.
    deleted: VecDeque<(String, PodName)>,
}

/// A pod as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPod {
    /// Namespace and name.
    pub name: PodName,
    /// The API server has deleted it.
    pub deleted: bool,
}

impl Pods {
    fn delete(&mut self, uid: String, name: PodName) {
        if self.deleted.len() == MOST {
            self.deleted.pop_front();
        }
        self.deleted.push_back((uid, name));
    }
}

impl SeenPods {
    /// A pod exists.
    pub fn exists(&self, uid: &str, name: PodName) {
        self.lock().present.insert(uid.to_owned(), name);
    }

    /// A pod was deleted.
    pub fn deleted(&self, uid: &str) {
        let mut pods = self.lock();
        if let Some((uid, name)) = pods.present.remove_entry(uid) {
            pods.delete(uid, name);
        }
    }

    /// These are all pods: the others were deleted while nothing was watched.
    pub fn are(&self, all: BTreeMap<String, PodName>) {
        let mut pods = self.lock();
        let mut before = std::mem::replace(&mut pods.present, all);
        before.retain(|uid, _| !pods.present.contains_key(uid));
        for (uid, name) in before {
            pods.delete(uid, name);
        }
    }

    /// The pod with this UID; `None`: this program has never seen it.
    pub fn seen(&self, uid: &str) -> Option<SeenPod> {
        let pods = self.lock();
        let present = pods.present.get(uid).map(|name| SeenPod { name: name.clone(), deleted: false });
        let deleted = || pods.deleted.iter().find(|(deleted, _)| deleted == uid);
        present.or_else(|| deleted().map(|(_, name)| SeenPod { name: name.clone(), deleted: true }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pods> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(uid: &str) -> PodName {
        ("n".to_owned(), format!("pod-{uid}"))
    }

    #[test]
    fn only_pods_that_were_seen_and_are_gone_are_former() {
        let pods = SeenPods::default();
        pods.exists("a", name("a"));
        pods.deleted("a");
        pods.deleted("never seen");
        pods.exists("b", name("b"));
        pods.exists("c", name("c"));
        pods.are([("c".to_owned(), name("c"))].into());
        let seen = |uid: &str, deleted| Some(SeenPod { name: name(uid), deleted });
        let found = ["a", "b", "c", "never seen"].map(|uid| pods.seen(uid));
        assert_eq!(found, [seen("a", true), seen("b", true), seen("c", false), None]);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let pods = SeenPods::default();
        for uid in 0..=MOST {
            pods.exists(&uid.to_string(), name(""));
            pods.deleted(&uid.to_string());
        }
        assert!(pods.seen("0").is_none() && pods.seen("1").is_some());
    }
}
