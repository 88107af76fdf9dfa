//! Runs the driver's `nvidia-cuda-mps-control`: as a daemon, and to send commands to that daemon.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use gputenancy_nvml::find_library;
use nix::{
    fcntl::OFlag,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::AsyncWriteExt,
    process::Command,
    time::{sleep, timeout},
};

use super::Error;
use crate::gpu::processes::process_origin::{MPS_CGROUP, stat};

/// Path of the control program below a driver root.
pub const PROGRAM: &str = "usr/bin/nvidia-cuda-mps-control";
/// Name of a daemon's process as the kernel has it, which keeps 15 characters.
const COMMAND: &str = "nvidia-cuda-mps";
/// The daemon's file with its process id, in the pipe directory.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// Limit for one command, and for the start of a daemon.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Delay between two checks whether a process has ended, and their number: two seconds.
const END_POLL: (Duration, u32) = (Duration::from_millis(50), 40);

/// The control daemon of one GPU for one tenant.
#[derive(Clone, Debug)]
pub struct Control {
    /// UUID of the GPU.
    pub gpu: String,
    /// Root of the driver's files in this container.
    pub driver_root: PathBuf,
    /// The daemon's folder, with `pipe` and `log`.
    pub folder: PathBuf,
    /// `/proc` with the host's processes.
    pub proc_root: PathBuf,
    /// `/sys/fs/cgroup` of the host.
    pub cgroup_root: PathBuf,
}

impl Control {
    /// Folder of the pipes, which containers mount. It stays the same folder when the daemon is restarted.
    pub fn pipes(&self) -> PathBuf {
        self.folder.join("pipe")
    }

    fn program(&self) -> Command {
        let mut command = Command::new(self.driver_root.join(PROGRAM));
        command
            .env("CUDA_VISIBLE_DEVICES", &self.gpu)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipes())
            .env("CUDA_MPS_LOG_DIRECTORY", self.folder.join("log"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        // the program searches the library in the linker's folders, not in its own root
        if let Some(folder) = find_library(&self.driver_root).as_deref().and_then(Path::parent) {
            command.env("LD_LIBRARY_PATH", folder);
        }
        command
    }

    /// Starts the daemon; files of an earlier one are removed.
    pub async fn start(&self) -> Result<(), Error> {
        prepare(&self.pipes())
            .and_then(|()| fs::create_dir_all(self.folder.join("log")))
            .map_err(|error| Error::Folder { folder: self.folder.clone(), error })?;
        let status = timeout(TIMEOUT, self.program().arg("-d").stdout(Stdio::null()).stderr(Stdio::null()).status());
        let program = || self.driver_root.join(PROGRAM);
        let status = status.await.map_err(|_| Error::NoReturn(program()))?;
        let status = status.map_err(|error| Error::Program { program: program(), error })?;
        if !status.success() {
            let log = self.folder.join("log/control.log");
            return Err(Error::Start { program: program(), status, log });
        }
        let pid = self.pid().ok_or_else(|| Error::EndedAtOnce(program()))?;
        if let Err(error) = leave_container(&self.cgroup_root, pid) {
            tracing::warn!(gpu = self.gpu, pid, %error, "MPS daemon stays in the agent's cgroup and ends with its container");
        }
        Ok(())
    }

    /// Sends one command and returns the answer.
    pub async fn command(&self, line: &str) -> Result<String, Error> {
        let command = || line.to_owned();
        let send = async {
            let mut child =
                self.program().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(format!("{line}\n").as_bytes()).await?;
            }
            child.wait_with_output().await
        };
        let output = timeout(TIMEOUT, send).await.map_err(|_| Error::NoAnswer(command()))?;
        let output = output.map_err(|error| Error::Send { command: command(), error })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let answer = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Refused { command: command(), answer })
    }

    /// Sets the limits of clients without limits of their own. Memory in MiB, threads in percent.
    pub async fn set_defaults(&self, (memory, compute): (Option<i64>, Option<i32>)) -> Result<(), Error> {
        // the daemon sees one GPU, which CUDA numbers 0
        if let Some(mib) = memory {
            self.command(&format!("set_default_device_pinned_mem_limit 0 {mib}M")).await?;
        }
        if let Some(percent) = compute {
            self.command(&format!("set_default_active_thread_percentage {percent}")).await?;
        }
        Ok(())
    }

    /// Process ids of the servers.
    pub async fn servers(&self) -> Result<Vec<u32>, Error> {
        Ok(numbers(&self.command("get_server_list").await?))
    }

    /// Number of clients of these servers.
    pub async fn clients(&self, servers: &[u32]) -> Result<usize, Error> {
        let mut clients = 0;
        for server in servers {
            clients += numbers(&self.command(&format!("get_client_list {server}")).await?).len();
        }
        Ok(clients)
    }

    /// The daemon's process, if it runs.
    pub fn pid(&self) -> Option<u32> {
        let pid = read_pid(&self.pipes().join(PID_FILE)).ok()?.trim().parse().ok()?;
        is_mps(&self.proc_root, pid).then_some(pid)
    }

    /// Ends the daemon and its servers: `quit` first, then by signal.
    pub async fn stop(&self, servers: &[u32]) {
        let pid = self.pid();
        if pid.is_some() {
            // a daemon that does not answer is killed below
            let _ = self.command("quit").await;
        }
        for pid in pid.iter().chain(servers) {
            self.end(*pid).await;
        }
    }

    async fn end(&self, pid: u32) {
        let Ok(number) = i32::try_from(pid) else { return };
        for attempt in 0..END_POLL.1 {
            if !is_mps(&self.proc_root, pid) {
                return;
            }
            // the id is that of an MPS process still; a failure means that it has ended
            let signal = if attempt * 2 < END_POLL.1 { Signal::SIGTERM } else { Signal::SIGKILL };
            let _ = kill(Pid::from_raw(number), signal);
            sleep(END_POLL.0).await;
        }
    }
}

