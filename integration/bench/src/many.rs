//! A bulk import of tenants.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use e2e::{Error, Result, World, fixtures::tenant, wait::PATIENCE};
use futures::{StreamExt, TryStreamExt, pin_mut, stream};
use gputenancy_crds::{GpuTenant, condition};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};

/// Concurrent writes.
pub const IN_FLIGHT: usize = 8;

/// Applies tenants without guarantees, with one namespace and one owner each, and waits until all are Ready. Returns the time from
/// application to Ready of each.
pub async fn become_ready(world: &World, prefix: &str, count: usize) -> Result<Vec<Duration>> {
    let body = |name: &str, i: usize| {
        let mut body = tenant(name, &[]);
        body["spec"]["owners"] = json!([{"kind": "Group", "name": format!("team-{i}")}]);
        body
    };
    let ready = |t: &GpuTenant| t.status.as_ref().is_some_and(|s| condition::is_true(&s.conditions, "Ready"));
    applied(world, prefix, count, PATIENCE, body, ready).await
}

/// Applies tenants and waits until all of them satisfy a predicate; the limit holds between two events. Returns the time from application of
/// each.
pub async fn applied(
    world: &World,
    prefix: &str,
    count: usize,
    limit: Duration,
    body: impl Fn(&str, usize) -> Value,
    good: impl Fn(&GpuTenant) -> bool,
) -> Result<Vec<Duration>> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    let apply = PatchParams::apply("bench").force();
    let applying = each(prefix, count, async |name, i| {
        api.patch(&name, &apply, &Patch::Apply(body(&name, i))).await?;
        Ok((name, Instant::now()))
    });
    let (applied, done) = futures::try_join!(applying, until_all_within(&api, prefix, count, limit, good))?;
    let after = |(name, at): &(String, Instant)| done.get(name).map(|then| then.saturating_duration_since(*at));
    Ok(applied.iter().filter_map(after).collect())
}

/// Calls `work` for every name of a tenant with the prefix, [`IN_FLIGHT`] at a time.
pub async fn each<T>(prefix: &str, tenants: usize, work: impl AsyncFn(String, usize) -> Result<T>) -> Result<Vec<T>> {
    let work = &work;
    let all = stream::iter(0..tenants).map(|i| async move { work(format!("{prefix}{i:04}"), i).await });
    all.buffer_unordered(IN_FLIGHT).try_collect().await
}

/// Waits until this many objects whose names or namespaces have the prefix satisfy a predicate. Returns the time of each. Uses a
/// watch, because repeated lists would load the measured API server.
pub async fn until_all<K>(
    api: &Api<K>,
    prefix: &str,
    count: usize,
    good: impl Fn(&K) -> bool,
) -> Result<BTreeMap<String, Instant>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    until_all_within(api, prefix, count, PATIENCE, good).await
}

/// As [`until_all`], with another limit between two events.
async fn until_all_within<K>(
    api: &Api<K>,
    prefix: &str,
    count: usize,
    limit: Duration,
    good: impl Fn(&K) -> bool,
) -> Result<BTreeMap<String, Instant>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let objects = watcher(api.clone(), watcher::Config::default()).default_backoff().applied_objects();
    pin_mut!(objects);
    let mut done = BTreeMap::new();
    while done.len() < count {
        let Ok(Some(seen)) = tokio::time::timeout(limit, objects.next()).await else {
            return Err(Error::Wrong(format!("{} of {count} {prefix} satisfy the predicate", done.len())));
        };
        let object = seen.map_err(|e| Error::Wrong(e.to_string()))?;
        // namespaced objects have equal names
        let name = object.namespace().unwrap_or_else(|| object.name_any());
        if name.starts_with(prefix) && good(&object) {
            done.entry(name).or_insert_with(Instant::now);
        }
    }
    Ok(done)
}

/// A quantile; 0 of an empty list.
pub fn quantile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into thousands of values"
    )]
    let place = ((sorted.len().saturating_sub(1)) as f64 * share).round() as usize;
    sorted.get(place).copied().unwrap_or_default()
}
