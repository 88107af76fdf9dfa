//! Access to the API server of a virtual cluster from this machine: a forwarded port, and a kubeconfig for it.
//!
//! The port is forwarded by a child process `kubectl port-forward`, which ends with this command.

mod file;
mod forward;

use std::{
    env, fmt, io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process,
};

use gputenancy_crds::{GpuTenant, condition};
use kube::ResourceExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    file::{FileError, Written},
    forward::{Forward, ForwardError, Target},
};
use crate::{
    args::{ClusterArgs, ConnectArgs},
    cluster::{self, ClusterError},
    kubeconfig::{self, KubeconfigError, Place},
    output::{self, OutputError},
};

/// Type of the condition of a virtual cluster about its control plane.
const CONTROL_PLANE: &str = "ControlPlaneReady";
/// Exit code where there is no other.
const NO_CODE: u8 = 1;
/// Added to the number of a signal that ended a command, as shells do.
const SIGNALLED: i32 = 128;

/// Why a virtual cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// There are no credentials.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// Its API server does not serve.
    #[error("the virtual cluster of GpuTenant {tenant} does not serve: {reason}")]
    NotServing {
        /// The tenant.
        tenant: String,
        /// Its condition.
        reason: String,
    },
    /// No port is forwarded.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The kubeconfig is not written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Signals cannot be caught.
    #[error("waiting for signals: {0}")]
    Signals(#[source] io::Error),
    /// The user's command cannot be run.
    #[error("{action} {}: {source}", .program.display())]
    Command {
        /// What was done with it.
        action: &'static str,
        /// The program.
        program: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Forwards a port until Ctrl-C or the end of the command; returns the exit code.
pub async fn connect(args: &ConnectArgs, cluster: &ClusterArgs) -> Result<u8, ConnectError> {
    let client = cluster::client(cluster).await?;
    let tenant = kubeconfig::find(&client, &args.tenant).await?;
    let place = Place::of(&tenant)?;
    serves(&tenant)?;
    let credentials = kubeconfig::credentials(&client, &place).await?;
    let mut signals = Signals::new()?;

    let target = Target { cluster, namespace: &place.namespace, service: &place.tenant };
    let (forward, port) = tokio::select! {
        started = Forward::start(target.command(args.port)) => started?,
        code = signals.any() => return Ok(code),
    };
    let certified = format!("{}.{}", place.tenant, place.namespace);
    let server = format!("https://127.0.0.1:{port}");
    let text = credentials.kubeconfig(&place.tenant, &server, Some(&certified))?;
    let written = file::write(&path(args, &place.tenant), &place.tenant, &text)?;
    let forwarding = forward.keep(|| target.command(port));
    if args.command.is_empty() {
        output::print(Hint { tenant: &tenant, server: &server, file: written.path() })?;
        tokio::select! {
            never = forwarding => match never {},
            code = signals.any() => Ok(code),
        }
    } else {
        tokio::select! {
            never = forwarding => match never {},
            code = command(args, &written, &mut signals) => code,
        }
    }
}

/// Checks that the API server of a virtual cluster answers.
fn serves(tenant: &GpuTenant) -> Result<(), ConnectError> {
    let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.clone()).unwrap_or_default();
    if condition::is_true(&status.conditions, CONTROL_PLANE) {
        return Ok(());
    }
    let name = tenant.name_any();
    let reason = kubeconfig::reason(&name, &status, CONTROL_PLANE);
    Err(ConnectError::NotServing { tenant: name, reason })
}

/// The kubeconfig to write: as the flag says, in the current folder, or for a command in the folder of temporary files.
fn path(args: &ConnectArgs, tenant: &str) -> PathBuf {
    match &args.kubeconfig_out {
        Some(file) => file.clone(),
        None if args.command.is_empty() => PathBuf::from(format!("{tenant}.kubeconfig")),
        None => env::temp_dir().join(format!("kubectl-gpu-{tenant}-{}.kubeconfig", process::id())),
    }
}

/// Runs the command of the arguments; returns its exit code.
async fn command(args: &ConnectArgs, written: &Written, signals: &mut Signals) -> Result<u8, ConnectError> {
    let Some((program, rest)) = args.command.split_first() else { return Ok(0) };
    let failed = |action| move |source| ConnectError::Command { action, program: PathBuf::from(program), source };
    let mut command = tokio::process::Command::new(program);
    command.args(rest).env("KUBECONFIG", written.path()).kill_on_drop(true);
    let mut child = command.spawn().map_err(failed("running"))?;
    let Signals { interrupt, terminate, hangup } = signals;
    let ended = loop {
        tokio::select! {
            ended = child.wait() => break ended.map_err(failed("waiting for"))?,
            // a terminal sends it to the command too, which decides
            _ = interrupt.recv() => {}
            _ = terminate.recv() => return Ok(code(SignalKind::terminate())),
            _ = hangup.recv() => return Ok(code(SignalKind::hangup())),
        }
    };
    Ok(exit_code(ended))
}

/// The exit code of a command, as shells count it.
fn exit_code(ended: process::ExitStatus) -> u8 {
    let code = ended.code().or_else(|| ended.signal().map(|signal| SIGNALLED.saturating_add(signal)));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NO_CODE)
}

