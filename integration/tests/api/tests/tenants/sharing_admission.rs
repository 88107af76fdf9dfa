//! Admission of shares: which tenants get which mode, one share in a pod, and no gangs.

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{merged, mig_profile, pod_spec, pool, tenant},
    objects::ensure,
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuGrant, GpuTenant};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use serde_json::{Value, json};

const SHARED: &str = "nvidia.com/gpu.shared";
const FRACTION: &str = "gputenancy.io/fraction";
const WHOLE: &str = "nvidia.com/gpu";

/// The profiles: name, device, resource, and whether it is a share.
fn modes() -> [(&'static str, Value, &'static str, bool); 4] {
    [
        ("whole", json!({"whole": {}}), WHOLE, false),
        ("mig", json!({"mig": {"profile": "1g.10gb"}}), "nvidia.com/mig-1g.10gb", false),
        ("time-slice", json!({"timeSlice": {"replicas": 4}}), SHARED, true),
        ("fraction", json!({"fraction": {"memory": "10Gi", "compute": 25}}), FRACTION, true),
    ]
}

fn profile(name: &str, device: &Value) -> Value {
    let mut profile = mig_profile(name, "1g.10gb");
    profile["spec"]["device"] = device.clone();
    profile
}

/// A tenant with one device of each mode.
fn team(name: &str, trust: &str, acknowledged: bool) -> Value {
    let mut team = tenant(name, &modes().each_ref().map(|(name, ..)| (*name, 1)));
    let spec = team["spec"].take();
    team["spec"] = merged(spec, json!({"trust": trust}));
    if acknowledged {
        team["spec"]["sharing"] = json!({"acknowledgedBy": "lead@example.com"});
    }
    team
}

async fn catalog(world: &World) -> Result<()> {
    let profiles = modes().each_ref().map(|(name, device, ..)| profile(name, device));
    world.set(&profiles).await?;
    let mut both = pool("p", "gpu-1", &modes().each_ref().map(|(name, ..)| *name));
    // each mode takes a GPU, and a node has two
    both["spec"]["nodeSelector"] = json!({"matchLabels": {"gputenancy.io/lab-gpu": "true"}});
    world.set(&[both]).await
}

fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Quota and grant of the one namespace agree: the resource is granted and has headroom, or neither.
async fn granted(world: &World, namespace: &str, resource: &str) -> Result<std::result::Result<bool, String>> {
    let grants = Api::<GpuGrant>::namespaced(world.client.clone(), namespace);
    let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), namespace);
    let (Some(grant), Some(quota)) = (grants.get_opt("grant").await?, quotas.get_opt("gputenancy").await?) else {
        return Ok(Err(format!("{namespace} has no grant or no quota yet")));
    };
    let hard = quota.spec.and_then(|s| s.hard).unwrap_or_default();
    let limit = hard.get(&format!("requests.{resource}")).map(|q| q.0.clone());
    Ok(match (grant.spec.resources.get(resource), limit.as_deref()) {
        (Some(1), Some("1")) => Ok(true),
        (None, Some("0")) => Ok(false),
        other => Err(format!("{namespace} {resource}: grant and quota are {other:?}")),
    })
}

#[tokio::test]
async fn trust_and_acknowledgement_decide_which_modes_are_admitted() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        catalog(&world).await?;
        for trust in ["Untrusted", "Internal", "Trusted"] {
            for acknowledged in [false, true] {
                let name = format!("{}-{acknowledged}", trust.to_lowercase());
                world.set(&[team(&name, trust, acknowledged)]).await?;
                for (mode, _, resource, share) in modes() {
                    let expected = !share || (acknowledged && trust != "Untrusted");
                    eventually(&format!("{name}: {mode} granted: {expected}"), PATIENCE, || async {
                        Ok(match granted(&world, &name, resource).await? {
                            Ok(is) if is == expected => Ok(()),
                            other => Err(format!("{other:?}")),
                        })
                    })
                    .await?;
                    let path = format!("/api/v1/namespaces/{name}/pods");
                    let refusal = format!("tenant {name} may not use {resource} here; this namespace may use:");
                    let refusal = (!expected).then_some(refusal.as_str());
                    let one = pod("one", &pod_spec(resource));
                    Actor::Admin.check(&world.client, Verb::Create, &path, &one, refusal).await?;
                }
                let reason = match (trust, acknowledged) {
                    ("Untrusted", _) => Some("TrustTooLow"),
                    (_, false) => Some("SharingNotAcknowledged"),
                    _ => None,
                };
                if let Some(reason) = reason {
                    let message = stalled(&world, &name, reason).await?;
                    ensure(message.contains(&name) && message.contains("time-slice"), message)?;
                }
                world.kubectl(&["delete", "gputenant", &name]).await?;
            }
        }
        Ok(())
    };
    world.keeping_evidence("sharing-trust", body).await;
}

