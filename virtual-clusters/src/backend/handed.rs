//! Objects that are handed to another controller: found, applied, kept as wanted, deleted.
//!
//! Their whole `spec` is this program's. Server-side apply leaves fields of others in place, and some of them change what is installed
//! (`valuesFrom`, `postRenderers`, a second source): [`change`] removes these.

use gputenancy_crds::{names as labels, reasons};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
    core::Status,
};
use serde_json::{Map, Value, json};

use super::text;
use crate::{live::includes, names, report::Report};

/// A custom resource of another controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group.
    pub group: &'static str,
    /// Version of the API.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// Its resource.
    pub plural: &'static str,
    /// The product that serves it.
    pub product: &'static str,
}

impl Resource {
    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: self.group.into(),
            version: self.version.into(),
            api_version: self.api_version(),
            kind: self.kind.into(),
            plural: self.plural.into(),
        };
        Api::namespaced_with(client.clone(), namespace, &resource)
    }

    /// The API server does not know the resource.
    fn not_installed(&self) -> Report {
        let message = format!(
            "the API server has no {}.{} of version {}: install {}, or remove spec.virtualCluster and choose another backend",
            self.plural, self.group, self.version, self.product
        );
        Report::failed(reasons::BACKEND_NOT_INSTALLED, message)
    }
}

/// An object to hand on.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its resource.
    pub resource: Resource,
    /// The whole object.
    pub content: Value,
    /// Place of values that must be equal to the last field: elsewhere a missing field equals an empty one.
    pub exact: &'static str,
    /// Fields of the spec that the API server or the controller fills in.
    pub defaults: &'static [&'static str],
}

/// What became of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Handed {
    /// It is as wanted; its present content.
    Live(Value),
    /// It cannot be written; why.
    Refused(Report),
}

/// What the API server has under a name.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    /// No such resource.
    NotInstalled,
    /// No such object.
    Absent,
    /// The object.
    Present(Value),
}

/// What has to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// A merge patch that removes fields of others.
    pub remove: Option<Value>,
    /// The object has to be applied.
    pub apply: bool,
}

/// What has to be written so that the live object is as wanted. Pure.
pub fn change(live: &Value, wanted: &Wanted) -> Change {
    let part = |value: &Value, at: &str| value.pointer(at).cloned().unwrap_or_default();
    let both = |at: &str| (part(live, at), part(&wanted.content, at));
    let ((spec, wanted_spec), (labels, wanted_labels)) = (both("/spec"), both("/metadata/labels"));
    let (finalizers, wanted_finalizers) = both("/metadata/finalizers");
    let names = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let finalized = names(&wanted_finalizers).iter().all(|f| names(&finalizers).contains(f));
    let (exact, wanted_exact) = both(wanted.exact);
    let remove = foreign(&spec, &wanted_spec, "", wanted.defaults).map(|spec| json!({"spec": spec}));
    let same = includes(&spec, &wanted_spec) && includes(&labels, &wanted_labels) && finalized && exact == wanted_exact;
    Change { apply: !same, remove }
}

/// Fields that are not wanted, as a merge patch that removes them.
fn foreign(live: &Value, wanted: &Value, path: &str, defaults: &[&str]) -> Option<Value> {
    let (Value::Object(live), Value::Object(wanted)) = (live, wanted) else { return None };
    let mut removed = Map::new();
    for (key, value) in live {
        let path = format!("{path}/{key}");
        let inner = match wanted.get(key) {
            Some(wanted) => foreign(value, wanted, &path, defaults),
            None => (!defaults.contains(&path.as_str())).then_some(Value::Null),
        };
        removed.extend(inner.map(|fields| (key.clone(), fields)));
    }
    (!removed.is_empty()).then_some(Value::Object(removed))
}

/// Was the object written by this program for the tenant? Pure.
fn ours(live: &Value, tenant: &str) -> bool {
    let label = |key: &str| live.pointer("/metadata/labels").and_then(|l| l.get(key)).and_then(Value::as_str);
    label(labels::MANAGED_BY_LABEL) == Some(names::MANAGED_BY) && label(labels::TENANT_LABEL) == Some(tenant)
}

/// Is it the object that is missing, and not its resource? The API server names only an object that it has looked for.
fn is_object_missing(status: &Status, name: &str) -> bool {
    status.details.as_ref().is_some_and(|details| details.name == name)
}

async fn find(client: &Client, resource: &Resource, namespace: &str, name: &str) -> kube::Result<Found> {
    match resource.api(client, namespace).get(name).await {
        // an object of the API server always serializes
        Ok(object) => Ok(Found::Present(serde_json::to_value(object).unwrap_or_default())),
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            Ok(if is_object_missing(&status, name) { Found::Absent } else { Found::NotInstalled })
        }
        Err(error) => Err(error),
    }
}