/// Makes an empty folder, or empties it: containers have mounted the folder itself.
fn prepare(pipes: &Path) -> io::Result<()> {
    fs::create_dir_all(pipes)?;
    for entry in fs::read_dir(pipes)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// The first bytes of a regular file. Containers of earlier releases can write to the folder: a FIFO or a link must not stop the agent.
fn read_pid(file: &Path) -> io::Result<String> {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = String::new();
    file.take(32).read_to_string(&mut text)?;
    Ok(text)
}

/// An MPS daemon or server lives under this process id.
fn is_mps(proc_root: &Path, pid: u32) -> bool {
    let stat = stat(&proc_root.join(pid.to_string())).unwrap_or_default();
    let Some((name, rest)) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')) else { return false };
    name == COMMAND && !rest.trim_start().starts_with(['Z', 'X'])
}

fn numbers(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Moves the daemon out of the agent's container; servers are started in its cgroup.
fn leave_container(cgroup_root: &Path, pid: u32) -> io::Result<()> {
    // only the unified hierarchy has this file at its root
    fs::metadata(cgroup_root.join("cgroup.controllers"))?;
    let own = cgroup_root.join(MPS_CGROUP);
    fs::create_dir_all(&own)?;
    fs::write(own.join("cgroup.procs"), pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_has_a_process_id() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "42\n").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_pid(&at("file")).unwrap(), "42\n");
        assert!(["link", "fifo", "missing"].map(|name| read_pid(&at(name)).is_err()).iter().all(|refused| *refused));
    }

    #[test]
    fn only_living_mps_processes_count() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, stat) in [(7, "7 (nvidia-cuda-mps) S 1"), (8, "8 (nvidia-cuda-mps) Z 1"), (9, "9 (train) S 1")] {
            let folder = proc.path().join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("stat"), stat).unwrap();
        }
        assert_eq!([7, 8, 9, 10].map(|pid| is_mps(proc.path(), pid)), [true, false, false, false]);
    }
}