/// The message of `Stalled` with this reason.
async fn stalled(world: &World, tenant: &str, reason: &str) -> Result<String> {
    let tenants = Api::<GpuTenant>::all(world.client.clone());
    eventually(&format!("{tenant} is stalled by {reason}"), PATIENCE, || async {
        let conditions = tenants.get(tenant).await?.status.map(|s| s.conditions).unwrap_or_default();
        let found = conditions.iter().find(|c| c.type_ == "Stalled" && c.status == "True" && c.reason == reason);
        Ok(found.map(|c| c.message.clone()).ok_or_else(|| format!("{conditions:?}")))
    })
    .await
}

#[tokio::test]
async fn share_is_refused_before_and_admitted_after_the_acknowledgement() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        catalog(&world).await?;
        let one = pod("one", &pod_spec(SHARED));
        let path = "/api/v1/namespaces/late/pods";
        world.set(&[team("late", "Internal", false)]).await?;
        let message = stalled(&world, "late", "SharingNotAcknowledged").await?;
        ensure(message.contains("write in spec.sharing.acknowledgedBy of GpuTenant late"), message)?;
        let refusal = Some("tenant late may not use nvidia.com/gpu.shared here");
        Actor::Admin.check(&world.client, Verb::Create, path, &one, refusal).await?;

        world.set(&[team("late", "Internal", true)]).await?;
        eventually("the share is admitted", PATIENCE, || async {
            let answer = Actor::Admin.may(&world.client, Verb::Create, path, &one).await?;
            Ok(answer.map(drop).map_err(|status| status.message))
        })
        .await
    };
    world.keeping_evidence("sharing-acknowledgement", body).await;
}

/// A pod spec whose containers ask for these amounts.
fn containers(amounts: &[(&str, i32)]) -> Value {
    let mut spec = pod_spec(WHOLE);
    let all = amounts.iter().enumerate().map(|(number, (resource, amount))| {
        let mut container = spec["containers"][0].clone();
        container["name"] = json!(format!("c{number}"));
        container["resources"]["limits"] = json!({*resource: amount.to_string()});
        container
    });
    let all: Vec<Value> = all.collect();
    spec["containers"] = json!(all);
    spec
}

#[tokio::test]
async fn pod_with_two_shares_and_gangs_on_shares_are_refused_at_create() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        catalog(&world).await?;
        let mut team = team("sharers", "Internal", true);
        team["spec"]["gpus"] = json!([
            {"profile": "whole", "count": 1}, {"profile": "time-slice", "count": 4}, {"profile": "fraction", "count": 2},
        ]);
        team["spec"]["owners"] = json!([{"kind": "Group", "name": "team-s"}]);
        world.set(&[team]).await?;
        tenant_ready(&world, "sharers").await?;
        let (pods, exclusive) =
            ("/api/v1/namespaces/sharers/pods", "use an exclusive profile: whole (resource nvidia.com/gpu)");
        let one_device = "a pod with a share of a GPU has one device in one container";
        for amounts in
            [&[(SHARED, 2)][..], &[(SHARED, 1), (SHARED, 1)], &[(SHARED, 1), (FRACTION, 1)], &[(SHARED, 1), (WHOLE, 1)]]
        {
            let two = pod("two", &containers(amounts));
            for words in [one_device, exclusive] {
                Actor::Admin.check(&world.client, Verb::Create, pods, &two, Some(words)).await?;
            }
        }
        for (field, key) in [
            ("labels", "training.kubeflow.org/job-name"),
            ("labels", "volcano.sh/job-name"),
            ("annotations", "scheduling.k8s.io/group-name"),
            ("labels", "kueue.x-k8s.io/pod-group-name"),
            ("labels", "scheduling.x-k8s.io/pod-group"),
        ] {
            let mut member = pod("member", &containers(&[(SHARED, 1)]));
            member["metadata"][field] = json!({key: "gang"});
            for words in [&format!("{key}: the pods of a gang wait for each other"), exclusive] {
                Actor::Admin.check(&world.client, Verb::Create, pods, &member, Some(words)).await?;
            }
            member["spec"] = containers(&[(WHOLE, 1)]);
            Actor::Admin.check(&world.client, Verb::Create, pods, &member, None).await?;
        }
        let mut annotated = pod("annotated", &containers(&[(SHARED, 1)]));
        annotated["metadata"]["annotations"] = json!({"gpu-fraction": "0.5"});
        let words = "ask in limits for a resource of the grant, in whole numbers: ";
        Actor::Admin.check(&world.client, Verb::Create, pods, &annotated, Some(words)).await?;
        // Kubernetes itself: no policy can answer before its validation
        let half = pod(
            "half",
            &merged(
                pod_spec(WHOLE),
                json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {WHOLE: "0.5"}}}]}),
            ),
        );
        Actor::Admin.check(&world.client, Verb::Create, pods, &half, Some("must be an integer")).await?;
        joins_a_gang_later(&world, exclusive).await?;
        jobs(&world, exclusive).await
    };
    world.keeping_evidence("sharing-admission", body).await;
}

