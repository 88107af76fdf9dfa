//! The report about a virtual cluster: conditions of `status.virtualCluster`. Pure.

use gputenancy_crds::{
    Reclaim, RefusedPods, VirtualClusterStatus, VirtualClusterUpgrade,
    condition::{ConditionUpdate, READY, merge},
    reasons::{self, Reason},
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

use super::{report::Report, upgrade};
use crate::{
    decide::ControlPlane,
    kubeconfig::Present,
    names::{self, KUBECONFIG_SECRET},
    render::RenderError,
};

const POLICY: &str = "PolicyReady";
const RENDERED: &str = "ChartRendered";
const CONTROL_PLANE: &str = "ControlPlaneReady";
const KUBECONFIG: &str = "KubeconfigReady";
const CAPACITY: &str = "CapacityShown";
const CATALOG: &str = "CatalogShown";
/// A control plane that is not ready for this long needs attention: its start takes 15 seconds, the pull of its images minutes.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// How far a pass has come; later steps are absent when an earlier one has failed.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The namespace has what limits and isolates the tenant, or what of it is missing.
    pub policy: Option<Result<(), String>>,
    /// The rendered version, or why there is none.
    pub rendered: Option<Result<String, RenderError>>,
    /// How far the adoption is, where it is not this program that applies the objects.
    pub adopted: Option<Report>,
    /// An error of the API server; all else is retried.
    pub failed: Option<String>,
    /// What the operator has not written yet.
    pub waits: Option<String>,
    /// State of the control plane.
    pub control_plane: Option<ControlPlane>,
    /// The kubeconfig.
    pub kubeconfig: Option<Result<Present, String>>,
    /// Number of nodes that show the budget.
    pub capacity: Option<Result<usize, String>>,
    /// The catalog and the `RuntimeClasses` inside.
    pub catalog: Option<CatalogState>,
    /// Pods inside that the quota refuses; `None`: they could not be read.
    pub refused: Option<Vec<RefusedPods>>,
}

/// What is known besides the progress.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Generation of the tenant.
    pub generation: Option<i64>,
    /// The tenant's namespace.
    pub namespace: &'a str,
    /// Address of the API server in the kubeconfig.
    pub server: &'a str,
    /// What becomes of the volumes when the virtual cluster is removed.
    pub reclaim: Reclaim,
    /// An upgrade that is in progress or has failed.
    pub upgrade: Option<&'a VirtualClusterUpgrade>,
    /// The time.
    pub now: Timestamp,
}

/// What is written of the catalog and the classes inside, with a note on what has no effect there.
pub type CatalogState = Result<Option<&'static str>, String>;

/// The status.
pub fn status(progress: &Progress, old: &VirtualClusterStatus, facts: &Facts<'_>) -> VirtualClusterStatus {
    let waits = |type_, first: &str| ConditionUpdate {
        type_,
        status: None,
        reason: reasons::VIRTUAL_CLUSTER_PENDING,
        message: format!("not checked: {first} must be True first"),
    };
    let parts = vec![
        progress.policy.as_ref().map_or_else(|| unread(progress), |p| policy(p, facts.namespace)),
        match &progress.policy {
            Some(Err(_)) => waits(RENDERED, POLICY),
            _ => rendered(progress, facts.upgrade),
        },
        progress
            .control_plane
            .as_ref()
            .map_or_else(|| waits(CONTROL_PLANE, RENDERED), |c| control_plane(c, old, facts.now)),
        progress.kubeconfig.as_ref().map_or_else(|| waits(KUBECONFIG, CONTROL_PLANE), kubeconfig),
        progress.capacity.as_ref().map_or_else(|| waits(CAPACITY, KUBECONFIG), capacity),
        // the last: an object that the team blocks inside hides no other step in Ready
        progress.catalog.as_ref().map_or_else(|| waits(CATALOG, KUBECONFIG), catalog),
    ];
    let mut updates = vec![overall(&parts, facts)];
    updates.extend(parts);
    let present = progress.kubeconfig.as_ref().and_then(|k| k.as_ref().ok());
    // a failed renewal does not end the token that is there
    let renewed = progress.kubeconfig.as_ref().is_some_and(Result::is_ok);
    let kept = old.kubeconfig_expires.clone().filter(|at| !renewed && at.0 > facts.now);
    let expires = present.map(|p| Time(p.expires)).or(kept);
    VirtualClusterStatus {
        observed_generation: facts.generation,
        backend: old.backend,
        version: progress.rendered.as_ref().and_then(|r| r.clone().ok()).or_else(|| old.version.clone()),
        namespace: Some(facts.namespace.into()),
        server: Some(facts.server.into()),
        kubeconfig_secret: expires.is_some().then(|| KUBECONFIG_SECRET.into()),
        kubeconfig_expires: expires,
        reclaim: Some(facts.reclaim),
        upgrade: facts.upgrade.cloned(),
        deleting_since: None,
        refused: refused(progress, old),
        conditions: merge(&old.conditions, updates, facts.generation, facts.now),
    }
}

