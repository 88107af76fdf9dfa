//! Says on pods inside why the quota refuses them, in the team's words: profile, budget, and what can be done.
//!
//! The syncer reports the refusal with the text of this cluster's quota. [`find`] reads these events, and [`explain`] makes one of this program's
//! for each such pod that has none; events expire after an hour by themselves, and the syncer repeats its own while it tries again.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    GpuTenant, GpuUse,
    quota::resource_key,
    quota_refusal::{QuotaAmounts, QuotaRefusal},
    reasons::{self, Reason},
    words::counted,
};
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{Api, Client, ResourceExt as _, api::PostParams};
use serde::{Deserialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use super::connect::{CallError, bounded, get};
use crate::{hex::hex, names::MANAGER};

/// Most events that are read in one reconcile.
const MOST_READ: usize = 500;
/// Most events that are made in one reconcile; further pods get theirs in the next one.
const MOST_MADE: usize = 20;
/// Most requests for that.
const MOST_TRIED: usize = 100;
/// Reason of the syncer's events.
const SYNCER_REASON: &str = "SyncError";

/// What is read of an event; the team chooses all of it.
#[derive(Deserialize, Debug, Default, Clone)]
#[serde(rename_all = "camelCase")]
struct SlimEvent {
    #[serde(default)]
    metadata: Created,
    #[serde(default)]
    involved_object: SlimObject,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize, Debug, Default, Clone)]
#[serde(rename_all = "camelCase")]
struct Created {
    #[serde(default)]
    creation_timestamp: String,
}

/// The object that an event is about.
#[derive(Deserialize, Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SlimObject {
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub uid: String,
}

#[derive(Deserialize)]
struct SlimEvents {
    items: Vec<SlimEvent>,
}

/// A pod inside that the quota refuses because of its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub(super) pod: SlimObject,
    /// Name of the profile.
    pub(super) profile: String,
    /// Reason and remedy.
    pub(super) message: String,
    /// Time of the oldest event about it.
    pub(super) since: Option<Timestamp>,
}

/// One refusal for each pod of these events, with the text of its last event. Pure.
fn refusals(tenant: &GpuTenant, events: &[SlimEvent]) -> Vec<Refusal> {
    let mut all: BTreeMap<&str, Refusal> = BTreeMap::new();
    for event in events {
        let pod = &event.involved_object;
        if pod.kind != "Pod" || pod.uid.is_empty() {
            continue;
        }
        let Some((profile, message)) = text(tenant, &event.message) else { continue };
        let at = event.metadata.creation_timestamp.parse().ok();
        let since = all.get(pod.uid.as_str()).and_then(|known| known.since).into_iter().chain(at).min();
        all.insert(&pod.uid, Refusal { pod: pod.clone(), profile, message, since });
    }
    all.into_values().collect()
}

