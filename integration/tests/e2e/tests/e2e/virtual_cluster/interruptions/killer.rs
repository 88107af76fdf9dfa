//! Kills of operator and controller while a virtual cluster changes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use e2e::{
    Result, World,
    objects::ensure,
    product,
    wait::{PATIENCE, eventually},
};
use tokio::{process::Command, task::JoinHandle};

/// A program that is killed.
struct Program {
    /// Label `app.kubernetes.io/name` of its pods.
    name: &'static str,
    /// Milliseconds before each kill, from the beginning again after the last.
    pauses: &'static [u64],
    kills: usize,
    /// Fewest kills that show something.
    least: usize,
}

const CONTROLLER: &str = "gputenancy-virtual-clusters";

const PROGRAMS: [Program; 2] = [
    // from the first request of a start to well after its first pass
    Program { name: CONTROLLER, pauses: &[300, 700, 1200, 1800, 2500, 3500, 5000, 8000], kills: 16, least: 3 },
    // both replicas; the next leader may wait for the lease of a killed one, which lasts 9 seconds
    Program { name: "gputenancy-operator", pauses: &[500, 2000, 4000, 12_000, 11_000], kills: 8, least: 2 },
];

/// Kills operator and controller again and again, each time after another while.
pub(crate) struct Killer(Vec<(&'static Program, Arc<AtomicUsize>, JoinHandle<()>)>);

impl Killer {
    pub(crate) fn start(world: &World) -> Self {
        Self(PROGRAMS.iter().map(|program| kill(world, program)).collect())
    }

    /// Waits until each program was killed as often as shows something, and the controller so many times from now on, unless its kills have ended.
    pub(crate) async fn more_kills_of_controller(&self, more: usize) -> Result<()> {
        let all = || self.0.iter().map(|(program, kills, task)| (program, kills.load(Ordering::Relaxed), task));
        let wanted: Vec<usize> = all()
            .map(|(program, kills, _)| program.least.max(if program.name == CONTROLLER { kills + more } else { 0 }))
            .collect();
        eventually(&format!("{wanted:?} kills"), PATIENCE, || async {
            let enough = all().zip(&wanted).all(|((_, kills, task), wanted)| kills >= *wanted || task.is_finished());
            Ok(if enough { Ok(()) } else { Err(format!("{:?}", all().map(|(_, kills, _)| kills).collect::<Vec<_>>())) })
        })
        .await
    }

    /// Ends the kills; there must have been some of each program.
    pub(crate) fn stop(self, during: &str) -> Result<()> {
        for (program, kills, task) in &self.0 {
            task.abort();
            let kills = kills.load(Ordering::Relaxed);
            ensure(kills >= program.least, format!("{kills} kills of {} during {during}", program.name))?;
        }
        Ok(())
    }
}

impl Drop for Killer {
    /// Also after a failure: the next test needs both programs.
    fn drop(&mut self) {
        for (_, _, task) in &self.0 {
            task.abort();
        }
    }
}

fn kill(world: &World, program: &'static Program) -> (&'static Program, Arc<AtomicUsize>, JoinHandle<()>) {
    let (kills, kubeconfig) = (Arc::new(AtomicUsize::new(0)), world.lab.kubeconfig_path());
    let count = kills.clone();
    let task = tokio::spawn(async move {
        for pause in program.pauses.iter().cycle().take(program.kills) {
            tokio::time::sleep(Duration::from_millis(*pause)).await;
            let mut kubectl = Command::new(product::root().join("target/toolset/bin/kubectl"));
            kubectl.arg("--kubeconfig").arg(&kubeconfig).args(["delete", "pods", "-n", product::NAMESPACE]);
            kubectl.args(["-l", &format!("app.kubernetes.io/name={}", program.name)]);
            kubectl.args(["--grace-period=0", "--force", "--wait=false"]).kill_on_drop(true);
            let killed = kubectl.output().await.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("deleted"));
            count.fetch_add(usize::from(killed), Ordering::Relaxed);
        }
    });
    (program, kills, task)
}
