//! Kueue's view: its objects of Jobs, and the limits of its queues.

use e2e::{
    Error, Result, World, objects,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::Value;

use super::{kueue::API, scene::NODE};

/// A kind of Kueue.
pub fn of_kueue(kind: &str) -> ApiResource {
    let (group, version) = API.split_once('/').unwrap();
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// The conditions of Kueue's object of a Job.
async fn conditions(world: &World, namespace: &str, job: &str) -> Result<Vec<Condition>> {
    let api = Api::<DynamicObject>::namespaced_with(world.client.clone(), namespace, &of_kueue("Workload"));
    let of_job = |workload: &&DynamicObject| {
        workload.owner_references().iter().any(|owner| owner.kind == "Job" && owner.name == job)
    };
    let all = api.list(&ListParams::default()).await?;
    let found = all.iter().find(of_job).map(|workload| objects::status(workload).0);
    found.ok_or_else(|| Error::Wrong(format!("Kueue has no Workload of Job {job} in {namespace}")))
}

/// Waits until Kueue has judged a Job, and has no quota for it: the Job waits until another one ends.
pub async fn waits(world: &World, namespace: &str, job: &str) -> Result<()> {
    eventually(&format!("Job {job} of {namespace} waiting for quota"), PATIENCE, || async {
        let conditions = conditions(world, namespace, job).await?;
        let waits = objects::condition(&conditions, "QuotaReserved").is_some_and(|c| c.status == "False");
        Ok(if waits { Ok(()) } else { Err(format!("{conditions:?}")) })
    })
    .await
}

/// Waits until Kueue has suspended a Job because of the operator's check.
pub async fn evicted_by_the_check(world: &World, namespace: &str, job: &str) -> Result<()> {
    eventually(&format!("Job {job} of {namespace} evicted by its check"), PATIENCE, || async {
        let conditions = conditions(world, namespace, job).await?;
        Ok(objects::check_condition(&conditions, "Evicted", "True", "AdmissionCheck", &[]))
    })
    .await
}

/// When Kueue has reserved quota for a Job that it has admitted.
pub async fn reserved_at(world: &World, namespace: &str, job: &str) -> Result<Timestamp> {
    let conditions = conditions(world, namespace, job).await?;
    let reserved = objects::condition(&conditions, "QuotaReserved").filter(|c| c.status == "True");
    let at = reserved.map(|c| c.last_transition_time.0);
    at.ok_or_else(|| Error::Wrong(format!("no quota for Job {job} of {namespace}: {conditions:?}")))
}

/// Waits until so many devices of a resource exist on the node, and the limits of teams and of spare devices add up to them.
pub async fn limits_become(world: &World, resource: &str, devices: i64) -> Result<()> {
    eventually(&format!("{devices} devices of {resource} in the queues"), PATIENCE, || async {
        let exist = objects::allocatable(&world.client, NODE, resource).await?;
        let (teams, spare) =
            (nominal(world, "ClusterQueue", resource).await?, nominal(world, "Cohort", resource).await?);
        let right = exist == devices && teams + spare == devices;
        Ok(if right { Ok(()) } else { Err(format!("{exist} exist, teams have {teams}, {spare} are spare")) })
    })
    .await
}

/// Devices of a resource in all objects of a kind.
async fn nominal(world: &World, kind: &str, resource: &str) -> Result<i64> {
    let api = Api::<DynamicObject>::all_with(world.client.clone(), &of_kueue(kind));
    let all = api.list(&ListParams::default()).await?;
    Ok(all.iter().map(|object| nominal_of(&object.data["spec"], resource)).sum())
}

fn nominal_of(spec: &Value, resource: &str) -> i64 {
    let flavors = items(spec, "resourceGroups").iter().flat_map(|group| items(group, "flavors"));
    let quotas = flavors.flat_map(|flavor| items(flavor, "resources")).filter(|quota| quota["name"] == resource);
    // Kueue stores whole numbers as texts
    quotas.filter_map(|quota| quota["nominalQuota"].as_str()?.parse::<i64>().ok()).sum()
}

fn items<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object[field].as_array().map(Vec::as_slice).unwrap_or_default()
}
