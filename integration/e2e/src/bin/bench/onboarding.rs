//! Two hundred tenants: how fast they become Ready, against a bare client that writes the same objects.

use std::time::Instant;

use e2e::{
    Result, World,
    objects::delete_everything,
    scene::{mig_profile, pool, tenant},
    wait::{PATIENCE, eventually},
};
use futures::{StreamExt, TryStreamExt, stream};
use gputenancy_crds::{GpuTenant, condition};
use k8s_openapi::api::{
    core::v1::{Namespace, ResourceQuota},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const TENANTS: usize = 200;
const IN_FLIGHT: usize = 8;

/// Onboards the tenants through the operator, then writes copies of what it made with a bare client.
pub async fn measure(world: &World) -> Result<()> {
    delete_everything(&world.client).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"])]).await?;
    let api = Api::<GpuTenant>::all(world.client.clone());
    let apply = PatchParams::apply("bench").force();

    let start = Instant::now();
    stream::iter(0..TENANTS)
        .map(|i| {
            let (api, apply) = (api.clone(), apply.clone());
            async move {
                let mut body = tenant(&format!("bench-{i:03}"), &[]);
                body["spec"]["owners"] = json!([{"kind": "Group", "name": format!("team-{i}")}]);
                api.patch(&format!("bench-{i:03}"), &apply, &Patch::Apply(body)).await
            }
        })
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<Vec<_>>()
        .await?;
    eventually("all tenants Ready", PATIENCE * 2, || async {
        let tenants = api.list(&ListParams::default()).await?;
        let ready = tenants
            .iter()
            .filter(|t| t.status.as_ref().is_some_and(|s| condition::is_true(&s.conditions, "Ready")))
            .count();
        Ok(if ready == TENANTS { Ok(()) } else { Err(format!("{ready} Ready")) })
    })
    .await?;
    let ours = start.elapsed().as_secs_f64();

    let model = copy_of(world, "bench-000").await?;
    let per_tenant = model.len();
    let start = Instant::now();
    stream::iter(0..TENANTS)
        .map(|i| write_all(world, &model, format!("bare-{i:03}"), &apply))
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<Vec<_>>()
        .await?;
    let bare = start.elapsed().as_secs_f64();
    let rate = |seconds: f64| 200.0 / seconds;
    println!(
        "onboarding: {TENANTS} tenants, {per_tenant} objects each: operator {:.1} tenants/s, bare client with {IN_FLIGHT} in flight {:.1} tenants/s, ratio {:.2}",
        rate(ours),
        rate(bare),
        bare / ours,
    );
    let namespaces = Api::<Namespace>::all(world.client.clone());
    for i in 0..TENANTS {
        namespaces.delete(&format!("bare-{i:03}"), &DeleteParams::background()).await.ok();
    }
    delete_everything(&world.client).await
}

/// The objects of one tenant as the operator wrote them, stripped to what an apply sends.
async fn copy_of(world: &World, name: &str) -> Result<Vec<(&'static str, Value)>> {
    let strip = |mut value: Value, api: &str, kind: &str| {
        let labels = value["metadata"]["labels"].clone();
        let name = value["metadata"]["name"].clone();
        value["metadata"] = json!({"name": name, "labels": labels});
        value.as_object_mut().map(|o| o.remove("status"));
        value["apiVersion"] = api.into();
        value["kind"] = kind.into();
        value
    };
    let text = |e: serde_json::Error| e2e::Error::Text { what: "an object".into(), why: e.to_string() };
    let client = &world.client;
    let namespace = Api::<Namespace>::all(client.clone()).get(name).await?;
    let mut model = vec![(
        "namespace",
        strip(json!({"metadata": {"name": namespace.name_any(), "labels": namespace.labels()}}), "v1", "Namespace"),
    )];
    for quota in Api::<ResourceQuota>::namespaced(client.clone(), name).list(&ListParams::default()).await? {
        model.push(("quota", strip(serde_json::to_value(&quota).map_err(text)?, "v1", "ResourceQuota")));
    }
    for binding in Api::<RoleBinding>::namespaced(client.clone(), name).list(&ListParams::default()).await? {
        model.push((
            "binding",
            strip(serde_json::to_value(&binding).map_err(text)?, "rbac.authorization.k8s.io/v1", "RoleBinding"),
        ));
    }
    Ok(model)
}

async fn write_all(world: &World, model: &[(&'static str, Value)], name: String, apply: &PatchParams) -> Result<()> {
    for (what, body) in model {
        let mut body = body.clone();
        let client = world.client.clone();
        let object = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match *what {
            "namespace" => {
                body["metadata"]["name"] = name.clone().into();
                // the tenant's label is left out: the operator would claim the copy
                body["metadata"]["labels"] = json!({"bench": "bare"});
                Api::<Namespace>::all(client).patch(&name, apply, &Patch::Apply(body)).await.map(drop)?;
            }
            "quota" => Api::<ResourceQuota>::namespaced(client, &name)
                .patch(&object, apply, &Patch::Apply(body))
                .await
                .map(drop)?,
            _ => Api::<RoleBinding>::namespaced(client, &name)
                .patch(&object, apply, &Patch::Apply(body))
                .await
                .map(drop)?,
        }
    }
    Ok(())
}
