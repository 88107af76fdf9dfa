//! Asking again: after a refusal, and while something is missing.

use std::{sync::Arc, time::Duration};

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

use crate::{Answer, Right, ask, told::log};

/// While something is missing, or nobody answered: soon enough for a `helm upgrade --wait` that brings it.
const AGAIN: Duration = Duration::from_secs(30);
/// The shortest time between two rounds of questions after which nothing was missing; it doubles from round to round.
const SHORTEST: Duration = Duration::from_secs(2);
/// The longest; also how long no request must be refused until refusals count as news again.
const LONGEST: Duration = Duration::from_hours(1);

/// A client that tells of requests which the API server forbids. Quotas and admission forbid too; so after a refusal it has yet to
/// be asked whether a right is missing.
///
/// # Errors
/// When the configuration cannot be used.
pub fn client(config: Config, refused: Arc<Notify>) -> kube::Result<Client> {
    let tell = MapResponseLayer::new(move |response: Response<Box<DynBody>>| {
        if response.status() == StatusCode::FORBIDDEN {
            refused.notify_one();
        }
        response
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&tell).build())
}

/// How a program stands with its rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rights that are there.
    pub granted: usize,
    /// Rights that are not.
    pub missing: Vec<Right>,
    /// Of so many there is no answer; why there is none for the first of them.
    pub unknown: Option<(usize, String)>,
}

impl Report {
    /// From all rights and the answers to them.
    pub fn of(rights: &[Right], answers: &[Answer]) -> Self {
        let mut report = Self::default();
        for (right, answer) in rights.iter().zip(answers) {
            match answer {
                Answer::Yes => report.granted += 1,
                Answer::No => report.missing.push(right.clone()),
                Answer::Unknown(why) => report.unknown.get_or_insert_with(|| (0, why.clone())).0 += 1,
            }
        }
        report
    }

    /// Nothing is missing, and nothing unknown.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_none()
    }

    /// What is missing without which the program does not do its work, a line for each; `None`: nothing. What a feature alone
    /// needs is not in it.
    pub fn blocking(&self) -> Option<String> {
        let needed = self.missing.iter().filter(|r| r.feature.is_none());
        let lines: Vec<String> = needed.map(Right::missing).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

/// Asks for ever, tells of every round, and the log of what has changed. The client must not be one that tells of refusals: where
/// asking itself is forbidden, each question would lead to the next.
pub async fn keep(client: Client, rights: Vec<Right>, refused: Arc<Notify>, mut tell: impl FnMut(&Report)) {
    let mut answers = vec![Answer::Unknown("not asked yet".to_owned()); rights.len()];
    let (mut idle, mut all) = (0_u32, true);
    let mut last = Report::default();
    loop {
        let open = |answer: &&mut Answer| all || **answer != Answer::Yes;
        let (asked, slots): (Vec<&Right>, Vec<&mut Answer>) =
            rights.iter().zip(answers.iter_mut()).filter(|(_, answer)| open(answer)).unzip();
        for (slot, answer) in slots.into_iter().zip(ask(&client, &asked).await) {
            *slot = answer;
        }
        let (report, at) = (Report::of(&rights, &answers), Instant::now());
        tell(&report);
        if report != last {
            log(&report);
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
                () = sleep(AGAIN) => {}
                () = refused.notified() => {
                    sleep(AGAIN).await;
                    all = true;
                }
            }
        }
    }
}

/// Between two rounds, after so many that found nothing missing although a request had been refused.
fn pause(idle: u32) -> Duration {
    SHORTEST.saturating_mul(2_u32.saturating_pow(idle)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Line, Setting, rights};

    const TABLE: &[Line] = &[
        Line::new(&["watch"], "", "nodes", "pools"),
        Line::new(&["list"], "policy", "poddisruptionbudgets", "words").only_for("explanations"),
        Line::new(&["patch"], "", "nodes", "labels"),
    ];

    fn report(answers: &[Answer]) -> Report {
        Report::of(&rights(TABLE, &Setting { role: "agent", ..Setting::default() }), answers)
    }

    #[test]
    fn what_a_feature_alone_needs_is_named_and_blocks_nothing() {
        let report = report(&[Answer::Yes, Answer::No, Answer::Yes]);
        assert!(!report.is_complete());
        assert_eq!((report.granted, report.missing.len(), report.blocking()), (2, 1, None));
    }

    #[test]
    fn every_right_that_the_work_needs_has_a_line_of_its_own() {
        let blocking = report(&[Answer::No, Answer::No, Answer::No]).blocking().unwrap();
        let lines: Vec<&str> = blocking.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|l| l.contains("ClusterRole agent lacks")), "{blocking}");
    }

    #[test]
    fn no_answer_is_no_missing_right() {
        let report = report(&[Answer::Unknown("a".into()), Answer::Unknown("b".into()), Answer::Yes]);
        assert_eq!(report.unknown, Some((2, "a".into())));
        assert!(!report.is_complete() && report.blocking().is_none());
    }

    #[test]
    fn refusals_that_have_other_reasons_lead_to_ever_fewer_questions() {
        let pauses: Vec<u64> = [0, 1, 2, 10, 11, 40].map(|idle| pause(idle).as_secs()).into();
        assert_eq!(pauses, [2, 4, 8, 2048, 3600, 3600]);
    }
}
