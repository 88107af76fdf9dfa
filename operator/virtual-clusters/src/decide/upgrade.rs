//! Which version of vCluster runs while a raised `spec.virtualCluster.version` has not been ready yet. Pure; only for the backend `Helm`.
//!
//! The new control plane has [`DEADLINE`] from the application of its objects. After that the version that ran before is rendered again, until
//! chart or values of the new one change. A control plane that was ready once is never taken back.

use gputenancy_crds::VirtualClusterUpgrade;
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    args::{Chart, Charts},
    hex::hex,
    render::{RenderError, version},
};

/// Time for the pull of images, the migration of data and the start.
pub const DEADLINE: SignedDuration = SignedDuration::from_mins(10);

/// What a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The supported versions.
    pub charts: &'a Charts,
    /// `spec.virtualCluster.version`.
    pub wanted: &'a str,
    /// All values of the chart.
    pub values: &'a Value,
    /// The version of the workload.
    pub running: Option<&'a str>,
    /// The last applied version, where there is no workload.
    pub reported: Option<&'a str>,
    /// The workload's control plane is ready, or was.
    pub ready: bool,
    /// What the control plane waits for.
    pub why: &'a str,
    /// The time.
    pub now: Timestamp,
}

/// The upgrade after this observation; `None`: the wanted version runs, or is the first one.
pub fn next(
    old: Option<&VirtualClusterUpgrade>,
    observed: &Observed<'_>,
) -> Result<Option<VirtualClusterUpgrade>, RenderError> {
    let runs = |version: &str| observed.running == Some(version);
    let old = old.filter(|upgrade| !(observed.ready && runs(&upgrade.to)));
    // what has never been ready does not count as running: the version may be set back
    let base = old.map(|upgrade| upgrade.from.as_str()).or(observed.running).or(observed.reported);
    let chart = version::choose(observed.charts, observed.wanted, base)?;
    let Some(base) = base else { return Ok(None) };
    if observed.wanted == base {
        return Ok(old.filter(|_| !runs(base)).cloned());
    }
    let fingerprint = fingerprint(chart, observed.values);
    let same = old.filter(|upgrade| upgrade.to == observed.wanted && upgrade.fingerprint == fingerprint);
    let mut upgrade = same.cloned().unwrap_or_else(|| VirtualClusterUpgrade {
        from: base.into(),
        to: observed.wanted.into(),
        fingerprint,
        ..VirtualClusterUpgrade::default()
    });
    if upgrade.failed.is_some() {
        return Ok(Some(upgrade));
    }
    // it loses no time while its objects are refused; a time in the future is not of this program
    upgrade.since = upgrade
        .since
        .filter(|since| runs(&upgrade.to) && since.0 <= observed.now)
        .or_else(|| runs(&upgrade.to).then_some(Time(observed.now)));
    let late = upgrade.since.as_ref().is_some_and(|since| observed.now.duration_since(since.0) > DEADLINE);
    if late && observed.charts.0.contains_key(&upgrade.from) {
        upgrade.failed = Some(Time(observed.now));
        upgrade.message = Some(observed.why.into());
    }
    Ok(Some(upgrade))
}

/// The version of the workload: what its label says where this program may have applied that version since it reported another one, and
/// otherwise the last reported one. Owners can change the label, and a change is repaired like any other. Pure.
pub fn running<'a>(
    label: Option<&'a str>,
    reported: Option<&'a str>,
    upgrade: Option<&'a VirtualClusterUpgrade>,
) -> Option<&'a str> {
    let label = label?;
    let applied =
        |upgrade: &VirtualClusterUpgrade| label == upgrade.from || (label == upgrade.to && upgrade.failed.is_none());
    Some(reported.filter(|_| !upgrade.is_some_and(applied)).unwrap_or(label))
}

/// The version to render.
pub fn version<'a>(upgrade: Option<&'a VirtualClusterUpgrade>, wanted: &'a str) -> &'a str {
    failed(upgrade).map_or(wanted, |upgrade| &upgrade.from)
}

