//! Rules of the API server about `spec.virtualCluster`: which values it accepts, and which of them may change.

use e2e::{
    World,
    actor::{Actor, Verb},
    fixtures::{merged, tenant},
};
use serde_json::{Value, json};

const TEAM: &str = "vc-rules";

fn with(cluster: Value) -> Value {
    let mut team = tenant(TEAM, &[]);
    let cluster = merged(json!({"version": "0.36.1"}), cluster);
    team["spec"] = merged(team["spec"].take(), json!({"virtualCluster": cluster, "deletionProtection": false}));
    team
}

#[tokio::test]
async fn resources_and_storage_have_bounded_values() {
    let world = World::enter_api().await.unwrap();
    let cases = [
        (json!({"resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"ephemeral-storage": "2Gi"}}}), None),
        (
            json!({"resources": {"requests": {"nvidia.com/gpu": "1"}}}),
            Some("spec.virtualCluster.resources.requests: write cpu, memory and ephemeral-storage"),
        ),
        (json!({"resources": {"limits": {"memory": "-1Gi"}}}), Some("spec.virtualCluster.resources.limits.memory")),
        (json!({"storage": {"size": "10Gi", "class": "fast", "reclaim": "Retain"}}), None),
        (json!({"storage": {"size": "0Gi"}}), Some("spec.virtualCluster.storage.size")),
        (json!({"storage": {"class": "Fast"}}), Some("spec.virtualCluster.storage.class")),
        (json!({"storage": {"reclaim": "Keep"}}), Some("spec.virtualCluster.storage.reclaim")),
    ];
    let path = "/apis/gputenancy.io/v1alpha1/gputenants";
    for (cluster, refusal) in cases {
        Actor::Admin.check(&world.client, Verb::Create, path, &with(cluster), refusal).await.unwrap();
    }
}

#[tokio::test]
async fn volume_is_fixed_while_the_virtual_cluster_exists() {
    let world = World::enter_api().await.unwrap();
    world.set(&[with(json!({"storage": {"size": "10Gi"}}))]).await.unwrap();
    let path = format!("/apis/gputenancy.io/v1alpha1/gputenants/{TEAM}");
    let removed = json!({"spec": {"virtualCluster": null}});
    let size = Some("spec.virtualCluster.storage.size: it cannot be added, changed or removed");
    for (cluster, refusal) in [
        (json!({"storage": {"size": "20Gi"}}), size),
        (json!({"storage": null}), size),
        (
            json!({"storage": {"class": "fast"}}),
            Some("spec.virtualCluster.storage.class: it cannot be added, changed or removed"),
        ),
        (json!({"storage": {"reclaim": "Retain"}, "suspend": true}), None),
    ] {
        let change = json!({"spec": {"virtualCluster": cluster}});
        Actor::Admin.check(&world.client, Verb::Merge, &path, &change, refusal).await.unwrap();
    }
    Actor::Admin.check(&world.client, Verb::Merge, &path, &removed, None).await.unwrap();

    let set = async |more: &[&str], fields: &str| {
        let args = [&["patch", "gputenant", TEAM, "--type=merge", "-p", fields][..], more].concat();
        world.kubectl(&args).await.unwrap();
    };
    let status = ["--subresource=status"];
    set(&[], r#"{"spec": {"virtualCluster": {"storage": {"reclaim": "Retain"}}}}"#).await;
    set(&status, r#"{"status": {"virtualCluster": {"reclaim": "Delete"}}}"#).await;
    let unread = Some("spec.virtualCluster: the controller has not read storage.reclaim: Retain yet");
    Actor::Admin.check(&world.client, Verb::Merge, &path, &removed, unread).await.unwrap();
    set(&status, r#"{"status": {"virtualCluster": {"reclaim": "Retain"}}}"#).await;
    Actor::Admin.check(&world.client, Verb::Merge, &path, &removed, None).await.unwrap();
}
