//! Faults of GPUs that a person has cleared: the annotation `gputenancy.io/cleared-faults` of a Node.

use std::collections::BTreeMap;

use gputenancy_crds::{FaultFinding, FaultVerdict, GpuSpec, GpuState, names::CLEARED_FAULTS};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::gpus::is_uuid;
use gputenancy_crds::projection::SlimNode;

/// The faults that the annotation of a Node clears.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClearedFaults<'a> {
    /// By UUID the time until which faults count no more; the latest of several.
    pub gpus: BTreeMap<&'a str, Timestamp>,
    /// Entries that are not understood, as they are written. They clear nothing.
    pub malformed: Vec<&'a str>,
}

/// How far a time may be ahead of the operator's clock: faults so close together are one.
const AHEAD: SignedDuration = SignedDuration::from_secs(30);

/// The faults that a person has cleared on this node: entries `UUID=time`, comma separated. A time that has not come would clear faults that
/// are still to come, and clears nothing.
pub fn cleared_faults(node: &SlimNode, now: Timestamp) -> ClearedFaults<'_> {
    node.annotations().get(CLEARED_FAULTS).map_or_else(ClearedFaults::default, |text| read(text, now))
}

fn read(text: &str, now: Timestamp) -> ClearedFaults<'_> {
    let mut found = ClearedFaults::default();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let parsed = entry.split_once('=').and_then(|(uuid, time)| {
            let time = time.trim().parse::<Timestamp>().ok()?;
            let has_come = time.duration_since(now) <= AHEAD;
            (has_come && is_uuid(uuid.trim())).then_some((uuid.trim(), time))
        });
        match parsed {
            Some((uuid, time)) => {
                let latest = found.gpus.entry(uuid).or_insert(time);
                *latest = time.max(*latest);
            }
            None => found.malformed.push(entry),
        }
    }
    found
}

impl ClearedFaults<'_> {
    /// The verdict on the faults of a GPU: this person's if it is about the latest one, else the present one for as long as the agent reports
    /// faults.
    pub fn verdict(&self, spec: &GpuSpec, state: Option<&GpuState>) -> Option<FaultVerdict> {
        let present = spec.fault_verdict.clone();
        let Some(state) = state else { return present };
        let latest = state.recovery.as_ref()?.latest()?;
        let said = |verdict: &FaultVerdict| verdict.finding == FaultFinding::ClearedByPerson && verdict.covers(latest);
        let by_person = self.gpus.get(spec.uuid.as_str()).is_some_and(|until| *until >= latest.0);
        // also after a canary pod has passed: what a person clears does not count among the faults of 24 hours
        if by_person && !present.as_ref().is_some_and(said) {
            let reason = format!("the annotation {CLEARED_FAULTS} of the Node clears it");
            return Some(FaultVerdict { until: latest.clone(), finding: FaultFinding::ClearedByPerson, reason });
        }
        present
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::FaultRecovery;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn entries_have_a_uuid_and_a_time_and_the_latest_counts() {
        let found = read(
            "GPU-a=2026-11-29T10:00:00Z, GPU-b = 2026-11-29T10:00:00+01:00,GPU-a=2026-11-28T10:00:00Z, GPU-c, GPU-d=now, MIG-e=2026-11-29T10:00:00Z, =2026-11-29T10:00:00Z, GPU-a=2030-01-01T00:00:00Z",
            "2026-11-29T11:00:00Z".parse().unwrap(),
        );
        let times: Vec<(&str, String)> = found.gpus.iter().map(|(uuid, at)| (*uuid, at.to_string())).collect();
        let expected = [("GPU-a", "2026-11-29T10:00:00Z"), ("GPU-b", "2026-11-29T09:00:00Z")];
        assert_eq!(times, expected.map(|(uuid, at)| (uuid, at.to_owned())));
        assert_eq!(
            found.malformed,
            ["GPU-c", "GPU-d=now", "MIG-e=2026-11-29T10:00:00Z", "=2026-11-29T10:00:00Z", "GPU-a=2030-01-01T00:00:00Z"]
        );
        assert_eq!(read(" , ", at(0)), ClearedFaults::default());
    }

    #[test]
    fn person_clears_the_faults_until_the_time_and_no_later_one() {
        let cleared = |until: i64| ClearedFaults { gpus: BTreeMap::from([("GPU-a", at(until))]), malformed: vec![] };
        let spec = GpuSpec { uuid: "GPU-a".into(), ..GpuSpec::default() };
        let recovery = Some(FaultRecovery { faults: vec![Time(at(0)), Time(at(100))], ..FaultRecovery::default() });
        let state = GpuState { uuid: "GPU-a".into(), recovery, ..GpuState::default() };
        assert_eq!(cleared(99).verdict(&spec, Some(&state)), None);
        let verdict = cleared(100).verdict(&spec, Some(&state)).unwrap();
        assert_eq!((verdict.finding, &verdict.until), (FaultFinding::ClearedByPerson, &Time(at(100))));
        let failed = FaultVerdict { finding: FaultFinding::CanaryFailed, reason: "canary".into(), ..verdict.clone() };
        let spec = GpuSpec { fault_verdict: Some(failed.clone()), ..spec };
        assert_eq!(cleared(99).verdict(&spec, Some(&state)), Some(failed.clone()), "the canary's word stays");
        assert_eq!(cleared(200).verdict(&spec, Some(&state)), Some(verdict.clone()), "a person has the last word");
        let passed = FaultVerdict { finding: FaultFinding::CanaryPassed, reason: "canary".into(), ..verdict };
        let spec = GpuSpec { fault_verdict: Some(passed), ..spec };
        let said = cleared(200).verdict(&spec, Some(&state));
        assert_eq!(said.as_ref().map(|verdict| verdict.finding), Some(FaultFinding::ClearedByPerson));
        let spec = GpuSpec { fault_verdict: said.clone(), ..spec };
        assert_eq!(cleared(300).verdict(&spec, Some(&state)), said, "nothing is written again");
        let over = GpuState { uuid: "GPU-a".into(), ..GpuState::default() };
        assert_eq!(cleared(200).verdict(&spec, Some(&over)), None, "the agent remembers no fault");
        assert!(cleared(200).verdict(&spec, None).is_some(), "the agent has not reported");
    }
}
