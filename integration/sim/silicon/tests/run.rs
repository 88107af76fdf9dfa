//! `nvsim run`, the entrypoint of the simulator's `DaemonSet`: installs, follows the state, and ends on a signal.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use silicon::Store;

/// Limit of a wait that takes a fraction of a second on an idle machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn start(root: &Path, more: &[&str]) -> (Child, Store) {
    std::fs::write(root.join("library"), "not loaded here").unwrap();
    let ready = root.join("ready");
    let child = Command::new(env!("CARGO_BIN_EXE_nvsim"))
        .args(["run", "--no-devices", "--board", "a100-80gb", "--latency", "none", "--root"])
        .arg(root)
        .arg("--library")
        .arg(root.join("library"))
        .arg("--ready-file")
        .arg(&ready)
        .args(more)
        .spawn()
        .unwrap();
    until("it is ready", || ready.exists());
    (child, Store::new(root.join("run/nvidia/driver/run/nvsim")))
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn stop(mut child: Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    child.wait().unwrap();
}

#[test]
fn run_persists_the_mode_for_a_power_cycle() {
    let root = tempfile::tempdir().unwrap();
    let (child, store) = start(root.path(), &[]);
    store.change(|m, _| m.set_mig_mode(1, true, &[])).unwrap().unwrap_err();
    let inforom = root.path().join("var/lib/nvsim/inforom.json");
    until("the mode is kept", || std::fs::read_to_string(&inforom).is_ok_and(|text| text == "[false,true]"));
    stop(child, Signal::SIGKILL);
    std::fs::remove_dir_all(root.path().join("run")).unwrap();
    std::fs::remove_file(root.path().join("ready")).unwrap();
    let (child, store) = start(root.path(), &[]);
    let modes: Vec<bool> = store.read().unwrap().gpus.iter().map(|gpu| gpu.mig).collect();
    assert_eq!(modes, [false, true]);
    stop(child, Signal::SIGTERM);
}

#[test]
fn sigterm_keeps_the_driver_by_default() {
    for (option, there) in [(&[][..], true), (&["--uninstall-on-exit"][..], false)] {
        let root = tempfile::tempdir().unwrap();
        let (child, store) = start(root.path(), option);
        stop(child, Signal::SIGTERM);
        assert_eq!(store.read().is_ok(), there);
    }
}

/// Runs `nvsim install` for the node `n` with three GPUs, and returns whether it succeeded, and its output.
fn install(root: &Path, boards: &[&str]) -> (bool, String) {
    std::fs::write(root.join("library"), "not loaded here").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvsim"));
    command.args(["install", "--no-devices", "--gpus", "3", "--node", "n", "--root"]).arg(root);
    let output = command.arg("--library").arg(root.join("library")).args(boards).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn boards_of_the_node_take_precedence_over_those_of_all_nodes() {
    for (own, expected) in [
        ("n=a100-80gb+h100-80gb,m=t4-16gb", "1 x NVIDIA A100-SXM4-80GB, 2 x NVIDIA H100 80GB HBM3 simulated"),
        ("m=t4-16gb,nn=t4-16gb", "3 x NVIDIA A30 simulated"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let (done, text) = install(root.path(), &["--board", "a30-24gb", "--node-boards", own]);
        assert!(done && text.starts_with(expected), "{text}");
    }
}

#[test]
fn wrong_boards_are_refused() {
    for (boards, expected) in [
        (&["--board", "a30-24gb+rtx-4090"][..], "no board \"rtx-4090\"; known boards: "),
        (&["--node-boards", "n=rtx-4090"][..], "no board \"rtx-4090\"; known boards: "),
        (&["--node-boards", "t4-16gb"][..], "`t4-16gb` is not of the form NODE=BOARD"),
        (&["--board", "t4-16gb+t4-16gb+t4-16gb+t4-16gb"][..], "4 boards for 3 GPUs"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let (done, text) = install(root.path(), boards);
        assert!(!done && text.contains(expected), "{text}");
    }
}

#[test]
fn pod_restart_keeps_the_state() {
    let root = tempfile::tempdir().unwrap();
    let (child, store) = start(root.path(), &[]);
    store.change(|m, _| m.raise_xid(0, None, 31)).unwrap();
    stop(child, Signal::SIGTERM);
    std::fs::remove_file(root.path().join("ready")).unwrap();
    let (child, store) = start(root.path(), &[]);
    assert_eq!(store.read().unwrap().events.len(), 1);
    stop(child, Signal::SIGTERM);
}
