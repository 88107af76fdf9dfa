//! Flags and format of the log.

use std::io;

use clap::{Args, ValueEnum};
use tracing_subscriber::{EnvFilter, filter::ParseError};

/// Flags of the log.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// Filter of the log, in the syntax of tracing's `EnvFilter`.
    #[arg(long, env = "LOG", default_value = "info,kube=warn,kube_client::client=off")]
    pub log: String,
    /// Format of the log.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,
}

/// Format of the log.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Plain text.
    Text,
}

/// The filter of the log is not valid.
#[derive(Debug, thiserror::Error)]
#[error("--log: {0}")]
pub struct Error(#[from] ParseError);

impl LogArgs {
    /// Starts logging to stderr.
    pub fn init(&self) -> Result<(), Error> {
        let filter = EnvFilter::try_new(&self.log)?;
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        match self.log_format {
            LogFormat::Json => builder.json().flatten_event(true).init(),
            LogFormat::Text => builder.init(),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logging_rejects_a_filter_that_does_not_parse() {
        let args = LogArgs { log: "gputenancy=loud".to_owned(), log_format: LogFormat::Text };
        assert!(args.init().is_err_and(|error| error.to_string().starts_with("--log: ")));
    }
}
