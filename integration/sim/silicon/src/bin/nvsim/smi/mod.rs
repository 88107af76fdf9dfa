//! The driver's `nvidia-smi`: resets GPUs, and shows what NVML shows.

mod gpu;
mod query;
mod reset;
mod table;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use nvml_wrapper::Nvml;
use silicon::{Store, paths};

use gpu::Gpu;

const USAGE: &str = "simulated nvidia-smi: nothing for a summary; -L; -r | --gpu-reset; \
    --query-gpu=FIELD[,FIELD...] | --query-compute-apps=FIELD[,FIELD...] with --format=csv[,noheader][,nounits]; \
    all with -i ID[,ID...]";
/// Name of NVML.
const NVML: &str = "libnvidia-ml.so.1";

/// What to print.
#[derive(Default)]
enum Show {
    #[default]
    Summary,
    List,
    Gpus(String),
    Processes(String),
}

#[derive(Default)]
struct Arguments {
    reset: bool,
    show: Show,
    ids: Option<String>,
    format: Option<String>,
}

/// An argument that this program does not have.
#[derive(Debug, thiserror::Error)]
#[error("unknown argument {0}\n{USAGE}")]
struct UsageError(String);

/// Runs as `nvidia-smi`.
pub fn main(arguments: Vec<String>) -> ExitCode {
    match parse(arguments).map_err(Box::from).and_then(|arguments| run(&arguments)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: Vec<String>) -> Result<Arguments, UsageError> {
    let mut parsed = Arguments::default();
    let mut given = arguments.into_iter();
    while let Some(argument) = given.next() {
        match argument.split_once('=').unwrap_or((&argument, "")) {
            ("-r" | "--gpu-reset", "") => parsed.reset = true,
            ("-L" | "--list-gpus", "") => parsed.show = Show::List,
            ("--query-gpu", fields) => parsed.show = Show::Gpus(fields.to_owned()),
            ("--query-compute-apps", fields) => parsed.show = Show::Processes(fields.to_owned()),
            ("--format", format) => parsed.format = Some(format.to_owned()),
            ("--id", ids) => parsed.ids = Some(ids.to_owned()),
            ("-i", "") => parsed.ids = given.next(),
            _ => return Err(UsageError(argument)),
        }
    }
    Ok(parsed)
}

fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    if arguments.reset {
        return Ok(reset::run(&Store::new(paths::state_folder()), arguments.ids.as_deref())?);
    }
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init()?;
    let gpus: Vec<Gpu> = gpu::read(&nvml)?.into_iter().filter(|gpu| gpu.is_named(arguments.ids.as_deref())).collect();
    let format = || query::Format::parse(arguments.format.as_deref());
    let text = match &arguments.show {
        Show::Summary => table::summary(&nvml, &gpus)?,
        Show::List => gpus.iter().map(gpu::line).collect(),
        Show::Gpus(fields) => query::gpus(&gpus, fields, &format()?)?,
        Show::Processes(fields) => query::processes(&gpus, fields, &format()?)?,
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// NVML of the driver root that has this program, which is also a container's; else what the linker finds.
fn library() -> PathBuf {
    let program = std::env::current_exe().ok();
    let root = program.as_deref().and_then(|program| program.to_str()?.strip_suffix("usr/bin/nvidia-smi"));
    let of_root = root.map(|root| PathBuf::from(root).join(paths::LIBRARY_FOLDER).join(NVML));
    of_root.filter(|library| library.exists()).unwrap_or_else(|| NVML.into())
}
