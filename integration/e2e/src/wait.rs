//! Polling with limits that only a broken cluster reaches.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, pin_mut};
use kube::{
    Api,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::{Error, Result};

/// Limit of a wait. It is no claim about speed: the machines are small and busy.
pub const PATIENCE: Duration = Duration::from_mins(4);

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