/// The refused pods. What could not be read stays as it was; without a syncer no pod is refused.
fn refused(progress: &Progress, old: &VirtualClusterStatus) -> Vec<RefusedPods> {
    match (&progress.refused, &progress.control_plane) {
        (_, Some(ControlPlane::Paused)) => Vec::new(),
        (Some(refused), _) => refused.clone(),
        (None, _) => old.refused.clone(),
    }
}

/// The reason and message of `Ready`, and whether it is.
pub fn ready(status: &VirtualClusterStatus) -> Option<(Reason, String, bool)> {
    let ready = status.conditions.iter().find(|c| c.type_ == READY)?;
    Some((Reason::listed(&ready.reason)?, ready.message.clone(), ready.status == "True"))
}

fn overall(parts: &[ConditionUpdate], facts: &Facts<'_>) -> ConditionUpdate {
    match parts.iter().find(|p| p.status != Some(true)) {
        Some(first) => ConditionUpdate::no(READY, first.reason, first.message.clone()),
        None => ConditionUpdate::yes(READY, reasons::READY, format!("serves at {}", facts.server)),
    }
}

fn policy(state: &Result<(), String>, namespace: &str) -> ConditionUpdate {
    match state {
        Ok(()) => ConditionUpdate::yes(
            POLICY,
            reasons::GRANTED,
            format!("namespace {namespace} has grant, quotas and isolation of the tenant"),
        ),
        Err(missing) => ConditionUpdate::no(
            POLICY,
            reasons::APPLYING,
            format!(
                "waiting for {missing} in namespace {namespace}, which the operator writes; no object of the control plane is applied before. If \
                 this lasts, see PolicyReady and QuotaReady of the GpuTenant"
            ),
        ),
    }
}

/// The namespace could not be read. The reason is that of [`RENDERED`].
fn unread(progress: &Progress) -> ConditionUpdate {
    ConditionUpdate { type_: POLICY, status: None, ..rendered(progress, None) }
}

fn rendered(progress: &Progress, upgrade: Option<&VirtualClusterUpgrade>) -> ConditionUpdate {
    if let Some(waits) = &progress.waits {
        return ConditionUpdate::no(RENDERED, reasons::APPLYING, waits.clone());
    }
    if let Some(error) = &progress.failed {
        return ConditionUpdate::no(RENDERED, reasons::WRITE_FAILED, format!("{error}; retrying"));
    }
    if let Some(Report { done, reason, message, .. }) = &progress.adopted {
        return ConditionUpdate { type_: RENDERED, status: Some(*done), reason: *reason, message: message.clone() };
    }
    match (&progress.rendered, upgrade::failed(upgrade)) {
        (Some(Ok(_)), Some(upgrade)) => {
            ConditionUpdate::no(RENDERED, reasons::UPGRADE_FAILED, upgrade::message(upgrade))
        }
        (Some(Ok(version)), None) => ConditionUpdate::yes(
            RENDERED,
            reasons::OBJECTS_APPLIED,
            format!("the objects of vCluster {version} are applied"),
        ),
        (Some(Err(error)), _) => ConditionUpdate::no(RENDERED, error.reason(), error.to_string()),
        (None, _) => ConditionUpdate::no(RENDERED, reasons::APPLYING, "the objects are being rendered"),
    }
}

