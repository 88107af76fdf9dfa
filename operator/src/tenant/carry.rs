//! Carrying out what was decided, write by write.

use std::fmt::Debug;

use gputenancy_crds::{GpuGrant, names, reasons};
use gputenancy_service::events::EventType;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{LimitRange, Namespace, ResourceQuota, Secret},
        networking::v1::NetworkPolicy,
        rbac::v1::RoleBinding,
    },
};
use kube::{Api, Resource, ResourceExt as _};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Context, TenantError,
    context::Kept,
    decide::{Optional, Write},
    failed,
    observe::Observed,
    pull::{Account, PullCopy},
    render,
    report::{news, tell},
};
use crate::{
    apply::{Part, Writer},
    cache::{SlimAccount, SlimSecret, pull::ACCOUNT, version},
};

/// Carries out one write, and tells of it what is to be told.
pub(super) async fn carry_out(seen: &Observed, context: &Context, write: Write) -> Result<(), TenantError> {
    let news = news(&write);
    perform(seen, context, write).await?;
    if let Some((reason, note)) = news {
        tell(seen, context, EventType::Normal, reason, note).await;
    }
    Ok(())
}

async fn perform(seen: &Observed, context: &Context, write: Write) -> Result<(), TenantError> {
    let writer = &context.writer;
    match write {
        Write::Create(namespace) => {
            let doing = format!("creating namespace {}", namespace.name_any());
            writer.create(Part::Tenant, &*namespace).await.map(drop).map_err(failed(doing))
        }
        Write::Label { namespace, retained: _ } => {
            let name = namespace.name_any();
            let fields = json!({"metadata": {"labels": namespace.metadata.labels, "annotations": namespace.metadata.annotations.clone().unwrap_or_default()}});
            let doing = format!("labelling namespace {name}");
            writer.apply_fields::<Namespace>(Part::Tenant, &name, fields).await.map(drop).map_err(failed(doing))
        }
        Write::Adopt(namespace) => {
            let name = namespace.name_any();
            let meta = &namespace.metadata;
            let fields = json!({"metadata": {"labels": meta.labels, "resourceVersion": meta.resource_version}});
            let doing = format!("adopting namespace {name}");
            writer.apply_fields::<Namespace>(Part::Tenant, &name, fields).await.map(drop).map_err(failed(doing))
        }
        Write::Network(policy) => put(context, Kept::Network, &*policy).await,
        Write::Limits(limits) => put(context, Kept::Limits, &*limits).await,
        Write::Classes(quota) => put(context, Kept::Classes, &*quota).await,
        Write::Remove { what, namespace } => match what {
            Optional::Network => take::<NetworkPolicy>(writer, &namespace, render::NETWORK).await,
            Optional::Limits => take::<LimitRange>(writer, &namespace, render::LIMITS).await,
            Optional::Classes => take::<ResourceQuota>(writer, &namespace, render::CLASSES).await,
            Optional::Owners => take::<RoleBinding>(writer, &namespace, render::OWNERS).await,
            Optional::Viewers => take::<RoleBinding>(writer, &namespace, render::VIEWERS).await,
        },
        Write::Grant(grant) => put(context, Kept::Grant, &*grant).await,
        Write::Quota(mut quota) => {
            let namespace = quota.namespace().unwrap_or_default();
            let doing = format!("applying the quota of namespace {namespace}");
            let decided_on = if quota.metadata.uid.is_some() { version(&*quota) } else { 0 };
            let stamp = context.fence().begin(&seen.name(), &namespace, decided_on);
            quota.metadata.annotations = Some([(render::STAMP.to_owned(), stamp.to_string())].into());
            let applied = writer.apply(Part::Tenant, &*quota).await.map_err(failed(doing))?;
            context.fence().done(&seen.name(), &namespace, version(&applied));
            context.note(Kept::Quota, namespace, &applied);
            Ok(())
        }
        Write::Binding { binding, anew } => {
            let (namespace, name) = (binding.namespace().unwrap_or_default(), binding.name_any());
            if anew {
                take::<RoleBinding>(writer, &namespace, &name).await?;
            }
            put(context, if name == render::VIEWERS { Kept::Viewers } else { Kept::Binding }, &*binding).await
        }
        Write::Pull(copy) => pull(context, &seen.name(), *copy).await,
        Write::Account(account) => name_pull_secrets(context, account).await,
        Write::Unpull { namespace, name, uid } => unpull(writer, &namespace, &name, uid).await,
        Write::Revoke(namespace) => take::<GpuGrant>(writer, &namespace, names::GRANT).await,
        Write::Delete { namespace, uid } => {
            let doing = format!("deleting namespace {namespace}");
            writer.delete(&Api::<Namespace>::all(writer.client()), &namespace, uid).await.map_err(failed(doing))
        }
        Write::Release { namespace, made } => release(writer, &namespace, made).await,
        Write::Wake(wake) => {
            wake.perform(writer, &seen.name(), seen.now).await?;
            context.woken(&seen.name(), &wake);
            Ok(())
        }
        Write::Finish(farewell) => {
            if let Some(note) = farewell {
                tell(seen, context, EventType::Warning, reasons::DELETION_BLOCKED, note).await;
            }
            writer.set_finalizer(&seen.tenant, false).await.map_err(failed("removing the finalizer"))
        }
    }
}

