//! `kubectl gpu top --watch`: the table again and again, with the utilization of the last samples as a line where a terminal can show it.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use kube::Client;

use crate::{
    args::TopArgs,
    output::{self, OutputError},
    render,
    top::{TopError, TopReport, Trends, check_names, gather, report},
};

/// Time between two readings: the agents take a sample each ten seconds.
const INTERVAL: Duration = Duration::from_secs(10);
/// Samples in a line: five minutes.
const SAMPLES: usize = 30;

/// Shows the table until the reader goes.
///
/// # Errors
/// When the first reading fails, or standard output cannot be written. A later reading that fails is a line, and the next one follows.
pub async fn refresh(client: &Client, args: &TopArgs, limit: Duration) -> Result<Result<(), TopError>, OutputError> {
    let (terminal, mut trends, mut drawn) = (io::stdout().is_terminal(), Trends::new(), false);
    loop {
        let found = match Box::pin(gather(client, args, limit)).await {
            Ok(gathered) => report(gathered, args),
            Err(error) if !drawn => return Ok(Err(error)),
            Err(error) => {
                output::note(error);
                tokio::time::sleep(INTERVAL).await;
                continue;
            }
        };
        if !drawn
            && found.pods.is_empty()
            && let Err(error) = Box::pin(check_names(client, args)).await
        {
            return Ok(Err(error));
        }
        remember(&mut trends, &found);
        let text = render::top(&found, terminal.then_some(&trends));
        let mut out = anstream::stdout().lock();
        // cursor to the top left, clear below
        let clear = if terminal { "\x1b[H\x1b[J" } else { "" };
        let written = writeln!(out, "{clear}{text}").and_then(|()| out.flush());
        drop(out);
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Ok(())),
            written => output::written(written)?,
        }
        drawn = true;
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Adds the present utilization of each row; rows that are gone are forgotten.
fn remember(trends: &mut Trends, found: &TopReport) {
    let mut kept = Trends::new();
    for pod in &found.pods {
        for device in &pod.devices {
            let key = render::trend_key(pod, device);
            let mut samples = trends.remove(&key).unwrap_or_default();
            samples.push_back(device.utilization);
            if samples.len() > SAMPLES {
                samples.pop_front();
            }
            kept.insert(key, samples);
        }
    }
    *trends = kept;
}
