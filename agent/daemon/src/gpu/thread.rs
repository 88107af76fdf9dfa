//! The thread that owns NVML. Calls block, some for seconds and on a faulty board for ever: only this thread makes them, and callers
//! wait until a deadline.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use gputenancy_agent_core::usage::reading::Reading;
use gputenancy_crds::Health;
use gputenancy_nvml::{MemoryLimit, Nvml, OpenError};
use tokio::sync::oneshot;

use super::{
    activity::ActivityReader,
    calls::Calls,
    check::{Check, Reply},
    driver::{DriverRoot, NodePaths, Session},
    error::NvmlError,
    faults::KnownFaults,
    inventory::{Inventory, Scan},
    memory_limits::LimitCall,
    operation::{Operation, OperationError, RESET_CALL, execute},
    platform::unsupported,
    policy::{Deadlines, is_driver_unloaded, reopens_library},
    processes::device_files::{add_holders, capability_holders, describe_holders},
    reader::{History, Reader},
    reset::reset,
};

/// A read of NVML that took longer may have waited: open files that were read at its begin are older than its answer.
const SAME_TIME: Duration = Duration::from_millis(100);
/// What hangs if the kernel does not answer.
const OPEN_FILES: &str = "reading open files in /proc";

enum Request {
    Read {
        scan: Scan,
        known: KnownFaults,
        reply: Reply<Result<Inventory, NvmlError>>,
    },
    Execute {
        uuid: String,
        operation: Operation,
        reply: Reply<Result<(), OperationError>>,
    },
    Limit {
        call: LimitCall,
        reply: Reply<Result<Option<MemoryLimit>, NvmlError>>,
    },
    Activity {
        reply: Reply<Result<Vec<Reading>, NvmlError>>,
    },
    /// A [`Check`] waits, or has been answered between two GPUs.
    Check,
}

/// Handle of the thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub struct NvmlThread {
    requests: SyncSender<Request>,
    checks: SyncSender<Check>,
    /// A [`Request::Check`] is in the queue.
    announced: Arc<AtomicBool>,
    calls: Calls,
    deadlines: Deadlines,
    proc_root: Arc<Path>,
}

impl NvmlThread {
    /// Starts the thread. The library is opened at the first request, and again after the driver was reloaded.
    pub fn start(paths: NodePaths, calls: Calls, deadlines: Deadlines) -> std::io::Result<Self> {
        // a place each for the reconciler, for the check of an allocation, for memory limits and for usage, which wait for their answers: a caller that
        // gave up on a hanging call must not leave a queue behind
        let (requests, receiver) = sync_channel(4);
        // likewise one for the check of an allocation, one for the audit, and one of a caller that gave up
        let (checks, waiting) = sync_channel(3);
        let observer = calls.clone();
        let announced = Arc::<AtomicBool>::default();
        let queues = Queues { requests: receiver, checks: waiting, announced: announced.clone() };
        let proc_root = paths.proc_root.as_path().into();
        thread::Builder::new().name("nvml".into()).spawn(move || run(&paths, &observer, &queues))?;
        Ok(Self { requests, checks, announced, calls, deadlines, proc_root })
    }

    /// Reads the inventory. With `open_files`, clients include processes that have an instance's capability file open. `known` is
    /// what is known of faults in addition to what the driver reports.
    pub async fn read(&self, scan: Scan, open_files: bool, known: KnownFaults) -> Result<Inventory, NvmlError> {
        let read = self.request(self.deadlines.scan, |reply| Request::Read { scan, known, reply });
        self.with_holders(open_files, async { read.await? }).await
    }

    /// Reads the processes on these GPUs, and nothing else: all other fields are of the latest scan. With `open_files`, they include processes that have
    /// an instance's capability file open.
    pub async fn processes(&self, uuids: BTreeSet<String>, open_files: bool) -> Result<Inventory, NvmlError> {
        self.with_holders(open_files, self.listed(uuids)).await
    }

    async fn listed(&self, uuids: BTreeSet<String>) -> Result<Inventory, NvmlError> {
        let (reply, answer) = oneshot::channel();
        self.checks.try_send(Check { uuids, reply }).map_err(|error| self.not_sent(&error))?;
        // once: checks that are answered during a scan must not fill the queue
        if !self.announced.swap(true, Ordering::SeqCst) {
            match self.requests.try_send(Request::Check) {
                Ok(()) => {}
                // the thread looks for checks after each request
                Err(TrySendError::Full(_)) => self.announced.store(false, Ordering::SeqCst),
                Err(TrySendError::Disconnected(_)) => return Err(NvmlError::Ended),
            }
        }
        self.answered(self.deadlines.scan, answer).await?
    }

