//! Standard output and standard error.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write as _},
};

use anstyle::{AnsiColor, Style};

/// Style of the prefix of an error.
const RED: Style = AnsiColor::Red.on_default().bold();

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("writing to standard output: {}", cause(.0))]
pub struct OutputError(#[from] io::Error);

/// Writes a text to standard output. A reader that has gone, such as `head`, is no error.
pub fn print(text: impl Display) -> Result<(), OutputError> {
    let mut out = anstream::stdout().lock();
    written(write!(out, "{text}").and_then(|()| out.flush()))
}

/// The result of writing to standard output.
pub fn written(result: io::Result<()>) -> Result<(), OutputError> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// The text of an error of the operating system, without its number.
pub fn cause(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

/// Writes a line to standard error: there is no other place to report that it is closed.
pub fn note(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Writes an error to standard error.
pub fn error(error: impl Display) {
    note(format_args!("{}error{}: {error}", RED.render(), RED.render_reset()));
}
