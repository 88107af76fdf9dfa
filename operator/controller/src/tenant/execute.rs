//! Executes the writes of a tenant.

use gputenancy_cluster::{desired::version, events::EventType};
use gputenancy_crds::{names, reasons};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::{
    Context, TenantError,
    decide::{
        pull_secrets,
        write::{AccountPullSecrets, PullSecretCopy, Write, absent},
    },
    failed,
    observe::{Observed, managed::Managed, versions::Written},
    render, report,
};
use crate::{
    apply::{Part, Writer},
    cache::{SlimAccount, SlimSecret},
};

/// Executes one write and reports its event, if it has one.
pub(super) async fn execute(seen: &Observed, context: &Context, write: Write) -> Result<(), TenantError> {
    let event = report::event_of(&write);
    perform(seen, context, write).await?;
    if let Some((reason, note)) = event {
        report::publish(seen, context, EventType::Normal, reason, note).await;
    }
    Ok(())
}

async fn perform(seen: &Observed, context: &Context, write: Write) -> Result<(), TenantError> {
    let writer = &context.writer;
    match write {
        Write::CreateNamespace(namespace) => {
            let doing = format!("creating namespace {}", namespace.name_any());
            writer.create(Part::Tenant, &*namespace).await.map(drop).map_err(failed(doing))
        }
        Write::LabelNamespace { namespace, retained: _ } => {
            let meta = &namespace.metadata;
            let fields = json!({"labels": meta.labels, "annotations": meta.annotations.clone().unwrap_or_default()});
            apply_metadata(writer, "labelling", &namespace, fields).await
        }
        Write::AdoptNamespace(namespace) => {
            let meta = &namespace.metadata;
            let fields = json!({"labels": meta.labels, "annotations": meta.annotations, "resourceVersion": meta.resource_version});
            apply_metadata(writer, "adopting", &namespace, fields).await
        }
        Write::Apply { kind, namespace, object, recreate } => {
            let tenant = seen.name();
            if recreate {
                delete(writer, &tenant, kind, &namespace).await?;
            }
            let doing = format!("applying {}", kind.describe(&tenant, &namespace));
            let key = (&*namespace, &*kind.name(&tenant));
            let applied = writer.apply_as(Part::Tenant, &kind.resource(), key, &object).await;
            context.wrote(&tenant, namespace, Written::Managed(kind), &applied.map_err(failed(doing))?);
            Ok(())
        }
        Write::Delete { kind, namespace } => delete(writer, &seen.name(), kind, &namespace).await,
        Write::ApplyQuota(mut quota) => {
            let namespace = quota.namespace().unwrap_or_default();
            let doing = format!("applying the quota of namespace {namespace}");
            let decided_on = if quota.metadata.uid.is_some() { version(&*quota) } else { 0 };
            let stamp = context.fence().begin(&seen.name(), &namespace, decided_on);
            quota.metadata.annotations = Some([(render::STAMP.to_owned(), stamp.to_string())].into());
            let applied = writer.apply(Part::Tenant, &*quota).await.map_err(failed(doing))?;
            context.fence().done(&seen.name(), &namespace, version(&applied));
            context.wrote(&seen.name(), namespace, Written::Managed(Managed::Quota), &applied);
            Ok(())
        }
        Write::ApplyPullSecret(copy) => apply_pull_secret(seen, context, *copy).await,
        Write::SetPullSecrets(account) => set_pull_secrets(seen, context, account).await,
        Write::DeletePullSecret { namespace, name, uid } => delete_pull_secret(writer, &namespace, &name, uid).await,
        Write::DeleteNamespace { namespace, uid } => {
            let doing = format!("deleting namespace {namespace}");
            writer.delete(&Api::<Namespace>::all(writer.client()), &namespace, uid).await.map_err(failed(doing))
        }
        Write::ReleaseNamespace { namespace, created } => release(writer, &seen.name(), &namespace, created).await,
        Write::Wake(wake) => {
            wake.perform(writer, &seen.name(), seen.now).await?;
            context.woken(&seen.name(), &wake);
            Ok(())
        }
        Write::RemoveFinalizer(note) => {
            if let Some(note) = note {
                report::publish(seen, context, EventType::Warning, reasons::DELETION_BLOCKED, note).await;
            }
            writer.set_finalizer(&seen.tenant, false).await.map_err(failed("removing the finalizer"))
        }
    }
}

