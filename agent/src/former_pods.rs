//! Pods of this node that the API server has deleted. kubelet names a pod by namespace and name only, which the next pod of a `StatefulSet`
//! has again; the cgroup of a process has the UID of its pod, by which the two differ.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

/// So many deleted pods are remembered.
const MOST: usize = 4096;

/// UIDs of pods; clones share them.
#[derive(Clone, Debug, Default)]
pub struct FormerPods(Arc<Mutex<Pods>>);

#[derive(Debug, Default)]
struct Pods {
    present: BTreeSet<String>,
    /// Oldest first.
    deleted: VecDeque<String>,
}

impl Pods {
    fn delete(&mut self, uid: String) {
        if self.deleted.len() == MOST {
            self.deleted.pop_front();
        }
        self.deleted.push_back(uid);
    }
}

impl FormerPods {
    /// A pod exists.
    pub fn exists(&self, uid: &str) {
        self.lock().present.insert(uid.to_owned());
    }

    /// A pod was deleted.
    pub fn deleted(&self, uid: &str) {
        let mut pods = self.lock();
        if pods.present.remove(uid) {
            pods.delete(uid.to_owned());
        }
    }

    /// These are all pods: the others were deleted while nothing was watched.
    pub fn are(&self, uids: BTreeSet<String>) {
        let mut pods = self.lock();
        let before = std::mem::replace(&mut pods.present, uids);
        let gone: Vec<String> = before.difference(&pods.present).cloned().collect();
        for uid in gone {
            pods.delete(uid);
        }
    }

    /// Whether a pod was deleted. A pod that this program has never seen is not.
    pub fn is_former(&self, uid: &str) -> bool {
        self.lock().deleted.iter().any(|deleted| deleted == uid)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pods> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_that_were_seen_and_are_gone_are_former() {
        let pods = FormerPods::default();
        pods.exists("a");
        pods.deleted("a");
        pods.deleted("never seen");
        pods.exists("b");
        pods.exists("c");
        pods.are(["c".to_owned()].into());
        let former = ["a", "b", "c", "never seen"].map(|uid| pods.is_former(uid));
        assert_eq!(former, [true, true, false, false]);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let pods = FormerPods::default();
        for uid in 0..=MOST {
            pods.exists(&uid.to_string());
            pods.deleted(&uid.to_string());
        }
        assert!(!pods.is_former("0") && pods.is_former("1"));
    }
}
