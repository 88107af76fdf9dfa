//! The report about a virtual cluster: conditions of `status.virtualCluster`. Pure.

use std::sync::Arc;

use gputenancy_crds::{
    Reclaim, RefusedPods, VirtualClusterStatus, VirtualClusterUpgrade,
    condition::{ConditionUpdate, READY, merge},
    reasons::{self, Reason},
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

use super::{ControlPlane, adoption::Adoption, upgrade};
use crate::{
    access::AccessError,
    host::HostError,
    inside::{catalog::CatalogError, connect::CallError},
    kubeconfig::IssuedKubeconfig,
    names::{self, KUBECONFIG_SECRET},
    render::RenderError,
};

const POLICY: &str = "PolicyReady";
const RENDERED: &str = "ChartRendered";
/// The type of the condition whose time is that of a start, an end or a pause of the control plane.
pub const CONTROL_PLANE: &str = "ControlPlaneReady";
const KUBECONFIG: &str = "KubeconfigReady";
const CAPACITY: &str = "CapacityShown";
const CATALOG: &str = "CatalogShown";
/// A control plane that is not ready for this long needs attention: its start takes 15 seconds, the pull of its images minutes.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// What a reconcile has led to. Later parts are absent when an earlier one has failed.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What limits and isolates the tenant in its namespace.
    pub policy: Option<PolicyState>,
    /// The rendered version, or why there is none.
    pub rendered: Option<Result<String, RenderError>>,
    /// How far the adoption is, where it is not this program that applies the objects.
    pub adopted: Option<Adoption>,
    /// What this cluster's API server refused, or did not answer; all is retried.
    pub failed: Option<HostError>,
    /// State of the control plane.
    pub control_plane: Option<ControlPlane>,
    /// What was last found and written inside.
    pub inside: Option<Arc<InsideOutcome>>,
}

/// Whether the namespace has what limits and isolates the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyState {
    /// It has all of it.
    Present,
    /// It lacks these objects.
    Missing(String),
}

/// What was found and written inside.
#[derive(Debug)]
pub struct InsideOutcome {
    /// The kubeconfig.
    pub kubeconfig: Result<IssuedKubeconfig, AccessError>,
    /// Number of nodes that show the budget; `None`: without a kubeconfig nothing else is tried.
    pub capacity: Option<Result<usize, CallError>>,
    /// The catalog and the classes inside, with a note on what has no effect there.
    pub catalog: Option<Result<Option<&'static str>, CatalogError>>,
    /// Pods inside that the quota refuses; `None`: they could not be read.
    pub refused: Option<Vec<RefusedPods>>,
}

impl InsideOutcome {
    /// The team has no kubeconfig, and nothing else was tried.
    pub fn unreachable(error: AccessError) -> Self {
        Self { kubeconfig: Err(error), capacity: None, catalog: None, refused: None }
    }

    /// Something inside did not answer, or refused.
    pub fn failed(&self) -> bool {
        self.kubeconfig.is_err() || self.capacity.as_ref().is_some_and(Result::is_err)
    }
}

impl Outcome {
    /// The kubeconfig that serves.
    pub fn kubeconfig(&self) -> Option<&IssuedKubeconfig> {
        self.inside.as_ref()?.kubeconfig.as_ref().ok()
    }
}

/// What is known besides the outcome.
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
    /// An upgrade that is in outcome or has failed.
    pub upgrade: Option<&'a VirtualClusterUpgrade>,
    /// The time.
    pub now: Timestamp,
}