async fn apply_metadata(
    writer: &Writer,
    doing: &str,
    namespace: &Namespace,
    metadata: Value,
) -> Result<(), TenantError> {
    let name = namespace.name_any();
    let applied = writer.apply_fields::<Namespace>(Part::Tenant, &name, json!({"metadata": metadata})).await;
    applied.map(drop).map_err(failed(format!("{doing} namespace {name}")))
}

async fn delete(writer: &Writer, tenant: &str, kind: Managed, namespace: &str) -> Result<(), TenantError> {
    let doing = format!("deleting {}", kind.describe(tenant, namespace));
    writer.delete_as(&kind.resource(), (namespace, &kind.name(tenant))).await.map_err(failed(doing))
}

async fn apply_pull_secret(seen: &Observed, context: &Context, mut copy: PullSecretCopy) -> Result<(), TenantError> {
    if copy.recreate {
        delete_pull_secret(&context.writer, &copy.namespace, &copy.name, copy.decided_on.1.take()).await?;
        copy.decided_on = absent();
    }
    let doing = format!("applying image pull secret {} of namespace {}", copy.name, copy.namespace);
    let applied =
        context.writer.apply(Part::Tenant, &pull_secrets::secret(&seen.tenant, &copy)).await.map_err(failed(doing))?;
    context.wrote(&seen.name(), copy.namespace, Written::PullSecret(copy.name), &applied);
    Ok(())
}

async fn delete_pull_secret(
    writer: &Writer,
    namespace: &str,
    name: &str,
    uid: Option<String>,
) -> Result<(), TenantError> {
    let doing = format!("deleting image pull secret {name} of namespace {namespace}");
    let api = Api::<SlimSecret>::namespaced(writer.client(), namespace);
    writer.delete(&api, name, uid).await.map_err(failed(doing))
}

/// The list can only be written as a whole: with the version, so that what the team has just added is not lost.
async fn set_pull_secrets(seen: &Observed, context: &Context, account: AccountPullSecrets) -> Result<(), TenantError> {
    let AccountPullSecrets { namespace, version, names } = account;
    let names: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let fields = json!({"metadata": {"resourceVersion": version}, "imagePullSecrets": names});
    let api = Api::<SlimAccount>::namespaced(context.writer.client(), &namespace);
    match context.writer.merge(&api, names::DEFAULT_ACCOUNT, &fields).await {
        Ok(applied) => {
            context.wrote(&seen.name(), namespace, Written::ServiceAccount, &applied);
            Ok(())
        }
        // kube-controller-manager recreates it, which triggers another reconcile
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(failed(format!("setting image pull secrets in namespace {namespace}"))(error)),
    }
}

/// Deletes all managed objects of a namespace that stays, and last the labels by which it is found.
async fn release(writer: &Writer, tenant: &str, namespace: &str, created: bool) -> Result<(), TenantError> {
    for kind in Managed::all() {
        delete(writer, tenant, kind, namespace).await?;
    }
    let mut labels = json!({names::TENANT_LABEL: null, render::RETAINED_FROM: null});
    if let (true, Some(labels)) = (created, labels.as_object_mut()) {
        labels.insert(names::MANAGED_BY_LABEL.into(), Value::Null);
    }
    // a later tenant that adopts it does not delete it
    let annotations = json!({render::CREATED_FOR: null, render::ADOPTED: null});
    let fields = json!({"metadata": {"labels": labels, "annotations": annotations}});
    let doing = format!("releasing namespace {namespace}");
    writer.merge(&Api::<Namespace>::all(writer.client()), namespace, &fields).await.map(drop).map_err(failed(doing))
}
