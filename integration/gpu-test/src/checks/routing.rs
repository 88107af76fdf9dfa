//! `cuGetProcAddress`: for everything that a CUDA runtime asks for, the shim's function if and only if the name is one that it replaces.

use std::{error::Error, io::Write, process::Stdio};

use crate::{
    container::{Container, Share, end},
    report::Report,
};

/// What `cudart` 13 asks for: name, version, flags.
const ASKED: &str = include_str!("../../data/cudart-13.txt");

/// Compares the answers with and without the shim.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let share = container.share("routing", 1 << 30)?;
    let (plain, limited) = (ask(container, None)?, ask(container, Some(&share))?);
    let replaced = |text: &str| text.contains("/run/shim/");
    let (mut hooks, mut same, mut wrong) = (0, 0, Vec::new());
    for (plain, limited) in plain.lines().zip(limited.lines()) {
        // file, symbol and status
        let end = |text: &str| text.rsplit(' ').take(2).map(str::to_owned).collect::<Vec<_>>();
        match (replaced(limited), end(plain) == end(limited)) {
            (true, true) => hooks += 1,
            (false, true) => same += 1,
            _ => wrong.push(format!("{plain} / {limited}")),
        }
    }
    let ok = wrong.is_empty() && hooks > 0 && plain.lines().count() == ASKED.lines().count();
    let found =
        format!("{hooks} replaced by the function of the same name, {same} the driver's own; {}", wrong.join(", "));
    report.holds("routing", "all that cudart 13 asks for", &found, ok);
    Ok(())
}

fn ask(container: &Container, share: Option<&Share>) -> Result<String, Box<dyn Error>> {
    let mut command = container.program(share, container.work_program(), &["routes"]);
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("no input")?;
    let writer = std::thread::spawn(move || input.write_all(ASKED.as_bytes()));
    let output = end(child)?;
    drop(writer.join());
    if output.ok { Ok(output.text) } else { Err(output.text.into()) }
}
