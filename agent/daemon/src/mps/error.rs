//! Why there is no MPS daemon for a GPU.

use std::{io, path::PathBuf, process::ExitStatus};

use gputenancy_cluster::error::sentence;
use tonic::Status;

use crate::gpu::{NvmlError, OperationError};

/// Why a daemon cannot run, or why what it needs to know is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon's folder.
    #[error("preparing {}: {error}", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file with the tenancy of a GPU.
    #[error("writing {}: {error}", .file.display())]
    Tenancy {
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The folders of a share.
    #[error(transparent)]
    Links(io::Error),
    /// Neither the GPU Operator's driver nor the host's has been found.
    #[error("the driver was not found yet")]
    NoDriver,
    /// The control program cannot be started.
    #[error("{}: {error}", .program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The control program does not end, which it should once the daemon runs.
    #[error("{} -d does not return", .0.display())]
    NoReturn(PathBuf),
    /// The control program has not started the daemon.
    #[error("{} -d: {status}; see {}", .program.display(), .log.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The daemon's log.
        log: PathBuf,
    },
    /// The daemon has ended right after its start.
    #[error("{} -d has ended at once", .0.display())]
    EndedAtOnce(PathBuf),
    /// The daemon does not answer this command in time.
    #[error("the MPS daemon does not answer `{0}`")]
    NoAnswer(String),
    /// The control program cannot send this command.
    #[error("sending `{command}` to the MPS daemon: {error}")]
    Send {
        /// The command.
        command: String,
        /// Why.
        error: io::Error,
    },
    /// The daemon refused this command.
    #[error("the MPS daemon refused `{command}`: {answer}")]
    Refused {
        /// The command.
        command: String,
        /// The daemon's answer.
        answer: String,
    },
    /// Kubelet does not report the owners of shares.
    #[error("kubelet's pod resources API does not answer: {}", .0.message())]
    Owners(Status),
    /// The tenant of a namespace is not known.
    #[error("reading the grant of namespace {namespace}: {}", sentence(.error))]
    Grant {
        /// The namespace.
        namespace: String,
        /// Why.
        error: kube::Error,
    },
    /// NVML does not answer.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// NVML refused.
    #[error("setting the compute mode of GPU {gpu}: {error}")]
    ComputeMode {
        /// The GPU.
        gpu: String,
        /// Why.
        error: OperationError,
    },
}
