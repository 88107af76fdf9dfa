//! The child process that forwards a port: `kubectl port-forward`.

use std::{convert::Infallible, io, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{args::ClusterArgs, output};

/// Port of the Service of a virtual cluster.
const SERVICE_PORT: u16 = 443;
/// Time until kubectl listens: it reads the Service and its pods first.
const START: Duration = Duration::from_secs(30);
/// Pause before a forwarding that has ended starts again.
const AGAIN: Duration = Duration::from_secs(1);

/// Why no port is forwarded.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// kubectl cannot be run.
    #[error("running kubectl port-forward: {0}; kubectl must be in PATH")]
    Start(#[from] io::Error),
    /// Its output is not connected.
    #[error("kubectl port-forward has no output")]
    NoOutput,
    /// It has ended.
    #[error("kubectl port-forward: {0}")]
    Ended(String),
    /// It runs and forwards nothing.
    #[error("kubectl port-forward does not listen after {} seconds", START.as_secs())]
    Timeout,
}

/// What is forwarded.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub cluster: &'a ClusterArgs,
    pub namespace: &'a str,
    pub service: &'a str,
}

impl Target<'_> {
    /// The command that forwards a port of 127.0.0.1; 0: a free one, which it prints.
    pub(super) fn command(&self, port: u16) -> Command {
        let Self { cluster, namespace, service } = self;
        let mut command = Command::new("kubectl");
        if let Some(file) = &cluster.kubeconfig {
            command.arg("--kubeconfig").arg(file);
        }
        if let Some(context) = &cluster.context {
            command.args(["--context", context]);
        }
        if let Some(user) = &cluster.user {
            command.args(["--as", user]);
        }
        for group in &cluster.groups {
            command.args(["--as-group", group]);
        }
        let local = if port == 0 { String::new() } else { port.to_string() };
        command.args(["port-forward", "--namespace", namespace, "--address", "127.0.0.1"]);
        command.args([format!("service/{service}"), format!("{local}:{SERVICE_PORT}")]);
        command
    }
}

/// A child process that forwards; it is killed with this value.
pub(super) struct Forward {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    /// The last line of its standard error.
    errors: JoinHandle<String>,
}

impl Forward {
    /// Starts it; returns it with the local port once it listens.
    pub(super) async fn start(mut command: Command) -> Result<(Self, u16), ForwardError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C of the terminal is for the user's command, which may go on
        command.process_group(0);
        let mut child = command.spawn()?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(ForwardError::NoOutput);
        };
        let mut forward =
            Self { child, stdout: BufReader::new(stdout).lines(), errors: tokio::spawn(last_line(stderr)) };
        let port = timeout(START, async {
            while let Ok(Some(line)) = forward.stdout.next_line().await {
                if let Some(port) = listens_at(&line) {
                    return Some(port);
                }
            }
            None
        });
        match port.await {
            Ok(Some(port)) => Ok((forward, port)),
            Ok(None) => Err(ForwardError::Ended(forward.ended().await)),
            Err(_) => Err(ForwardError::Timeout),
        }
    }

    /// Waits until it ends; returns the reason.
    async fn ended(mut self) -> String {
        // what it prints for each connection must not fill its output
        while let Ok(Some(_)) = self.stdout.next_line().await {}
        drop(self.child.wait().await);
        let reason = self.errors.await.unwrap_or_default();
        if reason.is_empty() { "it ended".into() } else { reason }
    }

    /// Starts it again whenever it ends: kubectl ends when the pod is replaced, and when one of its connections breaks.
    pub(super) async fn keep(self, command: impl Fn() -> Command) -> Infallible {
        let mut last = String::new();
        let mut forward = Some(self);
        loop {
            let reason = match forward.take() {
                Some(running) => running.ended().await,
                None => match Self::start(command()).await {
                    Ok((started, _)) => {
                        forward = Some(started);
                        continue;
                    }
                    Err(error) => error.to_string(),
                },
            };
            if reason != last {
                output::note(format_args!("forwarding ended and starts again: {reason}"));
                last = reason;
            }
            sleep(AGAIN).await;
        }
    }
}

/// The last line that is not empty.
async fn last_line(from: impl AsyncRead + Unpin) -> String {
    let (mut lines, mut last) = (BufReader::new(from).lines(), String::new());
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.trim().is_empty() {
            line.trim().clone_into(&mut last);
        }
    }
    last
}

/// The local port of a line such as `Forwarding from 127.0.0.1:40123 -> 8443`.
fn listens_at(line: &str) -> Option<u16> {
    let (address, _) = line.strip_prefix("Forwarding from ")?.split_once(" -> ")?;
    address.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn port_is_read_from_the_line_of_kubectl() {
        assert_eq!(listens_at("Forwarding from 127.0.0.1:40123 -> 8443"), Some(40123));
        for other in [
            "Handling connection for 40123",
            "Forwarding from [::1] -> 8443",
            "Forwarding from 127.0.0.1:99999 -> 1",
            "",
        ] {
            assert_eq!(listens_at(other), None, "{other}");
        }
    }

    #[test]
    fn command_names_cluster_service_and_port() {
        let cluster = ClusterArgs {
            kubeconfig: Some("admin.yaml".into()),
            context: Some("prod".into()),
            user: Some("ann".into()),
            ..ClusterArgs::default()
        };
        let words = |cluster: &ClusterArgs, port| -> Vec<String> {
            let target = Target { cluster, namespace: "ns-a", service: "team-a" };
            target.command(port).as_std().get_args().map(|word| word.display().to_string()).collect()
        };
        let rest = ["port-forward", "--namespace", "ns-a", "--address", "127.0.0.1", "service/team-a"];
        assert_eq!(words(&ClusterArgs::default(), 0), [&rest[..], &[":443"]].concat());
        let flags = ["--kubeconfig", "admin.yaml", "--context", "prod", "--as", "ann"];
        assert_eq!(words(&cluster, 8443), [&flags[..], &rest, &["8443:443"]].concat());
    }

    #[tokio::test]
    async fn forwarding_that_does_not_start_has_the_reason_of_kubectl() {
        let refused = "echo first >&2; echo 'error: pod is not running. Current status=Pending' >&2; exit 1";
        let error = Forward::start(script(refused)).await.err().unwrap().to_string();
        assert_eq!(error, "kubectl port-forward: error: pod is not running. Current status=Pending");
        let error = Forward::start(Command::new("/no/such/kubectl")).await.err().unwrap().to_string();
        assert!(error.ends_with("kubectl must be in PATH"), "{error}");
    }

    #[tokio::test]
    async fn forwarding_that_ends_starts_again_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let starts = folder.path().join("starts");
        let line = format!("echo x >> {}; echo 'Forwarding from 127.0.0.1:4567 -> 8443'", starts.display());
        let (first, port) = Forward::start(script(&line)).await.unwrap();
        assert_eq!(port, 4567);
        let again = || script(&format!("{line}; exec sleep 60"));
        let count = || std::fs::read_to_string(&starts).unwrap().lines().count();
        let twice = async {
            while count() < 2 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            never = first.keep(again) => match never {},
            () = twice => {}
        }
        assert_eq!(count(), 2);
    }
}