    /// Executes one operation. The outer error leaves the outcome unknown until the next scan.
    pub async fn execute(&self, uuid: &str, operation: Operation) -> Result<Result<(), OperationError>, NvmlError> {
        let uuid = uuid.to_owned();
        self.request(self.deadlines.operation, |reply| Request::Execute { uuid, operation, reply }).await
    }

    /// Reads or sets the limits of a cgroup; `None` if the driver has no such limits.
    pub async fn memory_limit(&self, call: LimitCall) -> Result<Option<MemoryLimit>, NvmlError> {
        self.request(self.deadlines.scan, |reply| Request::Limit { call, reply }).await?
    }

    /// Reads the activity of the GPUs that answered the latest scan; none before the first one.
    pub async fn activity(&self) -> Result<Vec<Reading>, NvmlError> {
        self.request(self.deadlines.scan, |reply| Request::Activity { reply }).await?
    }

    /// An inventory, with the processes that have capability files open if they are wanted. Those are not found on the thread: it takes milliseconds
    /// where many processes run, and a [`Check`] would wait.
    async fn with_holders(
        &self,
        wanted: bool,
        read: impl Future<Output = Result<Inventory, NvmlError>>,
    ) -> Result<Inventory, NvmlError> {
        if !wanted {
            return read.await;
        }
        let begun = Instant::now();
        let (inventory, held) = tokio::join!(read, self.holders());
        let mut inventory = inventory?;
        // a process that opened its file while NVML was busy may not be in NVML's answer yet
        let held = if begun.elapsed() > SAME_TIME { self.holders().await? } else { held? };
        if let Some(root) = inventory.driver_root.clone() {
            add_holders(&mut inventory, &held, &self.proc_root, &root.local);
        }
        Ok(inventory)
    }

    /// Processes with an instance's capability file open.
    async fn holders(&self) -> Result<BTreeSet<(u32, u32)>, NvmlError> {
        let (proc_root, elapsed) = (self.proc_root.clone(), self.deadlines.scan);
        let found = tokio::task::spawn_blocking(move || capability_holders(&proc_root));
        let found = tokio::time::timeout(elapsed, found).await;
        found.map_err(|_| NvmlError::Hangs { call: OPEN_FILES, elapsed })?.map_err(|_| NvmlError::Ended)
    }

    async fn request<T>(&self, deadline: Duration, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, NvmlError> {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(request(reply)).map_err(|error| self.not_sent(&error))?;
        self.answered(deadline, answer).await
    }

    fn not_sent<T>(&self, error: &TrySendError<T>) -> NvmlError {
        match error {
            TrySendError::Full(_) => self.hangs(),
            TrySendError::Disconnected(_) => NvmlError::Ended,
        }
    }

    async fn answered<T>(&self, deadline: Duration, answer: oneshot::Receiver<T>) -> Result<T, NvmlError> {
        match tokio::time::timeout(deadline, answer).await {
            Ok(answer) => answer.map_err(|_| NvmlError::Ended),
            Err(_) => Err(self.hangs()),
        }
    }

    fn hangs(&self) -> NvmlError {
        let (call, elapsed) = self.calls.in_progress().unwrap_or(("NVML", self.deadlines.scan));
        NvmlError::Hangs { call, elapsed }
    }
}

/// Why the library is closed.
enum Close {
    Shutdown,
    /// The driver is, or was, not loaded. Loading it resets all GPUs.
    DriverReloaded,
    /// A lost GPU can come back only to a library that is opened again.
    GpuLost,
    Reset {
        uuid: String,
        pci_bus_id: String,
        reply: Reply<Result<(), OperationError>>,
    },
}

/// What the thread is asked for.
struct Queues {
    requests: Receiver<Request>,
    checks: Receiver<Check>,
    announced: Arc<AtomicBool>,
}

impl Queues {
    /// The next request; `None`: the last handle was dropped.
    fn next(&self) -> Option<Request> {
        let request = self.requests.recv().ok()?;
        if matches!(request, Request::Check) {
            self.announced.store(false, Ordering::SeqCst);
        }
        Some(request)
    }

