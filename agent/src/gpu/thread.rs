//! The thread that owns NVML. NVML's calls block, some for seconds and, on a sick board, for ever: nothing else runs here, and
//! whoever asks waits only so long.

use std::{
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread,
    time::Duration,
};

use gputenancy_crds::Health;
use gputenancy_nvml::{Nvml, NvmlFailure, OpenError, code};
use tokio::sync::oneshot;

use super::{
    Calls, DriverRoot, Inventory, Order, OrderError, Places,
    health::RecordedFault,
    holders::{count_holders, name_holders},
    order::carry_out,
    read::{Reader, Remembered, ends_the_session},
    reset::reset,
};

/// How long an answer is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Of a look.
    pub look: Duration,
    /// Of an order.
    pub order: Duration,
}

impl Default for Deadlines {
    /// An inventory of 16 carved GPUs takes well under a second; destroying a GPU instance takes about a second on hardware, a
    /// change of mode several.
    fn default() -> Self {
        Self { look: Duration::from_secs(10), order: Duration::from_mins(1) }
    }
}

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Mode, processes, faults, and instances that are gone.
    Shallow,
    /// Everything.
    Deep,
}

/// Why NVML does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The library is not there or does not load.
    #[error("{0}")]
    NoLibrary(String),
    /// NVML refused.
    #[error(transparent)]
    Nvml(#[from] NvmlFailure),
    /// A call has not returned.
    #[error("{call} has not returned for {} s", .elapsed.as_secs())]
    Hangs {
        /// The call.
        call: &'static str,
        /// Since when.
        elapsed: Duration,
    },
    /// The thread ended, which only a defect can bring about.
    #[error("the NVML thread ended")]
    Ended,
}

enum Request {
    Look { depth: Depth, files: bool, reply: oneshot::Sender<Result<Inventory, Trouble>> },
    Recall { faults: Vec<RecordedFault>, reply: oneshot::Sender<Result<(), Trouble>> },
    Do { uuid: String, order: Order, reply: oneshot::Sender<Result<(), OrderError>> },
}

/// Handle of the thread; the thread ends when the last handle is dropped.
#[derive(Clone)]
pub struct Silicon {
    requests: SyncSender<Request>,
    calls: Calls,
    deadlines: Deadlines,
}

impl Silicon {
    /// Starts the thread. The library is opened at the first look, and again whenever the driver was reloaded.
    ///
    /// # Errors
    /// When the kernel has no thread left.
    pub fn start(places: Places, calls: Calls, deadlines: Deadlines) -> std::io::Result<Self> {
        // One place: a caller that gave up on a hanging call must not leave a queue behind.
        let (requests, receiver) = sync_channel(1);
        let observer = calls.clone();
        thread::Builder::new().name("nvml".into()).spawn(move || run(&places, &observer, &receiver))?;
        Ok(Self { requests, calls, deadlines })
    }

    /// What NVML shows. With `files`, processes that have an instance's capability file open are among its clients.
    ///
    /// # Errors
    /// See [`Trouble`]; the next look opens the library anew where that may help.
    pub async fn look(&self, depth: Depth, files: bool) -> Result<Inventory, Trouble> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Look { depth, files, reply })?;
        match tokio::time::timeout(self.deadlines.look, answer).await {
            Ok(answer) => answer.map_err(|_| Trouble::Ended)?,
            Err(_) => Err(self.hangs()),
        }
    }

    /// Takes faults over that an earlier run of the agent noted.
    ///
    /// # Errors
    /// When NVML does not answer; then nothing was taken over.
    pub async fn recall(&self, faults: Vec<RecordedFault>) -> Result<(), Trouble> {
        if faults.is_empty() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.send(Request::Recall { faults, reply })?;
        match tokio::time::timeout(self.deadlines.look, answer).await {
            Ok(answer) => answer.map_err(|_| Trouble::Ended)?,
            Err(_) => Err(self.hangs()),
        }
    }

    /// Carries out one order.
    ///
    /// # Errors
    /// The outer one when NVML does not answer: what became of the order then, only a later look tells.
    pub async fn carry_out(&self, uuid: &str, order: Order) -> Result<Result<(), OrderError>, Trouble> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Do { uuid: uuid.to_owned(), order, reply })?;
        match tokio::time::timeout(self.deadlines.order, answer).await {
            Ok(answer) => answer.map_err(|_| Trouble::Ended),
            Err(_) => Err(self.hangs()),
        }
    }

    fn send(&self, request: Request) -> Result<(), Trouble> {
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => self.hangs(),
            TrySendError::Disconnected(_) => Trouble::Ended,
        })
    }

    fn hangs(&self) -> Trouble {
        let (call, elapsed) = self.calls.under_way().unwrap_or(("NVML", self.deadlines.look));
        Trouble::Hangs { call, elapsed }
    }
}

