//! Claims of devices, which quotas of extended resources do not count: the mark of the scheduler's own claims, claims in an older version, and
//! access as an administrator.

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    manifests::{manifests, refusal},
    objects::ensure,
};
use serde_json::{Value, json};

use crate::bypass::{OWNER, collection, policies_type_checked, two_teams};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/t/resourceclaims";
/// The API server leaves claims with it out of a quota if a pod owns them.
const MARK: &str = "resource.kubernetes.io/extended-resource-claim";
const SCHEDULER: Actor = Actor::Person("system:kube-scheduler", &[]);
/// A class that tenants may claim.
const CHANNEL: &str = "compute-domain-default-channel.nvidia.com";
const FORGED: Option<&str> = Some("the scheduler writes it on claims that quotas count");

fn claim(name: &str, class: &str, metadata: &Value) -> Value {
    let request = json!({"name": "g", "exactly": {"deviceClassName": class}});
    let mut claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}});
    for (key, value) in metadata.as_object().into_iter().flatten() {
        claim["metadata"][key] = value.clone();
    }
    claim
}

/// Claims of the scheduler for a pod are admitted, and no other user marks one as such, neither at once nor later. `pod`: path of a pod of the team.
pub(crate) async fn marks_of_the_scheduler(world: &World, pod: &str) -> Result<()> {
    let pod = Actor::Admin.may(&world.client, Verb::Merge, pod, &json!({})).await?;
    let pod = pod.map_err(|status| Error::Wrong(status.message))?["metadata"].clone();
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"], "controller": true, "blockOwnerDeletion": true}]);
    let marked = json!({"annotations": {MARK: "true"}, "ownerReferences": owner});
    let (own, gpu) = (claim("own", CHANNEL, &json!({})), claim("of-the-scheduler", "gpu.nvidia.com", &marked));
    OWNER.does(&world.client, Verb::Create, CLAIMS, &own).await?;
    for (actor, verb, path, body, refused) in [
        (OWNER, Verb::Create, CLAIMS.to_owned(), gpu.clone(), FORGED),
        (Actor::Admin, Verb::Create, CLAIMS.to_owned(), claim("forged", CHANNEL, &marked), FORGED),
        (SCHEDULER, Verb::Create, CLAIMS.to_owned(), gpu.clone(), None),
        (OWNER, Verb::Merge, format!("{CLAIMS}/own"), json!({"metadata": marked}), FORGED),
        (OWNER, Verb::Merge, format!("{CLAIMS}/own"), json!({"metadata": {"annotations": {MARK: "false"}}}), FORGED),
        (OWNER, Verb::Merge, format!("{CLAIMS}/own"), json!({"metadata": {"ownerReferences": owner}}), None),
        (
            OWNER,
            Verb::Merge,
            format!("{CLAIMS}/own"),
            json!({"metadata": {"annotations": {"example.com/note": "x"}}}),
            None,
        ),
    ] {
        actor.check(&world.client, verb, &path, &body, refused).await?;
    }
    // a controller takes an owner off the scheduler's claim, and labels it
    SCHEDULER.does(&world.client, Verb::Create, CLAIMS, &gpu).await?;
    for (metadata, refused) in [
        (json!({"labels": {"a": "b"}}), None),
        (json!({"ownerReferences": null}), None),
        (json!({"annotations": {MARK: null}}), Some("quotas do not count claims of this class")),
    ] {
        let path = format!("{CLAIMS}/of-the-scheduler");
        OWNER.check(&world.client, Verb::Merge, &path, &json!({"metadata": metadata}), refused).await?;
    }
    for name in ["own", "of-the-scheduler"] {
        Actor::Admin.does(&world.client, Verb::Delete, &format!("{CLAIMS}/{name}"), &json!({})).await?;
    }
    Ok(())
}

/// Without the label of the namespace Kubernetes admits no access as an administrator, and a team cannot set the label.
pub(crate) async fn admin_access_without_label(world: &World) -> Result<()> {
    let mut admin = claim("admin", CHANNEL, &json!({}));
    admin["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = json!(true);
    let words = Some("admin access to devices requires the `resource.kubernetes.io/admin-access: true` label");
    OWNER.check(&world.client, Verb::Create, CLAIMS, &admin, words).await?;
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    OWNER.check(&world.client, Verb::Merge, "/api/v1/namespaces/t", &label, Some("forbidden")).await
}

#[tokio::test]
async fn claims_of_an_older_version_are_judged_as_converted() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        let versions = world.kubectl(&["api-versions"]).await?;
        ensure(
            versions.contains("resource.k8s.io/v1beta1"),
            "the lab's API server does not serve resource.k8s.io/v1beta1: start the lab again with `lab down` and `lab up`",
        )?;
        two_teams(&world).await?;
        policies_type_checked(&world).await?;
        let admin = "resource.kubernetes.io/admin-access=true";
        world.kubectl(&["label", "--overwrite", "namespace", "t", admin]).await?;
        let mut wrong = Vec::new();
        for mut object in manifests(&world, "claims-v1beta1.yaml").await? {
            let name = object["metadata"]["name"].to_string();
            let words = refusal(&object).ok_or_else(|| Error::Wrong(format!("{name} has no text of its refusal")))?;
            object["metadata"].as_object_mut().unwrap().remove("namespace");
            match OWNER.may(&world.client, Verb::Create, &collection(&object), &object).await? {
                Err(status) if status.message.contains(&words) => {}
                other => wrong.push(format!("{name}: expected {words:?}, got {:?}", other.map_err(|s| s.message))),
            }
        }
        ensure(wrong.is_empty(), wrong.join("\n"))?;
        let mut usual = claim("usual", CHANNEL, &json!({}));
        usual["apiVersion"] = json!("resource.k8s.io/v1beta1");
        usual["spec"]["devices"]["requests"] = json!([{"name": "g", "deviceClassName": CHANNEL}]);
        OWNER.check(&world.client, Verb::Create, &collection(&usual), &usual, None).await
    };
    world.keeping_evidence("bypass-claims", body).await;
}
