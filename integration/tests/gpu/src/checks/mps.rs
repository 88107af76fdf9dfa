//! NVIDIA's Multi-Process Service as the agent runs it: limits of its clients, and what a container's namespaces change.
//!
//! The GPU's compute mode stays as it is; the agent sets `EXCLUSIVE_PROCESS`.

use std::{
    error::Error,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use gputenancy_agent::mps::{
    self,
    control::{Control, PROGRAM},
};
use tokio::runtime::{Builder, Runtime};

use crate::{
    container::{Container, MIB, Output, end, first_line},
    report::Report,
};

/// The limit of memory, in MiB, and blocks of 64 MiB in it.
const MEMORY: i64 = 1024;
const BLOCKS: f64 = 16.0;
/// The limit of threads, in percent.
const THREADS: i32 = 25;

/// How a client is started: a name, options of `unshare`, and commands before the program, with the folder of pipes in `$P`.
const STARTS: [(&str, &[&str], &str); 5] = [
    ("on the node", &["--mount"], ""),
    ("with a read-only folder of pipes", &["--mount"], "mount --bind $P $P; mount -o remount,bind,ro $P;"),
    (
        "and with a /dev/shm of its own",
        &["--mount"],
        "mount --bind $P $P; mount -o remount,bind,ro $P; mount -t tmpfs tmpfs /dev/shm;",
    ),
    (
        "and in other namespaces of IPC and processes, as in a container",
        &["--mount", "--ipc", "--pid", "--fork", "--mount-proc"],
        "mount --bind $P $P; mount -o remount,bind,ro $P; mount -t tmpfs tmpfs /dev/shm;",
    ),
    (
        "and as another user",
        &["--mount", "--ipc", "--pid", "--fork", "--mount-proc"],
        "mount --bind $P $P; mount -o remount,bind,ro $P; mount -t tmpfs tmpfs /dev/shm; AS='setpriv --reuid 65534 --regid 65534 --clear-groups';",
    ),
];

/// A daemon that ends with this value.
struct Daemon {
    runtime: Runtime,
    control: Control,
}

impl Daemon {
    fn command(&self, line: &str) -> Result<String, mps::Error> {
        self.runtime.block_on(self.control.command(line))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let servers = self.runtime.block_on(self.control.servers()).unwrap_or_default();
        self.runtime.block_on(self.control.stop(&servers));
    }
}

/// Limits hold for clients with and without limits of their own, started in different ways.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let program = container.driver_root.join(PROGRAM);
    if !program.exists() {
        report.measured("mps", "limits of clients", &format!("not run: there is no {}", program.display()));
        return Ok(());
    }
    let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir()?;
    let daemon = Daemon {
        runtime: Builder::new_current_thread().enable_all().build()?,
        control: Control {
            gpu: container.uuid.clone(),
            driver_root: container.driver_root.clone(),
            folder: folder.path().into(),
            proc_root: "/proc".into(),
            // no cgroup: the daemon ends with this program
            cgroup_root: folder.path().into(),
        },
    };
    daemon.runtime.block_on(daemon.control.start())?;
    daemon.runtime.block_on(daemon.control.set_defaults((Some(MEMORY), Some(THREADS))))?;
    let pipes = daemon.control.pipes();
    for (start, options, before) in STARTS {
        let output = end(client(container, &pipes, options, before, "allocate --count 200").spawn()?)?;
        limited(report, &format!("{start}: at most {MEMORY} MiB, the daemon's default"), &output, BLOCKS);
    }
    let mut own = client(container, &pipes, &["--mount"], "", "allocate --count 200");
    own.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M");
    limited(report, "a limit of its own: at most 512 MiB", &end(own.spawn()?)?, BLOCKS / 2.0);
    let mut more = client(container, &pipes, &["--mount"], "", "allocate --count 200");
    more.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G");
    limited(report, "a client cannot raise its limit above the daemon's", &end(more.spawn()?)?, BLOCKS);
    seen(container, &daemon, &pipes, report)?;
    threads(container, &pipes, report)
}

/// `cuda-work` as a client.
fn client(container: &Container, pipes: &Path, options: &[&str], before: &str, arguments: &str) -> Command {
    // a user other than root finds the program in no folder of root
    let script = format!("set -e; P='{}'; AS=; {before} exec $AS \"$@\"", pipes.display());
    let work = container.work_program().display().to_string();
    let mut all: Vec<&str> = options.to_vec();
    all.extend(["sh", "-c", &script, "sh", &work]);
    all.extend(arguments.split_whitespace());
    let mut command = container.program(None, &PathBuf::from("unshare"), &all);
    command.env("CUDA_MPS_PIPE_DIRECTORY", pipes);
    command
}

fn limited(report: &mut Report, what: &str, output: &Output, blocks: f64) {
    let granted = output.number("granted=").unwrap_or(-1.0);
    let ok = granted > 0.0 && granted <= blocks && output.number("code=") == Some(2.0);
    report.holds("mps", what, output.text.lines().next().unwrap_or_default(), ok);
}

/// The daemon lists its server and its client.
fn seen(container: &Container, daemon: &Daemon, pipes: &Path, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let watch = container.gpu.watch();
    let mut child = client(container, pipes, &["--mount"], "", "allocate --count 4 --hold").spawn()?;
    first_line(&mut child)?;
    let servers = daemon.runtime.block_on(daemon.control.servers())?;
    let clients = daemon.runtime.block_on(daemon.control.clients(&servers))?;
    let limit = daemon.command("get_default_device_pinned_mem_limit 0").unwrap_or_else(|error| error.to_string());
    child.kill()?;
    child.wait()?;
    let found = format!(
        "{} servers, {clients} clients; NVML: {} MiB more at most; default limit: {}",
        servers.len(),
        watch.end() / MIB,
        limit.trim()
    );
    report.holds("mps", "one server with one client", &found, servers.len() == 1 && clients == 1);
    Ok(())
}

/// What a program with a limit of threads sees of the GPU.
fn threads(container: &Container, pipes: &Path, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let Some(python) = &container.python else {
        report.measured("mps", "multiprocessors of a client", "not run: name a Python with PyTorch with --python");
        return Ok(());
    };
    let code = "import torch; print(torch.cuda.get_device_properties(0).multi_processor_count)";
    let mut client = container.program(None, python, &["-c", code]);
    client.env("CUDA_MPS_PIPE_DIRECTORY", pipes);
    let with = end(client.spawn()?)?.text;
    let without = end(container.program(None, python, &["-c", code]).spawn()?)?.text;
    let found = format!("{} of {}", with.trim(), without.trim());
    let ok = match (with.trim().parse::<u32>(), without.trim().parse::<u32>()) {
        // the server rounds up to what the hardware can give
        (Ok(with), Ok(without)) => with > 0 && with * 100 <= without * (THREADS.unsigned_abs() + 5),
        _ => false,
    };
    report.holds("mps", &format!("multiprocessors of a client with {THREADS} percent of threads"), &found, ok);
    Ok(())
}
