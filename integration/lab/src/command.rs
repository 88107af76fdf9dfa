//! Runs programs and captures their output.

use crate::error::{During, Error, Result};
use std::ffi::OsStr;
use std::process::Stdio;
use tokio::process::Command;

/// Result of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; none when a signal ended it.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output of a program that succeeded.
    pub fn success(self, command: &str) -> Result<String> {
        if self.status == Some(0) {
            return Ok(self.stdout);
        }
        let status =
            self.status.map_or_else(|| "ended by a signal".to_owned(), |status| format!("exit status {status}"));
        let text = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let from = text.char_indices().rev().nth(4000).map_or(0, |(at, _)| at);
        let stderr = text.get(from..).unwrap_or_default().trim().to_owned();
        Err(Error::Command { command: command.to_owned(), status, stderr })
    }
}

/// The command line as text.
pub fn words(command: &Command) -> String {
    let command = command.as_std();
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    all.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs a prepared command to its end.
pub async fn output(command: &mut Command) -> Result<Output> {
    let line = words(command);
    let out = command.stdin(Stdio::null()).kill_on_drop(true).output().await.during(|| format!("running `{line}`"))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Output { status: out.status.code(), stdout: text(out.stdout), stderr: text(out.stderr) })
}

/// Runs a program that must succeed and returns its standard output.
pub async fn run(program: impl AsRef<OsStr>, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let line = words(&command);
    output(&mut command).await?.success(&line)
}

/// Like [`run`], with the arguments in one string, separated by blanks.
pub async fn line(text: &str) -> Result<String> {
    let mut all = text.split_whitespace();
    let program = all.next().unwrap_or_default();
    run(program, &all.collect::<Vec<_>>()).await
}
