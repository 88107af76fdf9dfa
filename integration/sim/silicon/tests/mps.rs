//! The simulated control program of the Multi-Process Service.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use silicon::mps::Connection;

/// Runs the control program of this folder and returns whether it succeeded, and its output.
fn control(root: &Path, arguments: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(root.join("nvidia-cuda-mps-control"));
    command.args(arguments).env("CUDA_MPS_PIPE_DIRECTORY", root.join("pipe"));
    command.env("CUDA_MPS_LOG_DIRECTORY", root.join("log")).env("CUDA_VISIBLE_DEVICES", "GPU-a");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn daemon_answers_commands_and_starts_one_server_for_its_clients() {
    let root = tempfile::tempdir().unwrap();
    for program in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        fs::copy(env!("CARGO_BIN_EXE_nvsim"), root.path().join(program)).unwrap();
    }
    let send = |line: &str| control(root.path(), &[], &format!("{line}\n")).1.trim().to_owned();
    assert!(!control(root.path(), &[], "get_server_list\n").0, "no daemon runs");
    assert!(control(root.path(), &["-d"], "").0);
    assert!(!control(root.path(), &["-d"], "").0, "one daemon per pipe directory");
    assert_eq!(send("get_server_list"), "");
    assert_eq!(send("get_default_active_thread_percentage"), "100.0");
    send("set_default_active_thread_percentage 25");
    assert_eq!(send("get_default_active_thread_percentage"), "25");
    send("set_default_device_pinned_mem_limit 0 1024M");
    assert_eq!(send("get_default_device_pinned_mem_limit 0"), "1024M");
    let client = Connection::open(&root.path().join("pipe")).unwrap();
    let threads = [None, Some("10"), Some("50")].map(|variable| client.threads(variable));
    assert_eq!(threads, [25, 10, 25], "a client gets no more than the default");
    let server = send("get_server_list");
    assert_eq!(send(&format!("get_client_list {server}")), std::process::id().to_string());
    assert!(send("ps").contains(&std::process::id().to_string()));
    send("start_server -uid 0");
    assert_eq!(send("get_server_list"), server, "one server at a time");
    send("quit");
    client.wait_for_end();
    assert!(!control(root.path(), &[], "get_server_list\n").0, "the daemon has ended");
}
