//! The root of the lab's process tree, in the host's namespaces. It starts the lab and cleans up when the lab ends in any way.
//! When the keeper is killed, the kernel kills the lab.

use crate::cgroup;
use crate::error::{During, Error, Result};
use crate::process::{LOOK, Process, child_of};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// State of a running lab on the host (`state.json`).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// The keeper.
    pub keeper: Process,
    /// The first process of the lab's namespaces, once there is one.
    pub init: Option<Process>,
    /// The lab's control groups.
    pub groups: Vec<PathBuf>,
}

/// Files of a lab's state folder that are deleted when it ends.
pub const FILES: [&str; 6] = ["state.json", "plan.json", "kubeconfig", "lab.log", "up", "state.json.new"];

impl State {
    /// Reads it from a lab's state folder; nothing when there is none.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join("state.json");
        match fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str(&text).map(Some).during(|| format!("reading {}", file.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { what: format!("reading {}", file.display()), source }),
        }
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let (new, file) = (folder.join("state.json.new"), folder.join("state.json"));
        let text = serde_json::to_vec(self).during(|| "writing the lab's state".to_owned())?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &file)).during(|| format!("writing {}", file.display()))
    }

    /// Whether the lab runs.
    pub fn alive(&self) -> bool {
        self.init.is_some_and(Process::alive)
    }
}

/// The names of the labs that have files in the state folder.
pub fn names(state: &Path) -> Vec<String> {
    let entries = fs::read_dir(state).into_iter().flatten().flatten();
    let labs = entries.filter(|entry| FILES.iter().any(|file| entry.path().join(file).exists()));
    labs.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Runs the lab described by `plan.json` in `folder`, with this process's standard input as its listening socket.
pub fn run(folder: &Path, name: &str) -> Result<()> {
    let own = i32::try_from(std::process::id()).ok().and_then(Process::find);
    let keeper = own.ok_or_else(|| Error::Missing("/proc does not show this process".to_owned()))?;
    let group = format!("gputenancy-{name}");
    let groups: Vec<_> = cgroup::hierarchies()?.iter().map(|hierarchy| hierarchy.below_own(&group)).collect();
    let mut state = State { keeper, init: None, groups };
    state.write(folder)?;
    for group in &state.groups {
        cgroup::create(group)?;
    }
    let outcome = live(folder, &mut state);
    // keep the log of a lab that did not start
    clean(folder, &state, folder.join("up").exists());
    outcome
}

fn live(folder: &Path, state: &mut State) -> Result<()> {
    let program = std::env::current_exe().during(|| "finding this program".to_owned())?;
    let mut command = Command::new(&program);
    command.args(["enter", "--die-with-parent"]);
    for group in &state.groups {
        command.arg("--group").arg(group);
    }
    let unshare =
        "unshare --mount --net --pid --uts --ipc --cgroup --fork --kill-child --mount-proc --propagation private";
    command.arg("--").args(unshare.split(' ')).args(["tini", "-s", "--"]).arg(&program);
    command.arg("init").arg(folder.join("plan.json")).stdin(Stdio::inherit());
    let mut child = command.spawn().during(|| "starting the lab".to_owned())?;
    let outer = i32::try_from(child.id()).unwrap_or_default();
    while state.init.is_none() {
        if let Some(status) = child.try_wait().during(|| "starting the lab".to_owned())? {
            return Err(Error::Missing(format!("the lab ended while it was being started ({status})")));
        }
        state.init = child_of(outer);
        std::thread::sleep(LOOK);
    }
    state.write(folder)?;
    let hierarchies = cgroup::hierarchies()?;
    if let Some(own) = hierarchies.iter().find(|hierarchy| hierarchy.is_whole()) {
        let own = Path::new(cgroup::ROOT).join(own.own.trim_matches('/'));
        cgroup::move_out(&hierarchies, &own, outer)?;
    }
    let status = child.wait().during(|| "waiting for the lab's end".to_owned())?;
    eprintln!("lab: the lab's first process has ended ({status})");
    Ok(())
}

/// Kills remaining processes of a lab and removes its control groups and files; true when nothing is left.
pub fn clean(folder: &Path, state: &State, with_log: bool) -> bool {
    if let Some(init) = state.init {
        init.kill();
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    let gone = loop {
        // also processes that entered the lab's groups before its first process was known
        state.groups.iter().for_each(|group| kill_all(group));
        let left = state.groups.iter().filter(|group| !cgroup::remove(group)).count();
        if left == 0 || Instant::now() > deadline {
            break left == 0;
        }
        std::thread::sleep(LOOK);
    };
    if gone {
        for file in FILES.iter().filter(|file| with_log || **file != "lab.log") {
            let _ = fs::remove_file(folder.join(file));
        }
        let _ = fs::remove_dir_all(folder.join("home"));
        // stays when artifacts were collected
        let _ = fs::remove_dir(folder);
    }
    gone
}

fn kill_all(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            kill_all(&entry.path());
        }
    }
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    processes.lines().filter_map(|pid| Process::find(pid.parse().ok()?)).for_each(Process::kill);
}

/// Enters the groups and becomes the program: `lab enter --group G… -- PROGRAM ARGUMENT…`.
pub fn enter(groups: &[PathBuf], die_with_parent: bool, argv: &[String]) -> Result<()> {
    for group in groups {
        cgroup::create(group)?;
        cgroup::enter(group)?;
    }
    if die_with_parent {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
            .during(|| "binding the process to the keeper".to_owned())?;
    }
    let (program, arguments) = argv.split_first().ok_or_else(|| Error::Missing("no program to run".to_owned()))?;
    let source = Command::new(program).args(arguments).exec();
    Err(Error::Io { what: format!("starting {program}"), source })
}
