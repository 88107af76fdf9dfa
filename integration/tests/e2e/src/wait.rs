//! Polling with limits that only a broken cluster reaches.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, pin_mut};
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::{Error, Result};

/// Limit of a wait. It is no claim about speed: the machines are small and busy.
pub const PATIENCE: Duration = Duration::from_mins(4);

/// How many times as long as a short run the stress tests take. They read it from the environment variable `GPUTENANCY_ROUNDS`; 1 without it.
pub fn rounds() -> u32 {
    std::env::var("GPUTENANCY_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Polls until the probe returns `Ok(Ok(value))`. `Ok(Err(state))` means not yet; the last state is in the error. An API error
/// means not yet too, because tests stop API servers.
pub async fn eventually<T, F, P>(what: &str, limit: Duration, mut probe: P) -> Result<T>
where
    P: FnMut() -> F,
    F: Future<Output = Result<std::result::Result<T, String>>>,
{
    let start = Instant::now();
    loop {
        let last = match probe().await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(state)) => state,
            Err(error) => error.to_string(),
        };
        if start.elapsed() > limit {
            return Err(Error::Late { what: what.into(), seconds: limit.as_secs(), last });
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Merges a change into an object's spec, and waits until its status has observed the new generation: the controller has reconciled the
/// object after this change, and what an earlier change caused is written.
pub async fn observed<K>(api: &Api<K>, name: &str, change: &Value) -> Result<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let before = api.get(name).await?;
    let changed = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
    let generation = changed.meta().generation;
    if generation == before.meta().generation {
        return Err(Error::Wrong(format!("{change} does not change the spec of {name}")));
    }
    eventually(&format!("generation {generation:?} of {name} observed"), PATIENCE, || async {
        let object = api.get(name).await?;
        let status = serde_json::to_value(&object).unwrap_or_default();
        let seen = status.pointer("/status/observedGeneration").and_then(Value::as_i64);
        Ok(if seen >= generation { Ok(object) } else { Err(format!("{seen:?}")) })
    })
    .await
}

/// Calls a function with every added or changed object, in a task that ends when the set is dropped.
pub fn follow<K>(
    tasks: &mut JoinSet<()>,
    api: Api<K>,
    config: watcher::Config,
    mut observe: impl FnMut(K) + Send + 'static,
) where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    tasks.spawn(async move {
        let objects = watcher(api, config).default_backoff().applied_objects();
        pin_mut!(objects);
        while let Some(next) = objects.next().await {
            if let Ok(object) = next {
                observe(object);
            }
        }
    });
}