/// The status.
pub fn status(outcome: &Outcome, old: &VirtualClusterStatus, facts: &Facts<'_>) -> VirtualClusterStatus {
    let waits = |type_, first: &str| ConditionUpdate {
        type_,
        status: None,
        reason: reasons::VIRTUAL_CLUSTER_PENDING,
        message: format!("not checked: {first} must be True first"),
    };
    let inside = outcome.inside.as_deref();
    let parts = vec![
        outcome.policy.as_ref().map_or_else(|| unread(outcome), |p| policy(p, facts.namespace)),
        match &outcome.policy {
            Some(PolicyState::Missing(_)) => waits(RENDERED, POLICY),
            _ => rendered(outcome, facts.upgrade),
        },
        outcome
            .control_plane
            .as_ref()
            .map_or_else(|| waits(CONTROL_PLANE, RENDERED), |c| control_plane(c, old, facts.now)),
        inside.map_or_else(|| waits(KUBECONFIG, CONTROL_PLANE), |i| kubeconfig(&i.kubeconfig)),
        inside.and_then(|i| i.capacity.as_ref()).map_or_else(|| waits(CAPACITY, KUBECONFIG), capacity),
        // the last: an object that the team blocks inside hides no other step in Ready
        inside.and_then(|i| i.catalog.as_ref()).map_or_else(|| waits(CATALOG, KUBECONFIG), catalog),
    ];
    let mut updates = vec![overall(&parts, facts)];
    updates.extend(parts);
    let issued = outcome.kubeconfig();
    // a failed renewal does not end the token that is there
    let kept = old.kubeconfig_expires.clone().filter(|at| issued.is_none() && at.0 > facts.now);
    let expires = issued.map(|k| Time(k.expires)).or(kept);
    VirtualClusterStatus {
        observed_generation: facts.generation,
        backend: old.backend,
        version: outcome.rendered.as_ref().and_then(|r| r.clone().ok()).or_else(|| old.version.clone()),
        namespace: Some(facts.namespace.into()),
        server: Some(facts.server.into()),
        kubeconfig_secret: expires.is_some().then(|| KUBECONFIG_SECRET.into()),
        kubeconfig_expires: expires,
        reclaim: Some(facts.reclaim),
        upgrade: facts.upgrade.cloned(),
        deleting_since: None,
        refused: refused(outcome, old),
        conditions: merge(&old.conditions, updates, facts.generation, facts.now),
    }
}

