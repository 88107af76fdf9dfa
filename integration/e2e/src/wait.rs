//! Polling with limits that only a broken cluster reaches.

use std::time::{Duration, Instant};

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
