//! Publishes the configs for NVIDIA's device plugin.

use gputenancy_cluster::events::EventType;
use gputenancy_crds::{names, reasons};
use gputenancy_decisions::pool::decide::plugin_configs::ConfigsWrite;
use k8s_openapi::api::core::v1::ObjectReference;

use super::{FleetWriter, WriteError, Written};
use crate::apply::Part;

/// Writes the `ConfigMap`, and reports what another client has changed in it.
pub async fn publish(writer: &FleetWriter, write: ConfigsWrite) -> Result<Written, WriteError> {
    let (namespace, name) = (&writer.namespaces.plugin_configs, names::DEVICE_PLUGIN_CONFIG_MAP);
    writer.publish(Part::DevicePlugin, (namespace, name), write.configs.data().clone()).await?;
    if !write.repaired.is_empty() {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        };
        let keys = write.repaired.join(", ");
        let message = format!(
            "another client changed {keys}; restored, because the config of a key never changes: edit the GpuPool or the GpuProfile instead"
        );
        let reason = reasons::DEVICE_PLUGIN_CONFIG_REPAIRED;
        writer.report(regarding, EventType::Warning, reason, "Repair", message).await;
    }
    Ok(Written::Done)
}