/// The upgrade, if it has failed.
pub fn failed(upgrade: Option<&VirtualClusterUpgrade>) -> Option<&VirtualClusterUpgrade> {
    upgrade.filter(|upgrade| upgrade.failed.is_some())
}

/// What an event says when a new upgrade begins, before anything of it is applied; `None`: it has begun before.
pub fn advice(
    old: Option<&VirtualClusterUpgrade>,
    new: Option<&VirtualClusterUpgrade>,
    tenant: &str,
    namespace: &str,
) -> Option<String> {
    let begun = |new: &&VirtualClusterUpgrade| {
        old.is_some_and(|old| (&old.to, &old.fingerprint) == (&new.to, &new.fingerprint))
    };
    let VirtualClusterUpgrade { from, to, .. } = new.filter(|new| new.failed.is_none() && !begun(new))?;
    Some(format!(
        "vCluster {from} is upgraded to {to}; the start migrates the control plane's data. Without a recent snapshot set \
         spec.virtualCluster.version back to {from}, run vcluster snapshot create {tenant} oci://REGISTRY/REPO:TAG -n {namespace}, and raise the \
         version again"
    ))
}

/// State and remedy of a failed upgrade.
pub fn message(VirtualClusterUpgrade { from, to, message, .. }: &VirtualClusterUpgrade) -> String {
    let why = message.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
    format!(
        "the control plane of vCluster {to} was not ready within {} minutes{why}: the objects of {from} are applied again, with the present values and on the same volume. \
         Set spec.virtualCluster.version to {from}; or correct the cause and change spec.virtualCluster.values or version, and {to} is tried again. \
         If {from} does not start, restore a snapshot",
        DEADLINE.as_mins()
    )
}

