//! `cuGetProcAddress`: for everything that a CUDA runtime asks for, the shim's function if and only if the name is one that it replaces.

use std::{error::Error, io::Write, process::Stdio};

use crate::{
    container::{Container, Share, end},
    report::Report,
};

/// What CUDA's runtimes ask for: name, version, flags. Recorded by `agent/shim/tests/runtimes.rs`.
const RUNTIMES: [(&str, &str); 3] = [
    ("11.8", include_str!("../../data/cudart-11.8.txt")),
    ("12.9", include_str!("../../data/cudart-12.9.txt")),
    ("13.5", include_str!("../../data/cudart-13.5.txt")),
];

/// Checks all runtimes.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    RUNTIMES.iter().try_for_each(|(version, asked)| compare(container, report, version, asked))
}

/// Compares the answers with and without the shim.
fn compare(
    container: &Container,
    report: &mut Report,
    version: &str,
    asked: &'static str,
) -> Result<(), Box<dyn Error>> {
    let share = container.share("routing", 1 << 30)?;
    let (plain, limited) = (ask(container, None, asked)?, ask(container, Some(&share), asked)?);
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
    let ok = wrong.is_empty() && hooks > 0 && plain.lines().count() == asked.lines().count();
    let found =
        format!("{hooks} replaced by the function of the same name, {same} the driver's own; {}", wrong.join(", "));
    report.holds("routing", &format!("all that cudart {version} asks for"), &found, ok);
    Ok(())
}

fn ask(container: &Container, share: Option<&Share>, asked: &'static str) -> Result<String, Box<dyn Error>> {
    let mut command = container.program(share, container.work_program(), &["routes"]);
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("no input")?;
    let writer = std::thread::spawn(move || input.write_all(asked.as_bytes()));
    let output = end(child)?;
    drop(writer.join());
    if output.ok { Ok(output.text) } else { Err(output.text.into()) }
}