/// The profile that is short, and the refusal of a quota in the team's words; `None`: it is no refusal because of GPUs.
fn text(tenant: &GpuTenant, message: &str) -> Option<(String, String)> {
    let QuotaRefusal { requested, used, limited, .. } = QuotaRefusal::parse(message)?;
    let gpus = tenant.status.iter().flat_map(|s| &s.gpus).filter(|gpu| !gpu.resource_name.is_empty());
    let asked = |gpu: &GpuUse| amount(requested, &gpu.resource_name);
    let (gpu, wanted) = gpus.into_iter().find_map(|gpu| Some((gpu, asked(gpu)?)))?;
    let GpuUse { profile, resource_name: resource, budget, .. } = gpu;
    let (name, limit) = (tenant.name_any(), amount(limited, resource).unwrap_or(i64::from(*budget)));
    let used = amount(used, resource).unwrap_or(limit);
    let cap = tenant.spec.gpu_equivalents.as_deref().filter(|_| limit < i64::from(*budget));
    let text = if tenant.spec.suspend {
        format!(
            "tenant {name} is suspended: no pod with a GPU starts until your platform team sets spec.suspend of GpuTenant {name} to false"
        )
    } else if let Some(cap) = cap {
        format!(
            "tenant {name} may use {cap} whole GPUs together (spec.gpuEquivalents), and {limit} of {resource} fit into that now. \
             For more end other pods, or ask your platform team to raise spec.gpuEquivalents of GpuTenant {name}"
        )
    } else if wanted > limit {
        format!(
            "the pod asks for {wanted} of {resource}, and all pods of tenant {name} together may have {limit} (profile {profile}): \
             ask for fewer, or ask your platform team to raise spec.gpus of GpuTenant {name}"
        )
    } else {
        let short = if used < limit {
            format!("has no headroom for {}", counted(wanted, "device"))
        } else {
            "is used up".to_owned()
        };
        format!(
            "the budget of profile {profile} {short}: {used} of {limit} {resource} are requested by other pods of tenant {name}. \
             The pod starts when enough of them have ended. For more ask your platform team to raise spec.gpus of GpuTenant {name}"
        )
    };
    Some((profile.clone(), text))
}

/// The number of devices of a resource, if it is whole.
fn amount(amounts: QuotaAmounts<'_>, resource: &str) -> Option<i64> {
    amounts.of(&resource_key(resource))?.quantity().0.parse().ok()
}

/// An event about a pod. Its name follows from pod and reason, so that a second one of it is refused.
fn event(pod: &SlimObject, reason: Reason, message: String, now: Timestamp) -> Event {
    let SlimObject { kind, namespace, name, uid } = pod;
    let mark = hex(Sha256::digest(format!("{uid} {reason}")).get(..6).unwrap_or_default());
    // the name of a pod is at most 253 bytes long, as that of an event
    let short = name.get(..name.floor_char_boundary(200)).unwrap_or_default().trim_end_matches(['.', '-']);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{short}.{mark}")),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some(kind.clone()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            uid: Some(uid.clone()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".into()),
        reason: Some(reason.into()),
        message: Some(message),
        source: Some(EventSource { component: Some(MANAGER.into()), ..EventSource::default() }),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}

/// The pods that the quota refuses, and those of them that have an event of this program.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Of the first [`MOST_READ`] events; some of the pods may run meanwhile, or be gone.
    pub all: Vec<Refusal>,
    explained: Vec<SlimEvent>,
}

impl Refusals {
    /// Those without an event of this program.
    pub fn unexplained(&self) -> Vec<Refusal> {
        missing(&self.all, &self.explained).cloned().collect()
    }
}

/// Reads the events of the syncer and those of this program.
pub async fn find(client: &Client, tenant: &GpuTenant) -> Result<Refusals, CallError> {
    let events: SlimEvents = list(client, SYNCER_REASON).await?;
    let all = refusals(tenant, &events.items);
    if all.is_empty() {
        return Ok(Refusals::default());
    }
    let explained: SlimEvents = list(client, reasons::BUDGET_USED.as_str()).await?;
    Ok(Refusals { all, explained: explained.items })
}

/// Makes an event about each of these.
pub async fn explain(client: &Client, refusals: &[Refusal]) -> Result<(), CallError> {
    let (mut made, mut failure) = (0, None);
    for Refusal { pod, message, .. } in refusals.iter().take(MOST_TRIED) {
        // one that fails, as in a namespace that ends, must not keep the others from theirs
        match create(client, pod, reasons::BUDGET_USED, message.clone()).await {
            Ok(new) => made += usize::from(new),
            Err(error) => failure = Some(error),
        }
        if made == MOST_MADE {
            break;
        }
    }
    failure.map_or(Ok(()), Err)
}

