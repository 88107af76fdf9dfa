//! Waiting for a cluster to get somewhere, with limits that only a broken cluster reaches.

use std::time::{Duration, Instant};

use crate::{Error, Result};

/// No limit of a test is a claim about speed: the machines are small and busy.
pub const PATIENCE: Duration = Duration::from_mins(4);

/// Asks again and again until the probe says `Ok(Ok(value))`; `Ok(Err(state))` is "not yet", with the state for the message.
/// An error of the API is "not yet" too, because tests stop API servers.
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