/// Applies an object and remembers which version has to be seen.
async fn put<K>(context: &Context, kept: Kept, object: &K) -> Result<(), TenantError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
    let namespace = object.namespace().unwrap_or_default();
    let doing = format!("applying the {} of namespace {namespace}", kept.words());
    let applied = context.writer.apply(Part::Tenant, object).await.map_err(failed(doing))?;
    context.note(kept, namespace, &applied);
    Ok(())
}

/// Writes the copy of an image pull secret.
async fn pull(context: &Context, tenant: &str, mut copy: PullCopy) -> Result<(), TenantError> {
    if copy.anew {
        unpull(&context.writer, &copy.namespace, &copy.name, copy.decided_on.1.take()).await?;
        copy.decided_on = PullCopy::on_nothing();
    }
    let PullCopy { namespace, name, .. } = &copy;
    let doing = format!("applying image pull secret {name} of namespace {namespace}");
    let secret = render::pull_secret(tenant, &copy);
    let applied = context.writer.apply_unread::<Secret>(Part::Tenant, &secret).await.map_err(failed(doing))?;
    context.note(Kept::Pull, format!("{namespace}/{name}"), &applied);
    Ok(())
}

/// Deletes the copy of an image pull secret, unless another has its name by now.
async fn unpull(writer: &Writer, namespace: &str, name: &str, uid: Option<String>) -> Result<(), TenantError> {
    let doing = format!("deleting image pull secret {name} of namespace {namespace}");
    let api = Api::<SlimSecret>::namespaced(writer.client(), namespace);
    writer.delete(&api, name, uid).await.map_err(failed(doing))
}

/// Says whom the `ServiceAccount` of pods that name none names. Its list can only be written as a whole: the version makes sure that what
/// the team has just added is not lost.
async fn name_pull_secrets(context: &Context, account: Account) -> Result<(), TenantError> {
    let Account { namespace, version, names } = account;
    let names: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let fields = json!({"metadata": {"resourceVersion": version}, "imagePullSecrets": names});
    let api = Api::<SlimAccount>::namespaced(context.writer.client(), &namespace);
    match context.writer.merge(&api, ACCOUNT, &fields).await {
        Ok(applied) => {
            context.note(Kept::Account, namespace, &applied);
            Ok(())
        }
        // it is made anew in a moment, and that is seen
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(failed(format!("naming image pull secrets in namespace {namespace}"))(error)),
    }
}

/// Deletes an object of ours.
async fn take<K>(writer: &Writer, namespace: &str, name: &str) -> Result<(), TenantError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    let doing = format!("deleting {} {name} of namespace {namespace}", K::kind(&()));
    writer.delete(&Api::<K>::namespaced(writer.client(), namespace), name, None).await.map_err(failed(doing))
}

/// Takes what is ours off a namespace that stays: the grant first, without which no new pod is admitted while its limits go, and last
/// the labels by which it is found.
async fn release(writer: &Writer, namespace: &str, made: bool) -> Result<(), TenantError> {
    take::<GpuGrant>(writer, namespace, names::GRANT).await?;
    take::<RoleBinding>(writer, namespace, render::OWNERS).await?;
    take::<RoleBinding>(writer, namespace, render::VIEWERS).await?;
    take::<ResourceQuota>(writer, namespace, render::QUOTA).await?;
    take::<ResourceQuota>(writer, namespace, render::CLASSES).await?;
    take::<LimitRange>(writer, namespace, render::LIMITS).await?;
    take::<NetworkPolicy>(writer, namespace, render::NETWORK).await?;
    let mut labels = json!({names::TENANT_LABEL: null, render::RETAINED_FROM: null});
    if let (true, Some(labels)) = (made, labels.as_object_mut()) {
        labels.insert(names::MANAGED_BY_LABEL.into(), Value::Null);
    }
    let (fields, doing) = (json!({"metadata": {"labels": labels}}), format!("releasing namespace {namespace}"));
    writer.merge(&Api::<Namespace>::all(writer.client()), namespace, &fields).await.map(drop).map_err(failed(doing))
}
