//! The backend `Helm`: this program applies the rendered objects itself.

use gputenancy_cluster::events::EventType;
use gputenancy_crds::{GpuTenant, reasons};

use crate::{
    context::{Context, Memory},
    decide::{self, Write},
    host::{Host, Live},
    render::objects::{self, Object, Replicas},
};

/// Makes the objects in the namespace as rendered; returns whether something was written.
pub async fn apply(
    tenant: &GpuTenant,
    context: &Context,
    (host, memory): (&Host, &mut Memory),
    (key, rendered, live): (&str, &[Object], &[Live]),
    replicas: Replicas,
) -> kube::Result<bool> {
    let mut wanted = rendered.to_vec();
    objects::scale(&mut wanted, replicas);
    // the scale is part of what was applied
    let key = format!("{key} {replicas:?}");
    let complete = memory.complete.as_deref() == Some(&key);
    let mut repaired = Vec::new();
    let writes = decide::writes(&wanted, live, &memory.settled, complete);
    let wrote = !writes.is_empty();
    for write in writes {
        match write {
            Write::Apply { object, repairs } => {
                let version = host.apply(&object).await?;
                let old = live.iter().find(|l| l.kind == object.kind && l.name == object.name);
                let changed = old.and_then(|o| o.version.clone()) != version;
                if let Some(version) = version {
                    memory.settled.insert((object.kind, object.name.clone()), version);
                }
                if repairs && changed {
                    context.metrics.repaired(object.kind.kind);
                    repaired.push(format!("{} {}", object.kind.kind, object.name));
                }
            }
            Write::Delete((kind, name)) => host.delete(kind, &name).await?,
        }
    }
    memory.complete = Some(key);
    if !repaired.is_empty() {
        let note = format!(
            "restored {}, which had been changed or deleted; change spec.virtualCluster instead",
            repaired.join(", ")
        );
        context.publish(tenant, EventType::Warning, reasons::VIRTUAL_CLUSTER_REPAIRED, note).await;
    }
    Ok(wrote)
}
