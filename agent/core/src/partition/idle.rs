//! Proof that an instance is unused. A process may be between two contexts, so one scan proves little: an instance is idle only if all
//! scans over at least [`PROOF`] found no client. Whether kubelet can still allocate it is another question, see
//! [`DecisionInput::allocatable`](super::decide::DecisionInput).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::gpu::ObservedGpu;

/// How long an instance must be unused.
pub const PROOF: Duration = Duration::from_secs(1);

/// Since when each GPU (`None`) and each of its GPU instances is unused in all scans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idleness(BTreeMap<(String, Option<u32>), Instant>);

impl Idleness {
    /// The state after one more scan with open files. A GPU that did not answer is not idle.
    #[must_use]
    pub fn after(&self, gpus: &[ObservedGpu], now: Instant) -> Self {
        let mut idle = BTreeMap::new();
        for gpu in gpus.iter().filter(|gpu| gpu.failure.is_none()) {
            let unused = gpu.instances.iter().map(|instance| instance.gi);
            let unused = unused.filter(|gi| gpu.clients_of(*gi).next().is_none()).map(Some);
            for gi in unused.chain(gpu.clients.is_empty().then_some(None)) {
                let key = (gpu.uuid.clone(), gi);
                let since = self.0.get(&key).copied().unwrap_or(now);
                idle.insert(key, since);
            }
        }
        Self(idle)
    }

    /// The GPU was found in use by other means.
    pub fn forget(&mut self, uuid: &str) {
        self.0.retain(|(of, _), _| of != uuid);
    }

    /// The GPU, or GPU instance, has been unused for `proof`.
    pub fn lasted(&self, uuid: &str, gi: Option<u32>, proof: Duration, now: Instant) -> bool {
        let since = self.0.get(&(uuid.to_owned(), gi));
        since.is_some_and(|since| now.saturating_duration_since(*since) >= proof)
    }

    /// Time until the next proof can be complete.
    pub fn until(&self, proof: Duration, now: Instant) -> Option<Duration> {
        let left = self.0.values().map(|since| (*since + proof).saturating_duration_since(now));
        left.filter(|left| !left.is_zero()).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::partition::tests::model::{board, client, gpu, instance};

    /// One scan: milliseconds since the scan before, the instance was used, the GPU did not answer.
    type Sample = (u64, bool, bool);

    fn observed((_, used, failed): Sample) -> ObservedGpu {
        let mut gpu = gpu(true, false);
        gpu.instances = vec![instance(7, &board(false).profiles[3], 0, true)];
        gpu.clients = used.then(|| client(Some(7))).into_iter().collect();
        gpu.failure = failed.then(|| crate::nvml::NvmlFailure { call: "x", code: 15, message: String::new() });
        gpu
    }

    fn sample() -> impl Strategy<Value = Sample> {
        let rarely = || proptest::bool::weighted(0.1);
        (0_u64..700, rarely(), rarely())
    }

    proptest! {
        #[test]
        fn idle_after_all_scans_of_a_second_found_no_client(samples in proptest::collection::vec(sample(), 1..12)) {
            let mut now = Instant::now();
            let mut idle = Idleness::default();
            let mut unused_for: Option<u64> = None;
            for sample in samples {
                let (pause, used, failed) = sample;
                now += Duration::from_millis(pause);
                idle = idle.after(&[observed(sample)], now);
                unused_for = (!used && !failed).then(|| unused_for.map_or(0, |time| time + pause));
                let proven = unused_for.is_some_and(|time| time >= 1000);
                prop_assert_eq!(idle.lasted(&observed(sample).uuid, Some(7), PROOF, now), proven);
                let left = unused_for.filter(|time| *time < 1000).map(|time| Duration::from_millis(1000 - time));
                prop_assert_eq!(idle.until(PROOF, now), left);
            }
        }
    }

    #[test]
    fn idle_starts_again_for_an_instance_that_was_created_again() {
        let now = Instant::now();
        let mut idle = Idleness::default().after(&[observed((0, false, false))], now);
        let later = now + PROOF;
        assert!(idle.lasted("GPU-a", Some(7), PROOF, later));
        let mut empty = observed((0, false, false));
        empty.instances.clear();
        idle = idle.after(&[empty], now).after(&[observed((0, false, false))], later);
        assert!(!idle.lasted("GPU-a", Some(7), PROOF, later));
        idle.forget("GPU-a");
        assert_eq!(idle, Idleness::default());
    }
}