/// Makes the object as wanted. At rest it is only read.
pub async fn hand_on(client: &Client, wanted: &Wanted, tenant: &str) -> Result<Handed, String> {
    let Wanted { resource, content, .. } = wanted;
    let (namespace, name) = (text(content, "/metadata/namespace"), text(content, "/metadata/name"));
    let failed = |error: kube::Error| refused(resource, (namespace, name), &error);
    let found = find(client, resource, namespace, name).await.map_err(failed)?;
    let change = match &found {
        Found::NotInstalled => return Ok(Handed::Refused(resource.not_installed())),
        Found::Absent => Change { apply: true, remove: None },
        Found::Present(live) if ours(live, tenant) => change(live, wanted),
        Found::Present(_) => {
            let message = format!(
                "{} {namespace}/{name} exists and was not written for this tenant: delete or rename it",
                resource.kind
            );
            return Ok(Handed::Refused(Report::failed(reasons::BACKEND_FAILED, message)));
        }
    };
    let api = resource.api(client, namespace);
    if let Some(remove) = &change.remove {
        tracing::info!(kind = resource.kind, namespace, name, fields = %remove, "removing fields that others have added");
        api.patch(name, &merging(), &Patch::Merge(remove)).await.map_err(failed)?;
    }
    match found {
        Found::Present(live) if change == Change::default() => Ok(Handed::Live(live)),
        _ => {
            let params = PatchParams::apply(names::MANAGER).force();
            let applied = api.patch(name, &params, &Patch::Apply(content)).await.map_err(failed)?;
            Ok(Handed::Live(serde_json::to_value(applied).unwrap_or_default()))
        }
    }
}

/// Deletes the object, if it is of this tenant; true: it still exists, because its controller deletes what it has installed. `before`: a merge
/// patch that its deletion needs.
pub async fn delete(
    client: &Client,
    resource: &Resource,
    (namespace, name, tenant): (&str, &str, &str),
    before: Option<&Value>,
) -> kube::Result<bool> {
    let Found::Present(live) = find(client, resource, namespace, name).await? else { return Ok(false) };
    if !ours(&live, tenant) {
        return Ok(false);
    }
    if text(&live, "/metadata/deletionTimestamp").is_empty() {
        let api = resource.api(client, namespace);
        if let Some(before) = before {
            api.patch(name, &merging(), &Patch::Merge(before)).await?;
        }
        match api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(false),
            other => drop(other?),
        }
    }
    Ok(true)
}

fn merging() -> PatchParams {
    PatchParams { field_manager: Some(names::MANAGER.into()), ..PatchParams::default() }
}

fn refused(resource: &Resource, (namespace, name): (&str, &str), error: &kube::Error) -> String {
    format!("cannot read or write {} {namespace}/{name}: {error}", resource.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOURCE: Resource =
        Resource { group: "example.io", version: "v1", kind: "Thing", plural: "things", product: "the product" };

    fn wanted() -> Wanted {
        let content = json!({
            "metadata": {"name": "a", "labels": {"app.kubernetes.io/managed-by": "gputenancy-virtual-clusters", "gputenancy.io/tenant": "team-a"}, "finalizers": ["f"]},
            "spec": {"values": {"on": false, "list": [1]}, "chart": {"version": "1"}},
        });
        Wanted { resource: RESOURCE, content, exact: "/spec/values", defaults: &["/chart/strategy"] }
    }

    fn changed(edit: impl Fn(&mut Value)) -> Change {
        let mut live = wanted().content;
        live["metadata"]["generation"] = json!(3);
        live["metadata"]["finalizers"] = json!(["another", "f"]);
        live["spec"]["chart"]["strategy"] = json!("filled in");
        edit(&mut live);
        change(&live, &wanted())
    }

    #[test]
    fn nothing_is_written_at_rest() {
        assert_eq!(changed(|_| ()), Change::default());
    }

    #[test]
    fn changed_and_missing_fields_are_applied() {
        let apply = Change { apply: true, remove: None };
        assert_eq!(changed(|live| live["spec"]["chart"]["version"] = json!("2")), apply);
        assert_eq!(changed(|live| live["metadata"]["finalizers"] = json!([])), apply);
        // without it the default of the chart would count, which can be true
        let without = changed(|live| drop(live["spec"]["values"].as_object_mut().and_then(|v| v.remove("on"))));
        assert_eq!(without, apply);
    }

    #[test]
    fn fields_of_others_are_removed() {
        let change = changed(|live| {
            live["spec"]["valuesFrom"] = json!([{"kind": "Secret"}]);
            live["spec"]["values"]["experimental"] = json!({"x": 1});
        });
        assert_eq!(change.remove, Some(json!({"spec": {"valuesFrom": null, "values": {"experimental": null}}})));
    }

    #[test]
    fn object_of_another_tenant_or_author_is_not_ours() {
        assert!(ours(&wanted().content, "team-a") && !ours(&wanted().content, "team-b"));
        assert!(!ours(&json!({"metadata": {"name": "a"}}), "team-a"));
    }

    #[test]
    fn missing_resource_differs_from_a_missing_object() {
        let missing = |details: Value| {
            let answer =
                json!({"status": "Failure", "message": "", "reason": "NotFound", "code": 404, "details": details});
            is_object_missing(&serde_json::from_value(answer).unwrap(), "team-a")
        };
        assert!(missing(json!({"name": "team-a", "kind": "things"})));
        assert!(!missing(json!({})));
        assert!(!missing(Value::Null));
        let report = RESOURCE.not_installed();
        assert!(report.message.contains("no things.example.io of version v1: install the product"), "{report:?}");
        assert_eq!(report.reason, reasons::BACKEND_NOT_INSTALLED);
    }
}