/// A pod with a share that waits gets no gang from its team. A controller of a scheduler, with rights on all namespaces, puts each pod into one.
async fn joins_a_gang_later(world: &World, exclusive: &str) -> Result<()> {
    const OWNER: Actor = Actor::Person("sam", &["team-s"]);
    let (shared, whole) =
        ("/api/v1/namespaces/sharers/pods/later-share", "/api/v1/namespaces/sharers/pods/later-whole");
    for (name, resource) in [("later-share", SHARED), ("later-whole", WHOLE)] {
        let gate = json!({"schedulingGates": [{"name": "example.com/later"}]});
        let waiting = pod(name, &merged(containers(&[(resource, 1)]), gate));
        OWNER.does(&world.client, Verb::Create, "/api/v1/namespaces/sharers/pods", &waiting).await?;
    }
    let words = "volcano.sh/job-name: the pods of a gang wait for each other";
    for (actor, path, field, key, refused) in [
        (OWNER, shared, "labels", "volcano.sh/job-name", Some(words)),
        (OWNER, shared, "annotations", "volcano.sh/job-name", Some(exclusive)),
        (OWNER, shared, "labels", "example.com/job-name", None),
        (OWNER, whole, "labels", "volcano.sh/job-name", None),
        (Actor::Admin, shared, "annotations", "scheduling.k8s.io/group-name", None),
    ] {
        let body = json!({"metadata": {field: {key: "gang"}}});
        actor.check(&world.client, Verb::Merge, path, &body, refused).await?;
    }
    for path in [shared, whole] {
        OWNER.does(&world.client, Verb::Delete, path, &json!({})).await?;
    }
    Ok(())
}

/// Jobs with several pods at a time are refused on shares only.
async fn jobs(world: &World, exclusive: &str) -> Result<()> {
    let job = |numbers: Value, resource: &str| {
        let template = json!({"spec": merged(containers(&[(resource, 1)]), json!({"restartPolicy": "Never"}))});
        let spec = merged(json!({"template": template}), numbers);
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec})
    };
    let cron = |job: &Value| {
        let spec = json!({"schedule": "0 2 * * *", "jobTemplate": {"spec": job["spec"]}});
        json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": spec})
    };
    for (numbers, resource, refused) in [
        (json!({"parallelism": 2}), SHARED, true),
        (json!({"parallelism": 4, "completions": 4}), FRACTION, true),
        (json!({"parallelism": 1, "completions": 8}), SHARED, false),
        (json!({"parallelism": 2}), WHOLE, false),
    ] {
        let job = job(numbers, resource);
        for (path, object) in [("jobs", job.clone()), ("cronjobs", cron(&job))] {
            let path = format!("/apis/batch/v1/namespaces/sharers/{path}");
            for words in ["pods of a job that run at the same time may not use a share", exclusive] {
                Actor::Admin.check(&world.client, Verb::Create, &path, &object, refused.then_some(words)).await?;
            }
        }
    }
    Ok(())
}

/// What a user copies from the catalog is admitted as it is (C9).
#[tokio::test]
async fn template_of_each_profile_passes_a_server_dry_run() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        catalog(&world).await?;
        world.set(&[team("templates", "Trusted", true)]).await?;
        for (mode, _, resource, _) in modes() {
            eventually(&format!("templates: {mode} is granted"), PATIENCE, || async {
                Ok(match granted(&world, "templates", resource).await? {
                    Ok(true) => Ok(()),
                    other => Err(format!("{other:?}")),
                })
            })
            .await?;
        }
        let done = product::kubectl_gpu(&world.lab.kubeconfig_path(), &["catalog", "-o", "json"]).await?;
        let catalog: Value = serde_json::from_slice(&done.stdout).map_err(|error| Error::Wrong(error.to_string()))?;
        for (mode, _, resource, _) in modes() {
            let entry = catalog["entries"].as_array().into_iter().flatten().find(|entry| entry["profile"] == mode);
            let template = entry.and_then(|entry| entry["podTemplate"].as_str()).unwrap_or_default();
            let pod: Value = serde_saphyr::from_str(template).map_err(|error| Error::Wrong(error.to_string()))?;
            ensure(template.contains(&format!("{resource}: 1")), template)?;
            Actor::Admin.check(&world.client, Verb::Create, "/api/v1/namespaces/templates/pods", &pod, None).await?;
        }
        Ok(())
    };
    world.keeping_evidence("catalog-templates", body).await;
}