fn control_plane(state: &ControlPlane, old: &VirtualClusterStatus, now: Timestamp) -> ConditionUpdate {
    match state {
        ControlPlane::Ready => ConditionUpdate::yes(
            CONTROL_PLANE,
            reasons::CONTROL_PLANE_SERVES,
            "all replicas of the control plane are ready",
        ),
        // neither True nor False: the time of a pause is not time without a control plane
        ControlPlane::Paused => ConditionUpdate {
            type_: CONTROL_PLANE,
            status: None,
            reason: reasons::VIRTUAL_CLUSTER_PAUSED,
            message: "the control plane is stopped: set spec.virtualCluster.suspend to false; if it is false, vcluster pause has stopped it: run vcluster resume"
                .into(),
        },
        ControlPlane::Starting(why) => {
            let since = old.conditions.iter().find(|c| c.type_ == CONTROL_PLANE && c.status == "False");
            let late = since.is_some_and(|c| now.duration_since(c.last_transition_time.0) > PATIENCE);
            let reason = if late { reasons::CONTROL_PLANE_DOWN } else { reasons::CONTROL_PLANE_STARTING };
            ConditionUpdate::no(CONTROL_PLANE, reason, format!("the control plane is not ready: {why}"))
        }
    }
}

fn kubeconfig(state: &Result<Present, String>) -> ConditionUpdate {
    match state {
        Ok(_) => ConditionUpdate::yes(
            KUBECONFIG,
            reasons::KUBECONFIG_WRITTEN,
            format!("Secret {KUBECONFIG_SECRET} has a kubeconfig with a valid token, under the key config"),
        ),
        Err(error) => ConditionUpdate::no(KUBECONFIG, reasons::VIRTUAL_CLUSTER_UNREACHABLE, error.clone()),
    }
}

fn capacity(state: &Result<usize, String>) -> ConditionUpdate {
    match state {
        Ok(nodes) => ConditionUpdate::yes(
            CAPACITY,
            reasons::BUDGET_SHOWN,
            match nodes {
                0 => "no node inside yet: nodes appear with the first pod".to_owned(),
                _ => format!("the nodes inside ({nodes}) show the tenant's budget together"),
            },
        ),
        Err(error) => ConditionUpdate::no(CAPACITY, reasons::VIRTUAL_CLUSTER_UNREACHABLE, error.clone()),
    }
}

