//! A transcript of what programs ask `cuGetProcAddress` for.

use std::{ffi::c_int, fs::OpenOptions, io::Write};

/// Names the file to which each request is appended, as a line with name, CUDA version and flags.
const VARIABLE: &str = "NVSIM_TRANSCRIPT";

/// Appends a request, if there is a transcript. The empty name is a test for the function itself, and is left out.
pub fn record(name: &str, version: c_int, flags: u64) {
    let Some(path) = std::env::var_os(VARIABLE).filter(|_| !name.is_empty()) else { return };
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
        // one write, so that lines of two threads are not mixed; a test finds the line that is missing
        let _ = file.write_all(format!("{name} {version} {flags}\n").as_bytes());
    }
}
