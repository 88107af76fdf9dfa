//! What cargo builds of this checkout.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

/// The root of the checkout: the folder of the lockfile.
pub fn checkout() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace").to_owned()
}

/// The simulated NVML.
pub fn library() -> PathBuf {
    shared("libnvml_sim.so")
}

/// A library that cargo builds as a dependency of this test.
pub fn shared(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let found = [deps.join(name), deps.join("..").join(name)].into_iter().find(|path| path.exists());
    found.expect("cargo builds it").canonicalize().unwrap()
}

/// A program of the crate `silicon`, `lab`, `cuda-sim` or `nvml-sim`, built now if its crate's sources are newer.
pub fn binary(name: &str) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let package = match name {
        "lab" => "lab",
        "cuda-work" => "cuda-sim",
        "nvml-work" => "nvml-sim",
        _ => "silicon",
    };
    let program = checkout().join("target/debug").join(name);
    let built = program.metadata().and_then(|m| m.modified()).ok();
    let folders = ["integration/sim", "integration"].map(|folder| checkout().join(folder).join(package).join("src"));
    let sources = folders.iter().find(|folder| folder.exists()).expect("the sources of the program");
    if built < newest(sources) {
        let cargo = Command::new(env!("CARGO")).args(["build", "--quiet", "--package", package, "--bins"]).status();
        assert!(cargo.unwrap().success(), "cargo build --package {package}");
    }
    program
}

/// When the newest file below a folder was written.
fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let time = |path: PathBuf| if path.is_dir() { newest(&path) } else { path.metadata().ok()?.modified().ok() };
    entries.filter_map(time).max()
}