fn catalog(state: &CatalogState) -> ConditionUpdate {
    match state {
        Ok(note) => {
            let listed =
                format!("ConfigMap {}/{} inside lists the tenant's profiles", names::CATALOG_NAMESPACE, names::CATALOG);
            let message = note.map_or_else(|| listed.clone(), |note| format!("{listed}; {note}"));
            ConditionUpdate::yes(CATALOG, reasons::CATALOG_WRITTEN, message)
        }
        Err(error) => ConditionUpdate::no(CATALOG, reasons::CATALOG_NOT_WRITTEN, error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(now: &str) -> Facts<'static> {
        Facts {
            generation: Some(3),
            namespace: "ns-a",
            server: "https://team-a.ns-a.svc",
            reclaim: Reclaim::Retain,
            upgrade: None,
            now: now.parse().unwrap(),
        }
    }

    fn reason(status: &VirtualClusterStatus, type_: &str) -> (String, String) {
        let c = status.conditions.iter().find(|c| c.type_ == type_).unwrap();
        (c.status.clone(), c.reason.clone())
    }

    fn starting() -> Progress {
        Progress {
            policy: Some(Ok(())),
            rendered: Some(Ok("0.36.1".into())),
            control_plane: Some(ControlPlane::Starting("it has no pod".into())),
            ..Progress::default()
        }
    }

    #[test]
    fn ready_takes_the_first_step_that_is_not_done() {
        let status = status(&starting(), &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&status, "Ready"), ("False".into(), "ControlPlaneStarting".into()));
        assert_eq!(reason(&status, "KubeconfigReady").0, "Unknown");
        assert_eq!((status.version.as_deref(), status.kubeconfig_secret), (Some("0.36.1"), None));
        assert_eq!(status.reclaim, Some(Reclaim::Retain));
    }

    #[test]
    fn control_plane_counts_as_down_after_five_minutes() {
        let first = status(&starting(), &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        let soon = status(&starting(), &first, &facts("2026-01-01T00:04:00Z"));
        assert_eq!(reason(&soon, "ControlPlaneReady").1, "ControlPlaneStarting");
        let late = status(&starting(), &soon, &facts("2026-01-01T00:05:01Z"));
        assert_eq!(reason(&late, "Ready").1, "ControlPlaneDown");
    }

    #[test]
    fn failed_renewal_keeps_a_token_until_it_expires() {
        let expires = |text: &str| Some(Time(text.parse().unwrap()));
        let old = VirtualClusterStatus {
            kubeconfig_expires: expires("2026-01-01T12:00:00Z"),
            ..VirtualClusterStatus::default()
        };
        let failed = Progress { kubeconfig: Some(Err("no answer".into())), ..starting() };
        let before = status(&failed, &old, &facts("2026-01-01T11:59:00Z"));
        assert_eq!(
            (before.kubeconfig_expires, before.kubeconfig_secret.is_some()),
            (old.kubeconfig_expires.clone(), true)
        );
        assert_eq!(status(&failed, &old, &facts("2026-01-01T12:00:01Z")).kubeconfig_expires, None);
    }

    #[test]
    fn namespace_that_is_not_there_yet_is_no_failure() {
        let waits = Progress { waits: Some("waiting".into()), ..Progress::default() };
        let status = status(&waits, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&status, "Ready"), ("False".into(), "Applying".into()));
    }

    #[test]
    fn missing_quota_is_the_first_condition_and_hides_no_running_control_plane() {
        let policy = Some(Err("ResourceQuota gputenancy".to_owned()));
        let progress = Progress { policy, control_plane: Some(ControlPlane::Ready), ..Progress::default() };
        let status = status(&progress, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&status, "PolicyReady"), ("False".into(), "Applying".into()));
        assert_eq!(reason(&status, "Ready"), ("False".into(), "Applying".into()));
        assert_eq!(reason(&status, "ChartRendered").0, "Unknown");
        assert_eq!(reason(&status, "ControlPlaneReady").0, "True");
        let (_, message, _) = ready(&status).unwrap();
        assert!(message.starts_with("waiting for ResourceQuota gputenancy in namespace ns-a"), "{message}");
    }

    #[test]
    fn pause_is_no_time_without_a_control_plane() {
        let paused = Progress { control_plane: Some(ControlPlane::Paused), ..starting() };
        let first = status(&paused, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&first, "Ready"), ("False".into(), "VirtualClusterPaused".into()));
        let resumed = status(&starting(), &first, &facts("2026-01-02T00:00:00Z"));
        assert_eq!(reason(&resumed, "ControlPlaneReady").1, "ControlPlaneStarting");
    }

    #[test]
    fn failure_of_the_catalog_hides_no_other_step() {
        let failed = || Some(Err("refused".to_owned()));
        let serving = Progress { control_plane: Some(ControlPlane::Ready), catalog: failed(), ..starting() };
        let of =
            |progress: &Progress| status(progress, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        let unreachable = of(&Progress {
            kubeconfig: Some(Err("no answer".into())),
            capacity: Some(Err("no answer".into())),
            ..serving.clone()
        });
        assert_eq!(reason(&unreachable, "Ready").1, "VirtualClusterUnreachable");
        let token = Present::example("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let shown = Progress { kubeconfig: Some(Ok(token)), capacity: Some(Ok(1)), ..serving };
        assert_eq!(reason(&of(&shown), "Ready"), ("False".into(), "CatalogNotWritten".into()));
        let noted = of(&Progress { catalog: Some(Ok(Some("classes have no effect"))), ..shown.clone() });
        let message = &noted.conditions.iter().find(|c| c.type_ == CATALOG).unwrap().message;
        assert!(message.ends_with("lists the tenant's profiles; classes have no effect"), "{message}");
        let written = of(&Progress { catalog: Some(Ok(None)), ..shown });
        assert_eq!(reason(&written, "CatalogShown"), ("True".into(), "CatalogWritten".into()));
        assert_eq!(reason(&written, "Ready").0, "True");
    }

    #[test]
    fn refused_pods_stay_while_unread_and_end_with_a_pause() {
        let refused = vec![RefusedPods { profile: "mig-1g".into(), count: 1, pods: Vec::new() }];
        let of = |progress: &Progress, old: &[RefusedPods]| {
            let old = VirtualClusterStatus { refused: old.to_vec(), ..VirtualClusterStatus::default() };
            status(progress, &old, &facts("2026-01-01T00:00:00Z")).refused
        };
        assert_eq!(of(&Progress { refused: Some(refused.clone()), ..starting() }, &[]), refused);
        assert_eq!(of(&starting(), &refused), refused, "the API server inside did not answer");
        assert_eq!(of(&Progress { refused: Some(Vec::new()), ..starting() }, &refused), []);
        assert_eq!(of(&Progress { control_plane: Some(ControlPlane::Paused), ..starting() }, &refused), []);
    }

    #[test]
    fn report_of_the_adoption_is_the_first_condition() {
        let report = Report::failed(reasons::VERSION_DIFFERS, "write 0.35.2");
        let control_plane = Some(ControlPlane::Ready);
        let progress = Progress { policy: Some(Ok(())), adopted: Some(report), control_plane, ..Progress::default() };
        let status = status(&progress, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&status, "ChartRendered"), ("False".into(), "VersionDiffers".into()));
        assert_eq!(reason(&status, "Ready").1, "VersionDiffers");
        assert_eq!(reason(&status, "ControlPlaneReady").0, "True", "what runs is reported all the same");
    }

    #[test]
    fn failed_upgrade_is_reported_while_the_former_version_serves() {
        let time = |text: &str| Some(Time(text.parse().unwrap()));
        let begun = VirtualClusterUpgrade {
            from: "0.35.3".into(),
            to: "0.36.1".into(),
            since: time("2026-01-01T00:00:00Z"),
            ..VirtualClusterUpgrade::default()
        };
        let of = |progress: &Progress, upgrade: &VirtualClusterUpgrade| {
            let facts = Facts { upgrade: Some(upgrade), ..facts("2026-01-01T00:11:00Z") };
            status(progress, &VirtualClusterStatus::default(), &facts)
        };
        let running = of(&starting(), &begun);
        assert_eq!(reason(&running, "Ready").1, "ControlPlaneStarting");
        assert_eq!(running.upgrade.as_ref(), Some(&begun), "it is kept for the next start of the controller");

        let failed = VirtualClusterUpgrade { failed: time("2026-01-01T00:10:01Z"), ..begun };
        let back = Progress {
            policy: Some(Ok(())),
            rendered: Some(Ok("0.35.3".into())),
            control_plane: Some(ControlPlane::Ready),
            ..Progress::default()
        };
        let status = of(&back, &failed);
        assert_eq!(reason(&status, "ChartRendered"), ("False".into(), "UpgradeFailed".into()));
        assert_eq!((reason(&status, "Ready").1.as_str(), status.version.as_deref()), ("UpgradeFailed", Some("0.35.3")));
        assert_eq!(reason(&status, "ControlPlaneReady").0, "True");
        let error = RenderError::NotSupported { wanted: "9.9.9".into(), supported: vec!["0.36.1".into()] };
        let refused = of(&Progress { rendered: Some(Err(error)), ..back }, &failed);
        assert_eq!(reason(&refused, "Ready").1, "VersionNotSupported", "what the present spec leads to comes first");
    }

    #[test]
    fn refused_version_keeps_the_applied_one() {
        let old = VirtualClusterStatus { version: Some("0.36.1".into()), ..VirtualClusterStatus::default() };
        let error = RenderError::NotSupported { wanted: "9.9.9".into(), supported: vec!["0.36.1".into()] };
        let progress = Progress { rendered: Some(Err(error)), ..Progress::default() };
        let status = status(&progress, &old, &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&status, "Ready"), ("False".into(), "VersionNotSupported".into()));
        assert_eq!(status.version.as_deref(), Some("0.36.1"));
    }
}