/// The refusals whose pod has no event of this program yet. Pure.
fn missing<'a>(refusals: &'a [Refusal], noted: &[SlimEvent]) -> impl Iterator<Item = &'a Refusal> {
    let noted: BTreeSet<String> = noted.iter().map(|n| n.involved_object.uid.clone()).collect();
    refusals.iter().filter(move |refusal| !noted.contains(&refusal.pod.uid))
}

/// Makes an event about a pod inside; returns whether it is new.
pub(super) async fn create(
    client: &Client,
    pod: &SlimObject,
    reason: Reason,
    message: String,
) -> Result<bool, CallError> {
    let api: Api<Event> = Api::namespaced(client.clone(), &pod.namespace);
    let event = event(pod, reason, message, Timestamp::now());
    let created = async {
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    };
    bounded("creating an event in the virtual cluster", created).await
}

async fn list<T: DeserializeOwned>(client: &Client, reason: &str) -> Result<T, CallError> {
    let path = format!("/api/v1/events?limit={MOST_READ}&fieldSelector=reason%3D{reason}%2CinvolvedObject.kind%3DPod");
    get(client, "listing events of the virtual cluster", &path, None).await
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{GpuTenantSpec, GpuTenantStatus};

    use super::*;

    const MESSAGE: &str = "Error syncing to host cluster: pods \"a-x-ml-x-t\" is forbidden: exceeded quota: gputenancy, requested: \
        requests.nvidia.com/mig-1g.10gb=1, used: requests.nvidia.com/mig-1g.10gb=2, limited: requests.nvidia.com/mig-1g.10gb=2";

    fn tenant() -> GpuTenant {
        let gpu = |profile: &str, resource: &str| GpuUse {
            profile: profile.into(),
            resource_name: resource.into(),
            budget: 2,
            used: 2,
            available: 2,
            waiting: 1,
            borrowed: 0,
            lent: 0,
            share: None,
            isolation: None,
            price: None,
        };
        let mut tenant = GpuTenant::new("t", GpuTenantSpec::default());
        let gpus = vec![gpu("other", "nvidia.com/gpu"), gpu("mig-1g", "nvidia.com/mig-1g.10gb")];
        tenant.status = Some(GpuTenantStatus { gpus, ..GpuTenantStatus::default() });
        tenant
    }

    fn about(kind: &str, uid: &str, message: &str) -> SlimEvent {
        let object = SlimObject { kind: kind.into(), namespace: "ml".into(), name: "a".into(), uid: uid.into() };
        SlimEvent { involved_object: object, message: message.into(), ..SlimEvent::default() }
    }

    fn words(tenant: &GpuTenant, message: &str) -> String {
        text(tenant, message).unwrap().1
    }

    #[test]
    fn refusal_names_profile_budget_and_remedy() {
        let (profile, words) = text(&tenant(), MESSAGE).unwrap();
        assert_eq!(profile, "mig-1g");
        assert_eq!(
            words,
            "the budget of profile mig-1g is used up: 2 of 2 nvidia.com/mig-1g.10gb are requested by other pods of tenant t. \
             The pod starts when enough of them have ended. For more ask your platform team to raise spec.gpus of GpuTenant t"
        );
        assert_eq!(
            text(&tenant(), "exceeded quota: gputenancy, requested: pods=1, used: pods=9, limited: pods=9"),
            None
        );
        assert_eq!(text(&tenant(), "exceeded quota: mine, requested: requests.nvidia.com/gpu=1"), None);
        // only what is requested counts, and not what else is used
        let cpu = "exceeded quota: gputenancy, requested: requests.cpu=1, used: requests.cpu=1,requests.nvidia.com/gpu=2, limited: x";
        assert_eq!(text(&tenant(), cpu), None);
    }

    #[test]
    fn remedy_fits_the_cause() {
        let more = MESSAGE.replacen("10gb=1", "10gb=3", 1);
        assert!(
            words(&tenant(), &more).starts_with(
                "the pod asks for 3 of nvidia.com/mig-1g.10gb, and all pods of tenant t together may have 2"
            )
        );
        let two_of_one = MESSAGE
            .replacen("10gb=1", "10gb=2", 1)
            .replace("used: requests.nvidia.com/mig-1g.10gb=2", "used: requests.nvidia.com/mig-1g.10gb=1");
        assert!(words(&tenant(), &two_of_one).starts_with(
            "the budget of profile mig-1g has no headroom for 2 devices: 1 of 2 nvidia.com/mig-1g.10gb are"
        ));
        let mut suspended = tenant();
        suspended.spec.suspend = true;
        assert!(words(&suspended, MESSAGE).contains("spec.suspend of GpuTenant t to false"));
        let mut capped = tenant();
        capped.spec.gpu_equivalents = Some("0.5".into());
        assert!(words(&capped, MESSAGE).starts_with("the budget of profile"), "the cap leaves the whole budget");
        let lowered =
            MESSAGE.replace("limited: requests.nvidia.com/mig-1g.10gb=2", "limited: requests.nvidia.com/mig-1g.10gb=1");
        assert!(words(&capped, &lowered).contains("raise spec.gpuEquivalents"));
    }

    #[test]
    fn each_refused_pod_gets_one_event() {
        let events = [
            about("Pod", "1", MESSAGE),
            about("Pod", "1", MESSAGE),
            about("Pod", "2", MESSAGE),
            about("Service", "3", MESSAGE),
            about("Pod", "", MESSAGE),
            about("Pod", "4", "exceeded quota: mine"),
        ];
        let refused = refusals(&tenant(), &events);
        let uids = |noted: &[SlimEvent]| -> Vec<String> {
            missing(&refused, noted).map(|refusal| refusal.pod.uid.clone()).collect()
        };
        assert_eq!(uids(&[]), ["1", "2"]);
        assert_eq!(uids(&[about("Pod", "1", "")]), ["2"]);
    }

    #[test]
    fn refusal_has_the_time_of_the_first_event_and_the_text_of_the_last() {
        let at = |time: &str, message: &str| {
            let metadata = Created { creation_timestamp: time.into() };
            SlimEvent { metadata, ..about("Pod", "1", message) }
        };
        let later =
            MESSAGE.replace("used: requests.nvidia.com/mig-1g.10gb=2", "used: requests.nvidia.com/mig-1g.10gb=9");
        let events = [at("2026-01-01T00:01:00Z", MESSAGE), at("2026-01-01T00:00:00Z", MESSAGE), at("no time", &later)];
        let refused = refusals(&tenant(), &events);
        let [refusal] = refused.as_slice() else { panic!("{refused:?}") };
        assert_eq!(refusal.since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert!(refusal.message.contains("9 of 2"), "{refusal:?}");
    }

    #[test]
    fn name_of_an_event_follows_from_its_pod() {
        let of = |pod: &str, reason| event(&pod_named(pod), reason, String::new(), Timestamp::UNIX_EPOCH).metadata.name;
        let name = |pod: &str| of(pod, reasons::BUDGET_USED).unwrap();
        assert_eq!(name("a"), name("a"));
        assert_ne!(of("a", reasons::BUDGET_USED), of("a", reasons::WAITING_FOR_DEVICE));
        assert_ne!(name("a"), name("b"));
        for length in 1..=253 {
            for pod in ["x".repeat(length), format!("{}.b", "a-".repeat(length))] {
                let name = name(pod.get(..length).unwrap());
                let valid = |part: &str| {
                    let ends = part.starts_with(|c: char| c.is_ascii_alphanumeric())
                        && part.ends_with(|c: char| c.is_ascii_alphanumeric());
                    ends && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                };
                assert!(name.len() <= 253 && name.split('.').all(valid), "{name}");
            }
        }
    }

    fn pod_named(name: &str) -> SlimObject {
        SlimObject { name: name.into(), uid: "u".into(), kind: "Pod".into(), namespace: "ml".into() }
    }
}
