//! Which faults make a GPU unfit for new work.

use std::collections::BTreeMap;

use gputenancy_crds::Health;
use gputenancy_nvml::{Event, EventKind};

/// Xid errors that a program causes by itself; the GPU is as good as before.
const FAULTS_OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Does this fault condemn the GPU until it is reset?
pub fn condemns(kind: EventKind) -> bool {
    match kind {
        EventKind::Xid(number) => !FAULTS_OF_PROGRAMS.contains(&number),
        EventKind::UncorrectableEcc => true,
    }
}

/// GPUs that reported a fault, by UUID, with the fault in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condemned(BTreeMap<String, String>);

impl Condemned {
    /// Takes note of a fault. One whose GPU cannot be told any more condemns all: `every`.
    pub fn note(&mut self, event: &Event, every: &[String]) {
        if !condemns(event.kind) {
            return;
        }
        let fault = match event.kind {
            EventKind::Xid(number) => format!("Xid {number}"),
            EventKind::UncorrectableEcc => "uncorrectable ECC error".to_owned(),
        };
        let uuids = event.uuid.as_ref().map_or(every, std::slice::from_ref);
        for uuid in uuids {
            tracing::warn!(gpu = uuid, fault, "the GPU takes no new work until it is reset");
            self.0.insert(uuid.clone(), fault.clone());
        }
    }

    /// The GPU was reset.
    pub fn pardon(&mut self, uuid: &str) {
        self.0.remove(uuid);
    }

    /// The driver was loaded anew, which resets everything.
    pub fn pardon_all(&mut self) {
        self.0.clear();
    }

    /// Health of a GPU that answers.
    pub fn health(&self, uuid: &str) -> Health {
        if self.0.contains_key(uuid) { Health::Unhealthy } else { Health::Healthy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_own_fault_condemns_nothing() {
        assert!(!condemns(EventKind::Xid(31)));
        assert!(condemns(EventKind::Xid(79)));
        assert!(condemns(EventKind::UncorrectableEcc));
    }

    #[test]
    fn a_fault_of_an_unknown_gpu_condemns_all_until_reset() {
        let mut condemned = Condemned::default();
        let every = ["GPU-a".to_owned(), "GPU-b".to_owned()];
        condemned.note(&Event { uuid: None, kind: EventKind::Xid(79) }, &every);
        condemned.pardon("GPU-a");
        assert_eq!(condemned.health("GPU-a"), Health::Healthy);
        assert_eq!(condemned.health("GPU-b"), Health::Unhealthy);
    }
}