/// Why a session with an open library ended.
enum Ended {
    Closed,
    /// The driver is, or was, away: whatever was wrong with a GPU, it has been reset since.
    DriverGone,
    /// A GPU is lost; if it ever comes back, then to a library that was opened anew.
    GpuLost,
    Reset {
        uuid: String,
        pci_bus_id: String,
        reply: oneshot::Sender<Result<(), OrderError>>,
    },
}

fn run(places: &Places, calls: &Calls, requests: &Receiver<Request>) {
    let mut remembered = Remembered::default();
    while let Ok(request) = requests.recv() {
        let (driver_root, nvml) = match open(places, calls) {
            Ok(opened) => opened,
            Err(error) => {
                if matches!(&error, OpenError::Init(failure) if failure.code == code::DRIVER_NOT_LOADED) {
                    remembered.condemned.pardon_all();
                }
                refuse(request, error);
                continue;
            }
        };
        tracing::info!(library = %nvml.path().display(), "NVML is open");
        let opened = Opened { nvml: &nvml, driver_root: &driver_root, places };
        let ended = session(&opened, requests, request, &mut remembered);
        drop(nvml);
        match ended {
            Ended::Closed => return,
            Ended::DriverGone => remembered.condemned.pardon_all(),
            Ended::GpuLost => {}
            Ended::Reset { uuid, pci_bus_id, reply } => {
                calls.set(Some("nvidia-smi --gpu-reset"));
                let mut outcome = reset(&driver_root.seen, &pci_bus_id);
                calls.set(None);
                match &mut outcome {
                    Ok(()) => remembered.condemned.pardon(&uuid),
                    Err(OrderError::Reset { message, .. }) => {
                        let minor = remembered.last.values().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.minor);
                        message.extend(minor.map(|minor| name_holders(&places.proc_root, minor)));
                    }
                    Err(_) => {}
                }
                // Whoever gave up waiting learns it from the next look.
                let _ = reply.send(outcome);
            }
        }
    }
}

fn open(places: &Places, calls: &Calls) -> Result<(DriverRoot, Nvml), OpenError> {
    let (root, library) = places.driver().ok_or_else(|| {
        let first = places.driver_roots.first().map(|root| root.seen.clone());
        OpenError::NotFound(first.unwrap_or_default())
    })?;
    Ok((root.clone(), Nvml::open(library, Box::new(calls.clone()))?))
}

fn refuse(request: Request, error: OpenError) {
    let trouble = match error {
        OpenError::Init(failure) => Trouble::Nvml(failure),
        OpenError::NotFound(_) | OpenError::Load { .. } => Trouble::NoLibrary(error.to_string()),
    };
    match request {
        Request::Look { reply, .. } => drop(reply.send(Err(trouble))),
        Request::Recall { reply, .. } => drop(reply.send(Err(trouble))),
        Request::Do { reply, .. } => drop(reply.send(Err(OrderError::Gone(format!("NVML ({trouble})"))))),
    }
}

/// An open library and where it came from.
pub(super) struct Opened<'a> {
    pub(super) nvml: &'a Nvml,
    pub(super) driver_root: &'a DriverRoot,
    pub(super) places: &'a Places,
}

fn session(opened: &Opened<'_>, requests: &Receiver<Request>, first: Request, remembered: &mut Remembered) -> Ended {
    let Opened { nvml, driver_root, places } = *opened;
    let mut reader = match Reader::new(nvml, driver_root.clone(), remembered) {
        Ok(reader) => reader,
        Err(failure) => {
            refuse(first, OpenError::Init(failure));
            return Ended::DriverGone;
        }
    };
    let mut next = Some(first);
    while let Some(request) = next.take().or_else(|| requests.recv().ok()) {
        match request {
            Request::Recall { faults, reply } => {
                reader.recall(faults);
                let _ = reply.send(Ok(()));
            }
            Request::Look { depth, files, reply } => {
                let mut seen = reader.look(depth, &places.sys_root);
                if let (true, Ok(inventory)) = (files, &mut seen) {
                    count_holders(inventory, &places.proc_root, &driver_root.seen);
                }
                let ended = match &seen {
                    Ok(inventory)
                        if depth == Depth::Deep && inventory.gpus.iter().any(|gpu| gpu.health == Health::Lost) =>
                    {
                        Some(Ended::GpuLost)
                    }
                    Err(failure) if ends_the_session(failure.code) => Some(Ended::DriverGone),
                    Ok(_) | Err(_) => None,
                };
                let _ = reply.send(seen.map_err(Trouble::Nvml));
                if let Some(ended) = ended {
                    return ended;
                }
            }
            Request::Do { uuid, order: Order::Reset { pci_bus_id }, reply } => {
                return Ended::Reset { uuid, pci_bus_id, reply };
            }
            Request::Do { uuid, order, reply } => {
                let outcome = carry_out(opened, &uuid, &order);
                let reopen = matches!(&outcome, Err(OrderError::Nvml(failure)) if ends_the_session(failure.code));
                let _ = reply.send(outcome);
                if reopen {
                    return Ended::DriverGone;
                }
            }
        }
    }
    Ended::Closed
}
