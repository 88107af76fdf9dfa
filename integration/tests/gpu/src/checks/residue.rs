//! What one program leaves in GPU memory for the next.

use std::error::Error;

use crate::{
    container::{Container, first_line},
    report::Report,
};

/// A program finds nothing of another one that was killed, in all memory that the driver gives it.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let mut left = container.begin(None, "leave --seed 20 --size 2Gi --hold")?;
    let line = first_line(&mut left)?;
    left.kill()?;
    left.wait()?;
    let searched = container.work(None, "search --seed 20")?;
    let found = format!("{}, {}", line.trim(), searched.text.lines().next().unwrap_or_default());
    let most = searched.number("searched=").unwrap_or_default();
    let ok = line.contains("left=2048MiB") && most >= 4096.0 && searched.number("found=") == Some(0.0);
    report.holds("residue", "a program finds nothing of one that was killed before it", &found, ok);
    Ok(())
}