    /// Answers a request, and all checks, with this error.
    fn refuse(&self, request: Request, error: &NvmlError) {
        match request {
            Request::Read { reply, .. } => drop(reply.send(Err(error.clone()))),
            Request::Limit { reply, .. } => drop(reply.send(Err(error.clone()))),
            Request::Activity { reply } => drop(reply.send(Err(error.clone()))),
            Request::Execute { reply, .. } => drop(reply.send(Err(OperationError::Gone(format!("NVML ({error})"))))),
            Request::Check => {}
        }
        self.checks.try_iter().for_each(|check| drop(check.reply.send(Err(error.clone()))));
    }
}

fn run(paths: &NodePaths, calls: &Calls, queues: &Queues) {
    let mut history = History::default();
    let platform = unsupported(paths);
    while let Some(request) = queues.next() {
        if let Some(platform) = platform {
            queues.refuse(request, &platform.into());
            continue;
        }
        let (driver_root, nvml) = match open(paths, calls) {
            Ok(opened) => opened,
            Err(error) => {
                if matches!(&error, OpenError::Init(failure) if is_driver_unloaded(failure.code)) {
                    history.faults.clear_all();
                }
                queues.refuse(request, &error.into());
                continue;
            }
        };
        tracing::info!(library = %nvml.path().display(), "opened NVML");
        let session = Session { nvml: &nvml, driver_root: &driver_root, paths };
        let close = serve(session, queues, request, &mut history);
        drop(nvml);
        match close {
            Close::Shutdown => return,
            Close::DriverReloaded => history.faults.clear_all(),
            Close::GpuLost => {}
            Close::Reset { uuid, pci_bus_id, reply } => {
                calls.set(Some(RESET_CALL));
                let mut outcome = reset(&driver_root.local, &pci_bus_id);
                calls.set(None);
                match &mut outcome {
                    Ok(()) => history.faults.clear(&uuid),
                    Err(OperationError::Reset { message, .. }) => {
                        let minor = history.gpus.values().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.minor);
                        message.extend(minor.map(|minor| describe_holders(&paths.proc_root, minor)));
                    }
                    Err(_) => {}
                }
                // a caller that has given up learns the outcome from the next scan
                let _ = reply.send(outcome);
            }
        }
    }
}

fn open(paths: &NodePaths, calls: &Calls) -> Result<(DriverRoot, Nvml), OpenError> {
    let (root, library) = paths.driver().ok_or_else(|| {
        let first = paths.driver_roots.first().map(|root| root.local.clone());
        OpenError::NotFound(first.unwrap_or_default())
    })?;
    Ok((root.clone(), Nvml::open(library, Box::new(calls.clone()))?))
}

fn serve(session: Session<'_>, queues: &Queues, first: Request, history: &mut History) -> Close {
    let mut reader = match Reader::new(session, history, &queues.checks) {
        Ok(reader) => reader,
        Err(failure) => {
            queues.refuse(first, &failure.into());
            return Close::DriverReloaded;
        }
    };
    let mut activity = ActivityReader::default();
    let mut next = Some(first);
    while let Some(request) = next.take().or_else(|| queues.next()) {
        match request {
            Request::Check => {}
            Request::Read { scan, known, reply } => {
                let inventory = reader.read(scan, known);
                let lost = |inventory: &Inventory| inventory.gpus.iter().any(|gpu| gpu.health == Health::Lost);
                let close = match &inventory {
                    Ok(inventory) if scan == Scan::Full && lost(inventory) => Some(Close::GpuLost),
                    Err(failure) if reopens_library(failure.code) => Some(Close::DriverReloaded),
                    Ok(_) | Err(_) => None,
                };
                let _ = reply.send(inventory.map_err(NvmlError::Call));
                if let Some(close) = close {
                    return close;
                }
            }
            Request::Limit { call, reply } => {
                let outcome = call.execute(session.nvml);
                let reopen = outcome.as_ref().is_err_and(|failure| reopens_library(failure.code));
                let _ = reply.send(outcome.map_err(NvmlError::Call));
                if reopen {
                    return Close::DriverReloaded;
                }
            }
            Request::Activity { reply } => {
                let gpus = reader.known_gpus();
                let readings = activity.read(session.nvml, &gpus, || reader.answer_checks());
                let reopen = readings.as_ref().is_err_and(|failure| reopens_library(failure.code));
                let _ = reply.send(readings.map_err(NvmlError::Call));
                if reopen {
                    return Close::DriverReloaded;
                }
            }
            Request::Execute { uuid, operation: Operation::Reset { pci_bus_id }, reply } => {
                return Close::Reset { uuid, pci_bus_id, reply };
            }
            Request::Execute { uuid, operation, reply } => {
                let outcome = execute(session, &uuid, &operation);
                let reopen = matches!(&outcome, Err(OperationError::Nvml(failure)) if reopens_library(failure.code));
                let _ = reply.send(outcome);
                if reopen {
                    return Close::DriverReloaded;
                }
            }
        }
        if reader.answer_checks().is_err() {
            return Close::DriverReloaded;
        }
    }
    Close::Shutdown
}
