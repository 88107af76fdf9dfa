//! Keeps programs running: a component that ends is restarted unless it was stopped.

use crate::component::Component;
use crate::error::{During, Error, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// Pause between restarts.
const PAUSE: Duration = Duration::from_millis(500);

struct Kept {
    wanted: watch::Sender<bool>,
    pid: watch::Receiver<Option<i32>>,
}

/// The components of the lab's root or of one node.
#[derive(Clone)]
pub struct Supervisor {
    logs: PathBuf,
    path: String,
    kept: Arc<Mutex<BTreeMap<String, Kept>>>,
}

impl Supervisor {
    /// Logs go to `logs/COMPONENT.log`; `path` is the programs' `PATH`.
    pub fn new(logs: &Path, path: String) -> Result<Self> {
        std::fs::create_dir_all(logs).during(|| format!("creating {}", logs.display()))?;
        Ok(Self { logs: logs.to_path_buf(), path, kept: Arc::default() })
    }

    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a component and keeps it running; no effect on one that runs already.
    pub fn keep(&self, component: Component) {
        let mut table = self.table();
        if table.contains_key(&component.name) {
            return;
        }
        let (wanted, want) = watch::channel(true);
        let (report, pid) = watch::channel(None);
        table.insert(component.name.clone(), Kept { wanted, pid });
        let (logs, path) = (self.logs.clone(), self.path.clone());
        tokio::spawn(async move { run(component, logs, path, want, report).await });
    }

    /// Every component and its process, if it runs.
    pub fn status(&self) -> BTreeMap<String, Option<i32>> {
        self.table().iter().map(|(name, kept)| (name.clone(), *kept.pid.borrow())).collect()
    }

    fn find(&self, name: &str) -> Result<(watch::Sender<bool>, watch::Receiver<Option<i32>>)> {
        let table = self.table();
        table.get(name).map(|kept| (kept.wanted.clone(), kept.pid.clone())).ok_or_else(|| {
            let have: Vec<_> = table.keys().cloned().collect();
            Error::Missing(format!("there is no component {name} here, only {}", have.join(", ")))
        })
    }

    /// Kills a component with SIGKILL without a restart; returns when it has ended.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let (wanted, mut pid) = self.find(name)?;
        wanted.send_replace(false);
        let _ = pid.wait_for(Option::is_none).await;
        Ok(())
    }

    /// Starts a stopped component; returns when its process exists.
    pub async fn start(&self, name: &str) -> Result<()> {
        let (wanted, mut pid) = self.find(name)?;
        wanted.send_replace(true);
        let _ = pid.wait_for(Option::is_some).await;
        Ok(())
    }

    /// Kills a component with SIGKILL; returns when its new process runs.
    pub async fn kill(&self, name: &str) -> Result<()> {
        let (_, mut pid) = self.find(name)?;
        let Some(old) = *pid.borrow_and_update() else { return Ok(()) };
        let _ = kill(Pid::from_raw(old), Signal::SIGKILL);
        let _ = pid.wait_for(|now| now.is_some_and(|now| now != old)).await;
        Ok(())
    }
}

fn spawn(component: &Component, logs: &Path, path: &str) -> Result<Child> {
    let file = logs.join(format!("{}.log", component.name));
    let log =
        OpenOptions::new().create(true).append(true).open(&file).during(|| format!("opening {}", file.display()))?;
    let errors = log.try_clone().during(|| format!("opening {}", file.display()))?;
    let (program, arguments) = component
        .argv
        .split_first()
        .ok_or_else(|| Error::Invalid { what: component.name.clone(), why: "has no program".to_owned() })?;
    Command::new(program)
        .args(arguments)
        .env_clear()
        .envs([("PATH", path), ("HOME", "/root"), ("LANG", "C.UTF-8")])
        .envs(component.environment())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .during(|| format!("starting {program}"))
}

/// Waits until the component is to be stopped.
async fn unwanted(want: &mut watch::Receiver<bool>) {
    let _ = want.wait_for(|wanted| !*wanted).await;
}

async fn run(
    component: Component,
    logs: PathBuf,
    path: String,
    mut want: watch::Receiver<bool>,
    report: watch::Sender<Option<i32>>,
) {
    loop {
        if want.wait_for(|wanted| *wanted).await.is_err() {
            return;
        }
        match spawn(&component, &logs, &path) {
            Ok(mut child) => {
                report.send_replace(child.id().and_then(|pid| i32::try_from(pid).ok()));
                let ended = tokio::select! {
                    ended = child.wait() => Some(ended),
                    () = unwanted(&mut want) => None,
                };
                match ended {
                    Some(ended) => eprintln!("{} ended ({ended:?}), restarting it", component.name),
                    None => {
                        let _ = child.kill().await;
                    }
                }
                report.send_replace(None);
            }
            Err(error) => eprintln!("{}: {error}", component.name),
        }
        if *want.borrow() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(name: &str) -> Component {
        Component { name: name.to_owned(), argv: vec!["/bin/sleep".to_owned(), "1000".to_owned()] }
    }

    fn supervisor(folder: &Path) -> Supervisor {
        Supervisor::new(folder, "/bin".to_owned()).unwrap()
    }

    #[tokio::test]
    async fn supervisor_restarts_killed_component() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = supervisor(folder.path());
        supervisor.keep(sleeper("a"));
        supervisor.start("a").await.unwrap();
        let first = supervisor.status()["a"].unwrap();
        supervisor.kill("a").await.unwrap();
        assert_ne!(supervisor.status()["a"].unwrap(), first);
        supervisor.stop("a").await.unwrap();
    }

    #[tokio::test]
    async fn supervisor_keeps_stopped_component_down() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = supervisor(folder.path());
        supervisor.keep(sleeper("a"));
        supervisor.start("a").await.unwrap();
        supervisor.stop("a").await.unwrap();
        assert_eq!(supervisor.status()["a"], None);
        supervisor.start("a").await.unwrap();
        assert!(supervisor.status()["a"].is_some());
        supervisor.stop("a").await.unwrap();
    }

    #[tokio::test]
    async fn unknown_component_error_lists_known_components() {
        let folder = tempfile::tempdir().unwrap();
        let supervisor = supervisor(folder.path());
        supervisor.keep(sleeper("etcd"));
        let message = supervisor.stop("etc").await.unwrap_err().to_string();
        assert_eq!(message, "there is no component etc here, only etcd");
        supervisor.stop("etcd").await.unwrap();
    }
}
