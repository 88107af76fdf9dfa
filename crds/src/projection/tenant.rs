//! Tenants.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use super::strip_metadata;
use crate::GpuTenant;

/// As [`strip_metadata`]; keeps the field managers that wrote the guarantees last, by which an edit of a person differs from one of a controller.
pub fn project_tenant(tenant: &mut GpuTenant) {
    let mut writers = tenant.metadata.managed_fields.take().unwrap_or_default();
    writers.retain(|entry| entry.fields_v1.is_some());
    let last = writers.iter().filter_map(|entry| entry.time.clone()).max();
    writers.retain(|entry| entry.time == last);
    for ManagedFieldsEntry { api_version, fields_type, fields_v1, operation, .. } in &mut writers {
        (*api_version, *fields_type, *fields_v1, *operation) = (None, None, None, None);
    }
    strip_metadata(tenant);
    tenant.metadata.managed_fields = (!writers.is_empty()).then_some(writers);
}