/// Differs for other objects of the same tenant.
fn fingerprint(chart: &Chart, values: &Value) -> String {
    let digest = Sha256::digest(format!("{} {values}", chart.sha256));
    hex(digest.get(..8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BEGIN: &str = "2026-01-01T00:00:00Z";

    fn charts(versions: &[&str]) -> Charts {
        let chart = |v: &&str| {
            (
                (*v).to_owned(),
                Chart { version: (*v).into(), file: "/c.tgz".into(), sha256: format!("sum of {v}"), url: None },
            )
        };
        Charts(versions.iter().map(chart).collect())
    }

    /// A virtual cluster with an upgrade, observed again and again.
    struct World {
        charts: Charts,
        wanted: &'static str,
        values: Value,
        running: &'static str,
        ready: bool,
        now: Timestamp,
        upgrade: Option<VirtualClusterUpgrade>,
    }

    impl World {
        /// 0.35.3 runs, and 0.36.1 is wanted.
        fn raised() -> Self {
            Self {
                charts: charts(&["0.35.3", "0.35.4", "0.36.1", "0.36.2", "0.37.0"]),
                wanted: "0.36.1",
                values: json!({}),
                running: "0.35.3",
                ready: true,
                now: BEGIN.parse().unwrap(),
                upgrade: None,
            }
        }

        /// One reconcile after this time; what it renders is applied at once, and is not ready.
        fn reconcile(&mut self, minutes: i64) -> Result<String, RenderError> {
            self.now += SignedDuration::from_mins(minutes);
            let observed = Observed {
                charts: &self.charts,
                wanted: self.wanted,
                values: &self.values,
                running: Some(self.running),
                reported: None,
                ready: self.ready,
                why: "pod team-a-0: ImagePullBackOff",
                now: self.now,
            };
            self.upgrade = next(self.upgrade.as_ref(), &observed)?;
            let rendered = version(self.upgrade.as_ref(), self.wanted).to_owned();
            self.ready &= rendered == self.running;
            self.running = self.charts.0.keys().find(|v| **v == rendered).map(|v| v.clone().leak()).unwrap();
            Ok(rendered)
        }

        /// The versions that reconciles after these times render.
        fn reconciles(&mut self, minutes: &[i64]) -> Vec<String> {
            minutes.iter().map(|m| self.reconcile(*m).unwrap()).collect()
        }
    }

    #[test]
    fn each_new_upgrade_advises_a_snapshot_once() {
        let mut world = World::raised();
        let mut pass = |minutes, values: Value| {
            let old = world.upgrade.clone();
            world.values = values;
            world.reconcile(minutes).unwrap();
            advice(old.as_ref(), world.upgrade.as_ref(), "team-a", "ns-a")
        };
        let text = pass(0, json!({})).unwrap();
        assert!(text.starts_with("vCluster 0.35.3 is upgraded to 0.36.1; the start migrates"), "{text}");
        assert!(text.contains("vcluster snapshot create team-a oci://REGISTRY/REPO:TAG -n ns-a"), "{text}");
        // in progress, and failed
        assert_eq!([1, 9, 2, 1].map(|minutes| pass(minutes, json!({}))), [const { None }; 4]);
        assert!(pass(1, json!({"a": 1})).is_some(), "it is tried again with other values");
    }

    #[test]
    fn late_control_plane_is_taken_back_and_not_tried_again() {
        let mut world = World::raised();
        assert_eq!(
            world.reconciles(&[0, 1, 9, 2, 1, 60]),
            ["0.36.1", "0.36.1", "0.36.1", "0.35.3", "0.35.3", "0.35.3"]
        );
        let upgrade = failed(world.upgrade.as_ref()).unwrap();
        assert_eq!((upgrade.from.as_str(), upgrade.to.as_str()), ("0.35.3", "0.36.1"));
        let text = message(upgrade);
        let begin =
            "the control plane of vCluster 0.36.1 was not ready within 10 minutes (pod team-a-0: ImagePullBackOff)";
        assert!(text.starts_with(begin) && text.contains("Set spec.virtualCluster.version to 0.35.3"), "{text}");
    }

    #[test]
    fn begin_in_the_future_does_not_put_off_the_deadline() {
        let mut world = World::raised();
        world.reconciles(&[0, 1]);
        world.upgrade.as_mut().unwrap().since = Some(Time(world.now + SignedDuration::from_hours(9)));
        assert_eq!(world.reconciles(&[1, 9, 2]), ["0.36.1", "0.36.1", "0.35.3"]);
    }

    #[test]
    fn label_counts_only_for_a_version_that_may_have_been_applied() {
        let mut upgrade =
            VirtualClusterUpgrade { from: "0.35.3".into(), to: "0.36.1".into(), ..VirtualClusterUpgrade::default() };
        assert_eq!(running(Some("9.0.0"), Some("0.36.1"), None), Some("0.36.1"));
        assert_eq!(running(Some("9.0.0"), None, None), Some("9.0.0"), "nothing else is known, as of a restored tenant");
        assert_eq!(running(None, Some("0.36.1"), None), None, "there is no workload");
        assert_eq!(running(Some("9.0.0"), Some("0.35.3"), Some(&upgrade)), Some("0.35.3"));
        // applied, and the program ended before it reported that
        assert_eq!(running(Some("0.36.1"), Some("0.35.3"), Some(&upgrade)), Some("0.36.1"));
        assert_eq!(running(Some("0.35.3"), Some("0.36.1"), Some(&upgrade)), Some("0.35.3"));
        upgrade.failed = Some(Time(BEGIN.parse().unwrap()));
        assert_eq!(running(Some("0.36.1"), Some("0.35.3"), Some(&upgrade)), Some("0.35.3"), "it was taken back");
        assert_eq!(running(Some("0.36.1"), Some("0.36.1"), Some(&upgrade)), Some("0.36.1"), "and not yet applied");
    }

    #[test]
    fn time_before_the_objects_are_applied_does_not_count() {
        let mut world = World::raised();
        world.reconcile(0).unwrap();
        world.running = "0.35.3";
        assert_eq!(world.reconcile(60).unwrap(), "0.36.1");
        assert_eq!(world.upgrade.as_ref().unwrap().since, None, "a quota refused them");
        assert_eq!(world.reconciles(&[1, 9]), ["0.36.1", "0.36.1"]);
        assert_eq!(
            world.upgrade.as_ref().unwrap().since.as_ref().map(|t| t.0),
            Some(world.now - SignedDuration::from_mins(9))
        );
    }

    #[test]
    fn control_plane_that_was_ready_is_never_taken_back() {
        let mut world = World::raised();
        world.reconciles(&[0, 1]);
        world.ready = true;
        world.reconcile(1).unwrap();
        assert_eq!(world.upgrade, None);
        world.ready = false;
        assert_eq!(world.reconciles(&[60, 60]), ["0.36.1", "0.36.1"]);
        world.wanted = "0.35.3";
        assert!(world.reconcile(0).unwrap_err().to_string().contains("restore a snapshot"), "no way back for its data");
    }

    #[test]
    fn ready_control_plane_found_after_the_deadline_is_kept() {
        // the controller did not run meanwhile
        let mut world = World::raised();
        world.reconciles(&[0, 1]);
        world.ready = true;
        assert_eq!(world.reconcile(60).unwrap(), "0.36.1");
        assert_eq!(world.upgrade, None);
    }

    #[test]
    fn failed_upgrade_is_tried_again_after_a_change() {
        let failing = || {
            let mut world = World::raised();
            world.reconciles(&[0, 1, 11, 1]);
            assert!(failed(world.upgrade.as_ref()).is_some());
            world.ready = true;
            world
        };
        let mut values = failing();
        values.values = json!({"controlPlane": {}});
        assert_eq!(values.reconciles(&[1, 1, 9]), ["0.36.1", "0.36.1", "0.36.1"], "with a deadline of its own");
        let mut patch = failing();
        patch.wanted = "0.36.2";
        assert_eq!(patch.reconcile(1).unwrap(), "0.36.2");
        let mut again = failing();
        again.wanted = "0.35.3";
        assert_eq!((again.reconcile(1).unwrap().as_str(), again.upgrade.as_ref()), ("0.35.3", None));
        again.wanted = "0.36.1";
        assert_eq!(again.reconcile(1).unwrap(), "0.36.1");
        let mut skipping = failing();
        skipping.wanted = "0.37.0";
        assert!(skipping.reconcile(1).unwrap_err().to_string().contains("0.37.0 may not follow 0.35.3"));
        assert!(failed(skipping.upgrade.as_ref()).is_some(), "a refused version changes nothing");
    }

    #[test]
    fn version_can_be_set_back_before_the_deadline() {
        let mut world = World::raised();
        world.reconciles(&[0, 1]);
        world.wanted = "0.35.3";
        assert_eq!(world.reconciles(&[1, 1]), ["0.35.3", "0.35.3"]);
        assert_eq!(world.upgrade, None);
    }

    #[test]
    fn version_without_a_chart_is_not_returned_to() {
        let mut world = World::raised();
        world.charts = charts(&["0.36.1"]);
        assert_eq!(world.reconciles(&[0, 1, 60]), ["0.36.1", "0.36.1", "0.36.1"]);
        assert_eq!(failed(world.upgrade.as_ref()), None);
    }

    #[test]
    fn first_version_has_no_deadline() {
        let charts = charts(&["0.36.1"]);
        let (values, now) = (json!({}), BEGIN.parse().unwrap());
        let mut observed = Observed {
            charts: &charts,
            wanted: "0.36.1",
            values: &values,
            running: None,
            reported: None,
            ready: false,
            why: "",
            now,
        };
        assert_eq!(next(None, &observed).unwrap(), None);
        observed.running = Some("0.36.1");
        observed.now += SignedDuration::from_hours(1);
        assert_eq!(next(None, &observed).unwrap(), None);
        (observed.running, observed.reported) = (None, Some("0.35.3"));
        assert_eq!(
            next(None, &observed).unwrap().map(|u| u.from).as_deref(),
            Some("0.35.3"),
            "its workload was deleted"
        );
    }
}
