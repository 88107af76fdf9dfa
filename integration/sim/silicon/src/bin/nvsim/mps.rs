//! The driver root's `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server`: the commands and the files that the control program of
//! NVIDIA's Multi-Process Service has. Between its own processes it speaks lines on a socket; NVIDIA's protocol there is not published.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use silicon::mps::{CLIENT, CONNECTED, CONTROL};

/// Name of the file with the daemon's process id in the pipe directory.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// How often `-d` looks whether the daemon listens.
const LOOK: Duration = Duration::from_millis(20);
/// How often `-d` looks before it gives up: five seconds.
const LOOKS: u32 = 250;

/// Runs as `nvidia-cuda-mps-control`.
pub fn control(arguments: &[String]) -> ExitCode {
    let done = match arguments.first().map(String::as_str) {
        Some("-d") => background(),
        Some("-f") => daemon(),
        None => forward(),
        Some(other) => Err(format!("unknown argument {other}: only -d, -f, and commands on stdin").into()),
    };
    done.map_or_else(
        |error| {
            eprintln!("nvidia-cuda-mps-control: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Runs as `nvidia-cuda-mps-server` until its daemon has ended.
pub fn server() -> ExitCode {
    // the daemon holds the other end
    let _ = io::stdin().read(&mut [0; 1]);
    ExitCode::SUCCESS
}

fn folder(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| default.into(), PathBuf::from)
}

fn pipes() -> PathBuf {
    folder("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
}

/// Starts the daemon and returns once it listens.
fn background() -> Result<(), Box<dyn Error>> {
    if UnixStream::connect(pipes().join(CONTROL)).is_ok() {
        return Err("an instance of this daemon is already running".into());
    }
    let mut daemon = Command::new(std::env::current_exe()?);
    daemon.arg("-f").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    // the copy in the driver root has the name of the control program
    daemon.spawn()?;
    for _ in 0..LOOKS {
        if UnixStream::connect(pipes().join(CONTROL)).is_ok() {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    Err("the daemon does not listen".into())
}

/// Sends the commands on stdin to the daemon, and prints its answers.
fn forward() -> Result<(), Box<dyn Error>> {
    let connect = || UnixStream::connect(pipes().join(CONTROL));
    for line in io::stdin().lines() {
        let mut stream = connect().map_err(|_| "Cannot find MPS control daemon process")?;
        writeln!(stream, "{}", line?.trim())?;
        stream.shutdown(Shutdown::Write)?;
        io::copy(&mut stream, &mut io::stdout())?;
    }
    Ok(())
}

/// What the daemon knows.
#[derive(Default)]
struct State {
    /// The server, its user, and the pipe whose end it waits for.
    server: Option<(Child, u32, ChildStdin)>,
    /// Connections of clients by process id.
    clients: BTreeMap<i32, UnixStream>,
    /// Default limit of device memory, by device.
    memory: BTreeMap<String, String>,
    /// Default percentage of threads.
    threads: Option<String>,
}

fn daemon() -> Result<(), Box<dyn Error>> {
    let (pipes, logs) = (pipes(), folder("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"));
    fs::create_dir_all(&pipes)?;
    fs::create_dir_all(&logs)?;
    let socket = pipes.join(CONTROL);
    let _ = fs::remove_file(&socket);
    fs::write(pipes.join(PID_FILE), format!("{}\n", std::process::id()))?;
    let devices = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    fs::write(logs.join("control.log"), format!("Start, devices {devices}\n"))?;
    let listener = UnixListener::bind(&socket)?;
    // clients of all users connect
    fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    let state = Arc::new(Mutex::new(State::default()));
    for stream in listener.incoming() {
        let (stream, state) = (stream?, Arc::clone(&state));
        thread::spawn(move || drop(serve(stream, &state)));
    }
    Ok(())
}

fn serve(mut stream: UnixStream, state: &Mutex<State>) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    if line.trim() == CLIENT {
        return client(stream, state);
    }
    let answer = lock(state).answer(line.trim());
    stream.write_all(answer.as_bytes())?;
    if line.trim().starts_with("quit") {
        let _ = fs::remove_file(pipes().join(PID_FILE));
        let _ = fs::remove_file(pipes().join(CONTROL));
        std::process::exit(0);
    }
    Ok(())
}

/// A client stays connected while it uses the GPU.
fn client(mut stream: UnixStream, state: &Mutex<State>) -> io::Result<()> {
    let peer = getsockopt(&stream, PeerCredentials)?;
    let defaults = {
        let mut state = lock(state);
        state.start_server(peer.uid())?;
        state.clients.insert(peer.pid(), stream.try_clone()?);
        // the daemon sees one GPU, which CUDA numbers 0
        format!("{} {}", state.threads(), state.memory.get("0").map_or("", String::as_str))
    };
    writeln!(stream, "{CONNECTED} {defaults}")?;
    let _ = stream.read(&mut [0; 1]);
    lock(state).clients.remove(&peer.pid());
    Ok(())
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// One server at a time, as on a GPU that is exclusive to one process.
    fn start_server(&mut self, uid: u32) -> io::Result<()> {
        if self.server_pid().is_some() {
            return Ok(());
        }
        let own = std::env::current_exe()?;
        let program = own.parent().unwrap_or(Path::new("/")).join("nvidia-cuda-mps-server");
        let mut child = Command::new(program).stdin(Stdio::piped()).spawn()?;
        let Some(stdin) = child.stdin.take() else { return Ok(()) };
        self.server = Some((child, uid, stdin));
        Ok(())
    }

    /// The process of the server, if it lives; its end is that of its clients.
    fn server_pid(&mut self) -> Option<u32> {
        let (child, ..) = self.server.as_mut()?;
        if matches!(child.try_wait(), Ok(None)) {
            return Some(child.id());
        }
        self.server = None;
        for stream in std::mem::take(&mut self.clients).into_values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        None
    }

    /// Default percentage of threads.
    fn threads(&self) -> &str {
        self.threads.as_deref().unwrap_or("100.0")
    }

    fn answer(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let (command, rest) = (words.next().unwrap_or_default(), words.collect::<Vec<_>>());
        let server = self.server_pid();
        match (command, rest.as_slice()) {
            ("get_server_list", []) => server.map_or_else(String::new, |pid| format!("{pid}\n")),
            ("get_client_list", [pid]) if server.is_some_and(|server| *pid == server.to_string()) => {
                self.clients.keys().fold(String::new(), |list, pid| format!("{list}{pid}\n"))
            }
            ("get_client_list", _) => "Server not found\n".into(),
            ("ps", _) => {
                let row = |pid: &i32| format!("{pid} 0 {} 0 gpu-work\n", server.unwrap_or_default());
                let rows: String = self.clients.keys().map(row).collect();
                format!("PID ID SERVER DEVICE COMMAND\n{rows}")
            }
            ("start_server", ["-uid", uid]) => match uid.parse().map(|uid| self.start_server(uid)) {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => format!("Failed to start server: {error}\n"),
                Err(_) => "Invalid UID\n".into(),
            },
            ("set_default_active_thread_percentage", [percent]) => {
                self.threads = Some((*percent).to_owned());
                format!("{percent}\n")
            }
            ("get_default_active_thread_percentage", []) => {
                format!("{}\n", self.threads())
            }
            ("set_default_device_pinned_mem_limit", [device, limit]) => {
                self.memory.insert((*device).to_owned(), (*limit).to_owned());
                String::new()
            }
            ("get_default_device_pinned_mem_limit", [device]) => {
                self.memory.get(*device).map_or_else(|| "N/A\n".into(), |limit| format!("{limit}\n"))
            }
            ("quit", _) => {
                self.server = None;
                String::new()
            }
            _ => format!("Invalid command: {line}\n"),
        }
    }
}
