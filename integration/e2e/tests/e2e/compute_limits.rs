//! Compute limits of fractions by the shim: two pods on one GPU that launch as fast as they can.

use e2e::{
    Error, Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";

#[tokio::test]
async fn fractions_use_the_gpu_for_their_part_of_the_time_at_most() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("compute-limits", async { two_fractions(&world).await }).await;
}

async fn two_fractions(world: &World) -> Result<()> {
    let profile = |name: &str, compute: i32| {
        json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
            "spec": {
                "device": {"fraction": {"memory": "10Gi", "compute": compute}},
                "support": {"expected": "neighbours", "incident": "less than the part"},
            },
        })
    };
    world.set(&[profile("small", 20), profile("large", 50)]).await?;
    world.set(&[pool("p", NODE, &["small", "large"])]).await?;
    let mut team = tenant("team", &[("small", 1), ("large", 1)]);
    let spec = team["spec"].take();
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(spec, sharing);
    world.set(&[team]).await?;
    tenant_ready(world, "team").await?;
    world.set(&[launching("small"), launching("large")]).await?;
    for (name, percent) in [("small", 20.0), ("large", 50.0)] {
        let got = part(world, name).await?;
        // how much less depends on the machine, which has few processors
        ensure(got <= percent + 3.0 && got > 0.0, format!("{name}: {got} percent of the time"))?;
    }
    Ok(())
}

/// A Deployment of one pod that launches kernels, and then prints for which part of the time they ran.
fn launching(profile: &str) -> Value {
    let command = "/usr/bin/cuda-work launch --iteration 1 --millis 8000 && sleep 3600";
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "resources": {"limits": {format!("gputenancy.io/{profile}"): "1"}},
    }));
    deployment("team", profile, 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}

/// The part of the time that a program printed, in percent.
async fn part(world: &World, name: &str) -> Result<f64> {
    let selector = format!("app={name}");
    let text = eventually(&format!("part of the time of {name}"), PATIENCE, || async {
        let text = world.kubectl(&["logs", "-n", "team", "-l", &selector]).await.unwrap_or_default();
        if text.contains("percent=") {
            return Ok(Ok(text));
        }
        let pods = world.kubectl(&["get", "pods", "-n", "team", "-l", &selector, "-o", "wide"]).await?;
        Ok(Err(format!("{text}{pods}")))
    })
    .await?;
    let number = text.split("percent=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    number
        .parse()
        .map_err(|error: std::num::ParseFloatError| Error::Text { what: text.clone(), why: error.to_string() })
}
