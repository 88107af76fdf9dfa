//! Since when nobody uses what may have to go. One look proves little: a process may be between two of its contexts. Only what
//! was seen without a client twice, with [`PROOF`] between, and at every look in between, is idle. Whether somebody could be
//! given it yet is another question: see [`Facts::taken`](super::step::Facts).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::gpu::SeenGpu;

/// Time between the two looks.
pub const PROOF: Duration = Duration::from_secs(1);

/// When each GPU (`None`) and each of its GPU instances was first seen unused, without a look since that saw it used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idleness(BTreeMap<(String, Option<u32>), Instant>);

impl Idleness {
    /// What is known after one more look, for which open files were searched as well. A GPU that did not answer was not seen.
    #[must_use]
    pub fn after(&self, gpus: &[SeenGpu], now: Instant) -> Self {
        let mut unused = BTreeMap::new();
        for gpu in gpus.iter().filter(|gpu| gpu.trouble.is_none()) {
            let mut note = |gi: Option<u32>| {
                let place = (gpu.uuid.clone(), gi);
                let since = self.0.get(&place).copied().unwrap_or(now);
                unused.insert(place, since);
            };
            for seen in &gpu.instances {
                if gpu.clients_of(seen.gi).next().is_none() {
                    note(Some(seen.gi));
                }
            }
            if gpu.clients.is_empty() {
                note(None);
            }
        }
        Self(unused)
    }

    /// Something else saw this GPU used.
    pub fn forget(&mut self, uuid: &str) {
        self.0.retain(|(of, _), _| of != uuid);
    }

    /// Was this GPU, or GPU instance, seen unused for so long?
    pub fn lasted(&self, uuid: &str, gi: Option<u32>, proof: Duration, now: Instant) -> bool {
        let since = self.0.get(&(uuid.to_owned(), gi));
        since.is_some_and(|since| now.saturating_duration_since(*since) >= proof)
    }

    /// How long until the first that is not idle yet may be, when no look sees it used.
    pub fn until(&self, proof: Duration, now: Instant) -> Option<Duration> {
        let left = self.0.values().map(|since| (*since + proof).saturating_duration_since(now));
        left.filter(|left| !left.is_zero()).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::carve::tests::model::{board, client, gpu, instance};

    /// What one look saw: milliseconds since the look before, and whether the instance was used, did not answer.
    type Look = (u64, bool, bool);

    fn seen((_, used, mute): Look) -> SeenGpu {
        let mut gpu = gpu(true, false);
        gpu.instances = vec![instance(7, &board(false).profiles[3], 0, true)];
        gpu.clients = used.then(|| client(Some(7))).into_iter().collect();
        gpu.trouble = mute.then(|| gputenancy_nvml::NvmlFailure { call: "x", code: 15, message: String::new() });
        gpu
    }

    fn look() -> impl Strategy<Value = Look> {
        let rarely = || proptest::bool::weighted(0.1);
        (0_u64..700, rarely(), rarely())
    }

    proptest! {
        #[test]
        fn idle_is_what_every_look_of_at_least_a_second_saw_unused(looks in proptest::collection::vec(look(), 1..12)) {
            let mut now = Instant::now();
            let mut idle = Idleness::default();
            let mut unused_for: Option<u64> = None;
            for look in looks {
                let (pause, used, mute) = look;
                now += Duration::from_millis(pause);
                idle = idle.after(&[seen(look)], now);
                unused_for = (!used && !mute).then(|| unused_for.map_or(0, |time| time + pause));
                let proven = unused_for.is_some_and(|time| time >= 1000);
                prop_assert_eq!(idle.lasted(&seen(look).uuid, Some(7), PROOF, now), proven);
                let left = unused_for.filter(|time| *time < 1000).map(|time| Duration::from_millis(1000 - time));
                prop_assert_eq!(idle.until(PROOF, now), left);
            }
        }
    }

    #[test]
    fn an_instance_that_came_and_went_between_is_another_one() {
        let now = Instant::now();
        let mut idle = Idleness::default().after(&[seen((0, false, false))], now);
        let later = now + PROOF;
        assert!(idle.lasted("GPU-a", Some(7), PROOF, later));
        let mut empty = seen((0, false, false));
        empty.instances.clear();
        idle = idle.after(&[empty], now).after(&[seen((0, false, false))], later);
        assert!(!idle.lasted("GPU-a", Some(7), PROOF, later));
        idle.forget("GPU-a");
        assert_eq!(idle, Idleness::default());
    }
}