/// The refused pods. What could not be read stays as it was; without a syncer no pod is refused.
fn refused(outcome: &Outcome, old: &VirtualClusterStatus) -> Vec<RefusedPods> {
    match (outcome.inside.as_ref().and_then(|inside| inside.refused.as_ref()), &outcome.control_plane) {
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

fn policy(state: &PolicyState, namespace: &str) -> ConditionUpdate {
    match state {
        PolicyState::Present => ConditionUpdate::yes(
            POLICY,
            reasons::GRANTED,
            format!("namespace {namespace} has grant, quotas and isolation of the tenant"),
        ),
        PolicyState::Missing(missing) => ConditionUpdate::no(
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
fn unread(outcome: &Outcome) -> ConditionUpdate {
    ConditionUpdate { type_: POLICY, status: None, ..rendered(outcome, None) }
}

fn rendered(outcome: &Outcome, upgrade: Option<&VirtualClusterUpgrade>) -> ConditionUpdate {
    match &outcome.failed {
        Some(waits @ HostError::NotBound { .. }) => {
            return ConditionUpdate::no(RENDERED, reasons::APPLYING, waits.to_string());
        }
        Some(error) => return ConditionUpdate::no(RENDERED, reasons::WRITE_FAILED, format!("{error}; retrying")),
        None => {}
    }
    if let Some(Adoption { done, reason, message, .. }) = &outcome.adopted {
        return ConditionUpdate { type_: RENDERED, status: Some(*done), reason: *reason, message: message.clone() };
    }
    match (&outcome.rendered, upgrade::failed(upgrade)) {
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

fn kubeconfig(state: &Result<IssuedKubeconfig, AccessError>) -> ConditionUpdate {
    match state {
        Ok(_) => ConditionUpdate::yes(
            KUBECONFIG,
            reasons::KUBECONFIG_WRITTEN,
            format!("Secret {KUBECONFIG_SECRET} has a kubeconfig with a valid token, under the key config"),
        ),
        Err(error) => ConditionUpdate::no(KUBECONFIG, reasons::VIRTUAL_CLUSTER_UNREACHABLE, error.to_string()),
    }
}

fn capacity(state: &Result<usize, CallError>) -> ConditionUpdate {
    match state {
        Ok(nodes) => ConditionUpdate::yes(
            CAPACITY,
            reasons::BUDGET_SHOWN,
            match nodes {
                0 => "no node inside yet: nodes appear with the first pod".to_owned(),
                _ => format!("the nodes inside ({nodes}) show the tenant's budget together"),
            },
        ),
        Err(error) => ConditionUpdate::no(CAPACITY, reasons::VIRTUAL_CLUSTER_UNREACHABLE, error.to_string()),
    }
}

fn catalog(state: &Result<Option<&'static str>, CatalogError>) -> ConditionUpdate {
    match state {
        Ok(note) => {
            let listed =
                format!("ConfigMap {}/{} inside lists the tenant's profiles", names::CATALOG_NAMESPACE, names::CATALOG);
            let message = note.map_or_else(|| listed.clone(), |note| format!("{listed}; {note}"));
            ConditionUpdate::yes(CATALOG, reasons::CATALOG_WRITTEN, message)
        }
        Err(error) => ConditionUpdate::no(CATALOG, reasons::CATALOG_NOT_WRITTEN, error.to_string()),
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

    fn silent() -> CallError {
        CallError::Silent { doing: "x".into() }
    }

    /// Nothing inside has answered.
    fn unreachable() -> InsideOutcome {
        InsideOutcome::unreachable(silent().into())
    }

    /// All that is inside is as it should be.
    fn shown() -> InsideOutcome {
        let kubeconfig = IssuedKubeconfig::example("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        InsideOutcome { kubeconfig: Ok(kubeconfig), capacity: Some(Ok(1)), catalog: Some(Ok(None)), refused: None }
    }

    fn starting() -> Outcome {
        Outcome {
            policy: Some(PolicyState::Present),
            rendered: Some(Ok("0.36.1".into())),
            control_plane: Some(ControlPlane::Starting("it has no pod".into())),
            ..Outcome::default()
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
        let failed = Outcome { inside: Some(Arc::new(unreachable())), ..starting() };
        let before = status(&failed, &old, &facts("2026-01-01T11:59:00Z"));
        assert_eq!(
            (before.kubeconfig_expires, before.kubeconfig_secret.is_some()),
            (old.kubeconfig_expires.clone(), true)
        );
        assert_eq!(status(&failed, &old, &facts("2026-01-01T12:00:01Z")).kubeconfig_expires, None);
    }

    #[test]
    fn namespace_that_is_not_there_yet_is_no_failure() {
        let waits = Outcome { failed: Some(HostError::NotBound { namespace: "ns-a".into() }), ..Outcome::default() };
        let status = status(&waits, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&status, "Ready"), ("False".into(), "Applying".into()));
    }

    #[test]
    fn missing_quota_is_the_first_condition_and_hides_no_running_control_plane() {
        let policy = Some(PolicyState::Missing("ResourceQuota gputenancy".into()));
        let outcome = Outcome { policy, control_plane: Some(ControlPlane::Ready), ..Outcome::default() };
        let status = status(&outcome, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&status, "PolicyReady"), ("False".into(), "Applying".into()));
        assert_eq!(reason(&status, "Ready"), ("False".into(), "Applying".into()));
        assert_eq!(reason(&status, "ChartRendered").0, "Unknown");
        assert_eq!(reason(&status, "ControlPlaneReady").0, "True");
        let (_, message, _) = ready(&status).unwrap();
        assert!(message.starts_with("waiting for ResourceQuota gputenancy in namespace ns-a"), "{message}");
    }

    #[test]
    fn pause_is_no_time_without_a_control_plane() {
        let paused = Outcome { control_plane: Some(ControlPlane::Paused), ..starting() };
        let first = status(&paused, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&first, "Ready"), ("False".into(), "VirtualClusterPaused".into()));
        let resumed = status(&starting(), &first, &facts("2026-01-02T00:00:00Z"));
        assert_eq!(reason(&resumed, "ControlPlaneReady").1, "ControlPlaneStarting");
    }

    #[test]
    fn failure_of_the_catalog_hides_no_other_step() {
        let failed = || Some(Err(silent().into()));
        let of = |found: InsideOutcome| {
            let serving =
                Outcome { control_plane: Some(ControlPlane::Ready), inside: Some(Arc::new(found)), ..starting() };
            status(&serving, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"))
        };
        let unreachable = of(InsideOutcome { capacity: Some(Err(silent())), catalog: failed(), ..unreachable() });
        assert_eq!(reason(&unreachable, "Ready").1, "VirtualClusterUnreachable");
        let refused = of(InsideOutcome { catalog: failed(), ..shown() });
        assert_eq!(reason(&refused, "Ready"), ("False".into(), "CatalogNotWritten".into()));
        let noted = of(InsideOutcome { catalog: Some(Ok(Some("classes have no effect"))), ..shown() });
        let message = &noted.conditions.iter().find(|c| c.type_ == CATALOG).unwrap().message;
        assert!(message.ends_with("lists the tenant's profiles; classes have no effect"), "{message}");
        let written = of(shown());
        assert_eq!(reason(&written, "CatalogShown"), ("True".into(), "CatalogWritten".into()));
        assert_eq!(reason(&written, "Ready").0, "True");
    }

    #[test]
    fn refused_pods_stay_while_unread_and_end_with_a_pause() {
        let refused = vec![RefusedPods { profile: "mig-1g".into(), count: 1, pods: Vec::new() }];
        let of = |outcome: &Outcome, old: &[RefusedPods]| {
            let old = VirtualClusterStatus { refused: old.to_vec(), ..VirtualClusterStatus::default() };
            status(outcome, &old, &facts("2026-01-01T00:00:00Z")).refused
        };
        let read = |refused: Vec<RefusedPods>| Some(Arc::new(InsideOutcome { refused: Some(refused), ..shown() }));
        assert_eq!(of(&Outcome { inside: read(refused.clone()), ..starting() }, &[]), refused);
        assert_eq!(of(&starting(), &refused), refused, "the API server inside did not answer");
        assert_eq!(of(&Outcome { inside: read(Vec::new()), ..starting() }, &refused), []);
        assert_eq!(of(&Outcome { control_plane: Some(ControlPlane::Paused), ..starting() }, &refused), []);
    }

    #[test]
    fn report_of_the_adoption_is_the_first_condition() {
        let report = Adoption {
            done: false,
            reason: reasons::VERSION_DIFFERS,
            message: "write 0.35.2".into(),
            version: Some("0.35.2".into()),
        };
        let control_plane = Some(ControlPlane::Ready);
        let outcome =
            Outcome { policy: Some(PolicyState::Present), adopted: Some(report), control_plane, ..Outcome::default() };
        let status = status(&outcome, &VirtualClusterStatus::default(), &facts("2026-01-01T00:00:00Z"));
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
        let of = |outcome: &Outcome, upgrade: &VirtualClusterUpgrade| {
            let facts = Facts { upgrade: Some(upgrade), ..facts("2026-01-01T00:11:00Z") };
            status(outcome, &VirtualClusterStatus::default(), &facts)
        };
        let running = of(&starting(), &begun);
        assert_eq!(reason(&running, "Ready").1, "ControlPlaneStarting");
        assert_eq!(running.upgrade.as_ref(), Some(&begun), "it is kept for the next start of the controller");

        let failed = VirtualClusterUpgrade { failed: time("2026-01-01T00:10:01Z"), ..begun };
        let back = Outcome {
            policy: Some(PolicyState::Present),
            rendered: Some(Ok("0.35.3".into())),
            control_plane: Some(ControlPlane::Ready),
            ..Outcome::default()
        };
        let status = of(&back, &failed);
        assert_eq!(reason(&status, "ChartRendered"), ("False".into(), "UpgradeFailed".into()));
        assert_eq!((reason(&status, "Ready").1.as_str(), status.version.as_deref()), ("UpgradeFailed", Some("0.35.3")));
        assert_eq!(reason(&status, "ControlPlaneReady").0, "True");
        let error = RenderError::NotSupported { wanted: "9.9.9".into(), supported: vec!["0.36.1".into()] };
        let refused = of(&Outcome { rendered: Some(Err(error)), ..back }, &failed);
        assert_eq!(reason(&refused, "Ready").1, "VersionNotSupported", "what the present spec leads to comes first");
    }

    #[test]
    fn refused_version_keeps_the_applied_one() {
        let old = VirtualClusterStatus { version: Some("0.36.1".into()), ..VirtualClusterStatus::default() };
        let error = RenderError::NotSupported { wanted: "9.9.9".into(), supported: vec!["0.36.1".into()] };
        let outcome = Outcome { rendered: Some(Err(error)), ..Outcome::default() };
        let status = status(&outcome, &old, &facts("2026-01-01T00:00:00Z"));
        assert_eq!(reason(&status, "Ready"), ("False".into(), "VersionNotSupported".into()));
        assert_eq!(status.version.as_deref(), Some("0.36.1"));
    }
}
