//! Programs on a share of the GPU, as the agent gives it to a container.

use std::{
    ffi::{CStr, OsStr, c_void},
    fs,
    io::{self, BufRead as _, BufReader},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use gputenancy_ledger::{
    Limits, Mapped, OnMissing, Pace, Usage,
    paths::{LIMITS_FILE, USAGE_FILE},
};
use libloading::Library;
use tempfile::TempDir;

use crate::{Arguments, nvml::Gpu};

pub const MIB: u64 = 1 << 20;
/// Bytes that the agent reserves for a context.
pub const CONTEXT: u64 = 640 * MIB;
/// Runs a program in a mount namespace.
const SCRIPT: &[u8] = include_bytes!("../in-container");

/// What all containers of this machine have in common.
pub struct Container {
    folder: TempDir,
    shim: PathBuf,
    work: PathBuf,
    driver: PathBuf,
    view: Option<(PathBuf, PathBuf)>,
    pub smi: PathBuf,
    pub python: Option<PathBuf>,
    /// Folder of the driver's files.
    pub driver_root: PathBuf,
    pub millis: u64,
    pub gpu: Gpu,
    pub uuid: String,
}

/// The share of one container.
pub struct Share {
    folder: PathBuf,
    pub limits: Mapped<Limits>,
    pub usage: Mapped<Usage>,
}

/// What a program printed.
pub struct Output {
    pub ok: bool,
    pub text: String,
}

impl Container {
    pub fn new(arguments: &Arguments, gpu: Gpu) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let script = folder.path().join("in-container");
        fs::write(&script, SCRIPT)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let driver = arguments.driver.clone().map_or_else(|| loaded("libcuda.so.1", "cuInit"), Ok)?;
        let nvml = || loaded(&arguments.nvml, "nvmlInit_v2")?.canonicalize();
        let view =
            arguments.view.as_ref().map(|view| Ok::<_, io::Error>((nvml()?, view.canonicalize()?))).transpose()?;
        let uuid = gpu.text("nvmlDeviceGetUUID");
        Ok(Self {
            shim: arguments.shim.canonicalize()?,
            work: arguments.work.canonicalize()?,
            driver: driver.canonicalize()?,
            view,
            smi: arguments.smi.clone(),
            python: arguments.python.clone(),
            driver_root: arguments.driver_root.clone(),
            millis: arguments.millis,
            folder,
            gpu,
            uuid,
        })
    }

    /// A share with so many bytes, in a new container.
    pub fn share(&self, name: &str, memory: u64) -> io::Result<Share> {
        let folder = self.folder.path().join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        let limits = Mapped::<Limits>::create(&folder.join(LIMITS_FILE))?;
        limits.write(&self.uuid, memory, CONTEXT, OnMissing::Deny);
        let usage = Mapped::<Usage>::create(&folder.join(USAGE_FILE))?;
        Ok(Share { folder, limits, usage })
    }

    /// A share with a part of the GPU's time.
    pub fn paced(&self, name: &str, pace: Pace) -> io::Result<Share> {
        let share = self.share(name, 4096 * MIB)?;
        share.limits.set_pace(Some(pace));
        Ok(share)
    }

    /// A program, with the share if there is one.
    pub fn program(&self, share: Option<&Share>, program: &Path, arguments: &[&str]) -> Command {
        let mut command = match share {
            None => Command::new(program),
            Some(share) => {
                let mut command = Command::new(self.folder.path().join("in-container"));
                command.args([&self.driver, &self.shim]).arg(&share.folder).arg(program);
                if let Some((nvml, view)) = &self.view {
                    command.env("NVML", nvml).env("VIEW", view);
                }
                command
            }
        };
        if share.is_none()
            && let Some(folder) = self.driver.parent()
        {
            // the simulated driver is where no linker looks
            let plain = self.folder.path().join("plain");
            drop(fs::create_dir(&plain));
            drop(std::os::unix::fs::symlink(&self.driver, plain.join("libcuda.so.1")));
            let known = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
            command.env("LD_LIBRARY_PATH", format!("{}:{}:{known}", plain.display(), folder.display()));
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `cuda-work`.
    pub fn work(&self, share: Option<&Share>, arguments: &str) -> io::Result<Output> {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        end(self.program(share, &self.work, &arguments).spawn()?)
    }

    /// Begins to run `cuda-work`.
    pub fn begin(&self, share: Option<&Share>, arguments: &str) -> io::Result<Child> {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        self.program(share, &self.work, &arguments).spawn()
    }

    /// The view is there.
    pub fn has_view(&self) -> bool {
        self.view.is_some()
    }

    /// Path of the program.
    pub fn work_program(&self) -> &Path {
        &self.work
    }
}

/// Waits for a program.
pub fn end(child: Child) -> io::Result<Output> {
    let output = child.wait_with_output()?;
    let ok = output.status.success();
    let text = if ok { output.stdout } else { [output.stdout, output.stderr].concat() };
    Ok(Output { ok, text: String::from_utf8_lossy(&text).into_owned() })
}

/// Waits for the line that a program prints when it holds its memory.
pub fn first_line(child: &mut Child) -> io::Result<String> {
    let mut line = String::new();
    if let Some(output) = child.stdout.as_mut() {
        BufReader::new(output).read_line(&mut line)?;
    }
    Ok(line)
}

impl Output {
    /// The number after a name, such as `granted=`.
    pub fn number(&self, name: &str) -> Option<f64> {
        let at = self.text.find(name)?.checked_add(name.len())?;
        let digits = self.text.get(at..)?;
        let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
        digits.get(..end)?.parse().ok()
    }
}

/// The file of a library of the driver that the linker finds, by a function that it has.
fn loaded(name: &str, function: &str) -> io::Result<PathBuf> {
    let missing = |error: libloading::Error| io::Error::other(format!("no driver: {error}; name one with --driver"));
    // SAFETY: loading a library of the driver runs its constructors, as in every program that uses it.
    let library = unsafe { Library::new(name) }.map_err(missing)?;
    // SAFETY: only its address is used.
    let symbol = unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) }.map_err(missing)?;
    // SAFETY: Dl_info is plain data, for which zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only reads the address, and fills `info`.
    let found = unsafe { libc::dladdr(*symbol as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return Err(io::Error::other(format!("the linker does not tell where {name} is")));
    }
    // SAFETY: NUL-terminated after success, and the library is still loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Ok(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
