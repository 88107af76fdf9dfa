//! Repeated reviews: after a refused request, and while a right is missing.

use std::{sync::Arc, time::Duration};

use gputenancy_crds::backoff::Backoff;
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

use super::{
    Right,
    report::Report,
    review::{Verdict, review},
};
use crate::client::naming;

/// Interval while a right is missing or unknown: short enough for a `helm upgrade --wait` that grants it.
const RETRY: Duration = Duration::from_secs(30);
/// Intervals between complete reviews after refused requests, while each review finds nothing missing. After the longest one without a refused request
/// they start over.
const PAUSE: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_hours(1));

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
    let (mut idle, mut all) = (1_u32, true);
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
            if at.elapsed() > PAUSE.longest() {
                idle = 1;
            }
            sleep(PAUSE.after(idle).saturating_sub(at.elapsed())).await;
            (idle, all) = (idle.saturating_add(1), true);
        } else {
            (idle, all) = (1, false);
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
