//! Repeated reviews: after a refused request, and while a right is missing.

use std::{sync::Arc, time::Duration};

use gputenancy_cluster::client::naming;
use http::{Response, StatusCode};
use kube::{
    Client, Config,
    client::{ClientBuilder, DynBody},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tower::util::MapResponseLayer;

use crate::{
    Right,
    report::Report,
    review::{Verdict, review},
};

/// Interval while a right is missing or unknown: short enough for a `helm upgrade --wait` that grants it.
const RETRY: Duration = Duration::from_secs(30);
/// Shortest interval between complete reviews after refused requests; doubles with each review that finds nothing missing.
const SHORTEST: Duration = Duration::from_secs(2);
/// Longest such interval; also the time without refused requests after which the interval starts over.
const LONGEST: Duration = Duration::from_hours(1);

/// A client that signals each request which the API server forbids. Quotas and admission forbid requests too, so a signal is only
/// a reason to review the rights.
///
/// # Errors
/// When the configuration cannot be used.
pub fn client(config: Config, refused: Arc<Notify>) -> kube::Result<Client> {
    let signal = MapResponseLayer::new(move |response: Response<Box<DynBody>>| {
        if response.status() == StatusCode::FORBIDDEN {
            refused.notify_one();
        }
        response
    });
    let naming = naming(&config, "");
    Ok(ClientBuilder::try_from(config)?.with_layer(&naming).with_layer(&signal).build())
}

/// Reviews the rights for ever, passes every report on and logs changed ones. `client` must not be one that signals refusals:
/// where reviews themselves are forbidden, each review would cause the next.
pub async fn monitor(client: Client, rights: Vec<Right>, refused: Arc<Notify>, mut publish: impl FnMut(&Report)) {
    let mut verdicts = vec![Verdict::Unknown("not reviewed yet".to_owned()); rights.len()];
    let (mut idle, mut all) = (0_u32, true);
    let mut last = Report::default();
    loop {
        let open = |verdict: &&mut Verdict| all || **verdict != Verdict::Granted;
        let (reviewed, slots): (Vec<&Right>, Vec<&mut Verdict>) =
            rights.iter().zip(verdicts.iter_mut()).filter(|(_, verdict)| open(verdict)).unzip();
        for (slot, verdict) in slots.into_iter().zip(review(&client, &reviewed).await) {
            *slot = verdict;
        }
        let (report, at) = (Report::of(&rights, &verdicts), Instant::now());
        publish(&report);
        if report != last {
            report.log();
            last = report.clone();
        }
        if report.is_complete() {
            refused.notified().await;
            if at.elapsed() > LONGEST {
                idle = 0;
            }
            sleep(pause(idle).saturating_sub(at.elapsed())).await;
            (idle, all) = (idle.saturating_add(1), true);
        } else {
            (idle, all) = (0, false);
            tokio::select! {
                () = sleep(RETRY) => {}
                () = refused.notified() => {
                    sleep(RETRY).await;
                    all = true;
                }
            }
        }
    }
}

/// Interval after so many reviews that found nothing missing although a request had been refused.
fn pause(idle: u32) -> Duration {
    SHORTEST.saturating_mul(2_u32.saturating_pow(idle)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_doubles_up_to_an_hour() {
        let pauses: Vec<u64> = [0, 1, 2, 10, 11, 40].map(|idle| pause(idle).as_secs()).into();
        assert_eq!(pauses, [2, 4, 8, 2048, 3600, 3600]);
    }
}
