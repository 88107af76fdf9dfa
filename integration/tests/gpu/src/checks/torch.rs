//! `PyTorch` with and without the shim.

use std::{error::Error, fs};

use crate::{
    container::{CONTEXT, Container, MIB, Output, Share, end},
    report::Report,
};

/// The programs, by the name that is their argument.
const PROGRAM: &str = include_str!("../../data/torch_work.py");

/// Bytes of `PyTorch`'s code on the GPU, which is not counted, beyond what is reserved for a context.
const CODE: u64 = 64 * MIB;

/// Its view, its error over the limit, its allocators, and the speed of a training.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let Some(python) = &container.python else {
        report.measured("torch", "PyTorch", "not run: name a Python that has it with --python");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("torch_work.py");
    fs::write(&program, PROGRAM)?;
    let program = program.to_str().ok_or("a path that is no text")?.to_owned();
    let run = |share: Option<&Share>, what: &str, allocator: &str| -> Result<Output, Box<dyn Error>> {
        let mut command = container.program(share, python, &[&program, what]);
        Ok(end(command.env("PYTORCH_CUDA_ALLOC_CONF", allocator).spawn()?)?)
    };
    let size = 8192 * MIB;
    for allocator in ["", "expandable_segments:True", "backend:cudaMallocAsync"] {
        let share = container.share("torch", size)?;
        let watch = container.gpu.watch();
        let output = run(Some(&share), "fill", allocator)?;
        let most = watch.end();
        let found = format!("{} NVML: {} MiB at most", output.text, most / MIB);
        let ok = output.text.contains("total=8192 refused=OutOfMemoryError") && most <= size + CONTEXT + CODE;
        report.holds("torch", &format!("8 GiB, allocator `{allocator}`: sees it, and stops at it"), &found, ok);
    }
    let share = container.share("torch", 16_384 * MIB)?;
    let steps = |share: Option<&Share>, what: &str| -> Result<f64, Box<dyn Error>> {
        let output = run(share, what, "")?;
        Ok(output.number("steps=").ok_or(output.text)?)
    };
    for what in ["train", "graph"] {
        let mut rounds = Vec::new();
        for _ in 0..3 {
            rounds.push((steps(None, what)?, steps(Some(&share), what)?));
        }
        let ratio: Vec<String> = rounds.iter().map(|(without, with)| format!("{:.4}", with / without)).collect();
        let found = format!("steps a second with a limit to without: {}", ratio.join(", "));
        report.measured("torch", what, &found);
    }
    Ok(())
}