/// The signals that end this command.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, ConnectError> {
        let of = |kind| signal(kind).map_err(ConnectError::Signals);
        Ok(Self {
            interrupt: of(SignalKind::interrupt())?,
            terminate: of(SignalKind::terminate())?,
            hangup: of(SignalKind::hangup())?,
        })
    }

    /// Any of them; the exit code.
    async fn any(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 0,
            _ = self.terminate.recv() => code(SignalKind::terminate()),
            _ = self.hangup.recv() => code(SignalKind::hangup()),
        }
    }
}

fn code(kind: SignalKind) -> u8 {
    u8::try_from(SIGNALLED.saturating_add(kind.as_raw_value())).unwrap_or(NO_CODE)
}

/// What to type next.
struct Hint<'a> {
    tenant: &'a GpuTenant,
    server: &'a str,
    file: &'a Path,
}

impl fmt::Display for Hint<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, server, file } = self;
        let status = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
        let name = tenant.name_any();
        writeln!(out, "The virtual cluster of {name} is at {server} while this command runs. In another terminal:\n")?;
        writeln!(out, "  export KUBECONFIG={}", quoted(&file.display().to_string()))?;
        writeln!(out, "  kubectl get namespaces\n")?;
        if let Some(expires) = status.and_then(|s| s.kubeconfig_expires.as_ref()) {
            writeln!(out, "Its token expires at {}; then run this command again.", expires.0)?;
        }
        writeln!(out, "Ctrl-C ends the forwarding and removes the file.")
    }
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%:,".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use serde_json::{Value, json};

    use super::*;

    fn tenant(status: &Value) -> GpuTenant {
        serde_json::from_value(json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "team-a"},
            "spec": {"namespaces": [{"name": "ns-a"}], "virtualCluster": {"version": "0.36.1"}},
            "status": {"virtualCluster": status},
        }))
        .unwrap()
    }

    fn condition(type_: &str, status: &str, reason: &str) -> Value {
        json!({"type": type_, "status": status, "reason": reason, "message": "it is so", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn control_plane_that_does_not_serve_is_named_with_its_reason() {
        let paused = tenant(&json!({"conditions": [condition(CONTROL_PLANE, "Unknown", "VirtualClusterPaused")]}));
        let error = serves(&paused).unwrap_err().to_string();
        assert_eq!(error, "the virtual cluster of GpuTenant team-a does not serve: it is so (VirtualClusterPaused)");
        let unready =
            [condition("Ready", "False", "CatalogNotWritten"), condition(CONTROL_PLANE, "True", "ControlPlaneServes")];
        assert!(serves(&tenant(&json!({"conditions": unready}))).is_ok(), "another step does not keep the team out");
        assert!(
            serves(&tenant(&json!({}))).unwrap_err().to_string().ends_with("see kubectl describe gputenant team-a")
        );
    }

    #[test]
    fn kubeconfig_is_in_the_current_folder_and_that_of_a_command_is_temporary() {
        let mut args = ConnectArgs { tenant: "team-a".into(), ..ConnectArgs::default() };
        assert_eq!(path(&args, "team-a"), Path::new("team-a.kubeconfig"));
        args.command = vec![OsString::from("k9s")];
        let temporary = path(&args, "team-a");
        assert!(temporary.starts_with(env::temp_dir()) && temporary.display().to_string().contains("team-a"));
        args.kubeconfig_out = Some("mine.yaml".into());
        assert_eq!(path(&args, "team-a"), Path::new("mine.yaml"));
    }

    #[test]
    fn hint_names_file_server_and_expiry() {
        let tenant = tenant(&json!({"kubeconfigExpires": "2026-01-02T00:00:00Z"}));
        let hint =
            |file: &str| Hint { tenant: &tenant, server: "https://127.0.0.1:4567", file: Path::new(file) }.to_string();
        let text = hint("/home/me/team-a.kubeconfig");
        for part in
            ["https://127.0.0.1:4567", "  export KUBECONFIG=/home/me/team-a.kubeconfig\n", "2026-01-02T00:00:00Z"]
        {
            assert!(text.contains(part), "{text}");
        }
        assert!(hint("/home/it's me/a").contains(r"KUBECONFIG='/home/it'\''s me/a'"));
    }

    #[test]
    fn exit_code_of_a_command_is_passed_on() {
        // a wait status has the exit code in its second byte, and a signal in its first
        let codes = [0, 3 << 8, 255 << 8, 9].map(|raw| exit_code(process::ExitStatus::from_raw(raw)));
        assert_eq!(codes, [0, 3, 255, 137]);
    }

    #[tokio::test]
    async fn command_gets_the_kubeconfig_and_its_exit_code_is_returned() {
        let folder = tempfile::tempdir().unwrap();
        let written = file::write(&folder.path().join("k"), "team-a", "apiVersion: v1\n").unwrap();
        let script = ["sh", "-c", "grep -q apiVersion \"$KUBECONFIG\" && exit 7"];
        let args = ConnectArgs { command: script.map(OsString::from).into(), ..ConnectArgs::default() };
        assert_eq!(command(&args, &written, &mut Signals::new().unwrap()).await.unwrap(), 7);
        let args = ConnectArgs { command: vec!["/no/such/program".into()], ..ConnectArgs::default() };
        let error = command(&args, &written, &mut Signals::new().unwrap()).await.unwrap_err().to_string();
        assert!(error.starts_with("running /no/such/program: "), "{error}");
    }
}
