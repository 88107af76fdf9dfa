//! Times that no parser reads, which the API server takes and serves: policies refuse them on a team's pods, and wherever they are operator and
//! agents work on, also after a restart.

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{mig_profile, pod_spec, pool, tenant},
    interrupt,
    objects::{ensure, set_guarantee},
    scenario::{MIG_1G, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use kube::Client;
use serde_json::{Value, json};

/// In UTC a time of the year 10000, which the API server serves with five digits.
const WRITTEN: &str = "9999-12-31T23:59:59-23:59";
const SERVED: &str = "10000-01-01T23:58:59Z";
/// Pods outside of tenants.
const ELSEWHERE: &str = "/api/v1/namespaces/default/pods";
const OWNER: Actor = Actor::Person("owner", &["the-team"]);

/// Metadata with a label, for which [`managed`] then names a manager with the time: the API server ignores managed fields of a new object.
fn odd() -> Value {
    json!({"name": "odd", "namespace": "team", "labels": {"odd": "yes"}})
}

fn managed() -> Value {
    let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:odd": {}}}});
    json!({"metadata": {"managedFields": [{
        "manager": "someone", "operation": "Update", "apiVersion": "v1", "time": WRITTEN, "fieldsType": "FieldsV1", "fieldsV1": fields,
    }]}})
}

/// Objects that are watched and that a team may create: by the path of their collection.
fn objects() -> Vec<(&'static str, Value)> {
    let of_pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "odd", "namespace": "team"});
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": odd(), "involvedObject": of_pod, "reason": "FailedCreate",
        "type": "Warning", "message": "exceeded quota: gputenancy", "lastTimestamp": WRITTEN, "firstTimestamp": WRITTEN,
    });
    let plain = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": odd()});
    vec![
        ("events", event),
        ("secrets", plain("Secret")),
        ("serviceaccounts", plain("ServiceAccount")),
        ("configmaps", plain("ConfigMap")),
        (
            "services",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": odd(), "spec": {"ports": [{"port": 80}]}}),
        ),
    ]
}

/// A pod outside of tenants, on the node of the team's pool: no policy keeps the time from it.
async fn pod_elsewhere(world: &World) -> Result<()> {
    let spec = json!({"nodeName": "gpu-1", "containers": [{
        "name": "c", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", "sleep 3600"],
    }]});
    let metadata = json!({"name": "odd", "labels": {"odd": "yes"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    Actor::Admin.does(&world.client, Verb::Create, ELSEWHERE, &pod).await?;
    let path = format!("{ELSEWHERE}/odd");
    let changed = Actor::Admin.does(&world.client, Verb::Merge, &path, &managed()).await?;
    ensure(changed.to_string().contains(SERVED), format!("the API server serves another time: {changed}"))
}

fn collection(plural: &str) -> String {
    format!("/api/v1/namespaces/team/{plural}")
}

/// Pods of the team that are Ready: read without types, which cannot read them.
async fn ready_pods(client: &Client) -> Result<Vec<String>> {
    let request = http::Request::get(collection("pods")).body(vec![]);
    let list: Value = client.request(request.map_err(|e| Error::Wrong(e.to_string()))?).await?;
    let is_ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
    };
    let names = list["items"].as_array().into_iter().flatten().filter(is_ready);
    Ok(names.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect())
}

async fn are_ready(world: &World, expected: &[&str]) -> Result<()> {
    eventually(&format!("pods {expected:?} Ready"), PATIENCE, || async {
        let found = ready_pods(&world.client).await?;
        Ok(if found == expected { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
}

async fn restarted(world: &World) -> Result<()> {
    let mut team = tenant("team", &[("mig-1g", 1)]);
    team["spec"]["owners"] = json!([{"kind": "Group", "name": "the-team"}]);
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"]), team]).await?;
    tenant_ready(world, "team").await?;
    pool_ready(world, "p").await?;
    for (plural, object) in objects() {
        let path = collection(plural);
        let mut served = OWNER.does(&world.client, Verb::Create, &path, &object).await?;
        // an event has times of its own, which no later patch can read
        if plural != "events" {
            served = OWNER.does(&world.client, Verb::Merge, &format!("{path}/odd"), &managed()).await?;
        }
        ensure(served.to_string().contains(SERVED), format!("the API server serves another time: {served}"))?;
    }
    pod_elsewhere(world).await?;
    let own = json!({"apiVersion": "v1", "kind": "Pod", "metadata": odd(), "spec": pod_spec(MIG_1G)});
    OWNER.does(&world.client, Verb::Create, &collection("pods"), &own).await?;
    let path = format!("{}/odd", collection("pods"));
    OWNER.check(&world.client, Verb::Merge, &path, &managed(), Some("which kubelet cannot read")).await?;
    let condition = json!({"type": "example.com/gate", "status": "True", "lastTransitionTime": WRITTEN});
    let status = json!({"status": {"conditions": [condition]}});
    let refused = Some("which kubelet cannot read");
    Actor::Admin.check(&world.client, Verb::Merge, &format!("{path}/status"), &status, refused).await?;
    are_ready(world, &["odd"]).await?;
    interrupt::kill_leader(world).await?;
    interrupt::kill_agent(world, "gpu-1").await?;
    set_guarantee(&world.client, "team", "mig-1g", 2).await?;
    tenant_ready(world, "team").await?;
    let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": pod_spec(MIG_1G)});
    OWNER.does(&world.client, Verb::Create, &collection("pods"), &other).await?;
    are_ready(world, &["odd", "other"]).await
}

#[tokio::test]
async fn times_that_no_parser_reads_stop_neither_operator_nor_agent() {
    let world = World::enter().await.unwrap();
    world
        .keeping_evidence("unreadable-times", async {
            let held = restarted(&world).await;
            // kubelet never ends it, and the tests' own client cannot read it
            world
                .kubectl(&[
                    "delete",
                    "pod",
                    "odd",
                    "-n",
                    "default",
                    "--force",
                    "--grace-period=0",
                    "--ignore-not-found",
                ])
                .await?;
            held
        })
        .await;
}
