//! Use of a device as by a CUDA program: a context with memory, for the lifetime of the process.

use std::io;

use crate::accounting;
use crate::activity;
use crate::cgroup;
use crate::clients::{Client, Clients};
use crate::code::Code;
use crate::history::{self, Event};
use crate::machine::{Machine, MigDevice};
use crate::store::{self, Store};

pub use crate::board::RESERVED_MIB;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such device, or it is lost.
    #[error("device: {0}")]
    Device(#[from] Code),
    /// A GPU in MIG mode can be used only through its MIG devices.
    #[error("GPU {0} is in MIG mode: use one of its MIG devices")]
    MigMode(u32),
    /// More memory than is free.
    #[error("out of memory: {wanted} bytes wanted, {free} free")]
    OutOfMemory {
        /// Requested bytes.
        wanted: u64,
        /// Bytes free.
        free: u64,
    },
    /// The state cannot be read.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The list of clients cannot be written.
    #[error("list of clients: {0}")]
    Io(#[from] io::Error),
}

/// A device in use by this process.
#[derive(Debug)]
pub struct Attachment {
    clients: &'static Clients,
    slot: u64,
    uuid: String,
    client: Client,
}

/// Attaches this process to a device; the processes on one device share its memory.
pub fn attach(store: &Store, client: &Client, mine: &[Attachment]) -> Result<Attachment, Error> {
    let clients = store.clients()?;
    let hold = clients.hold()?;
    let machine = store.read()?;
    let (uuid, total) = device(&machine, client)?;
    let live = clients.live()?;
    let client = &Client { cgroups: cgroup::of_this_process(), ..client.clone() };
    fits(client, total, &machine, &live)?;
    let same = |c: &&Client| c.shares_device_with(client);
    let slots: Vec<u64> = mine.iter().map(|a| a.slot).collect();
    let slot = hold.enter(client, &slots)?;
    activity::enter(store.dir(), slot)?;
    // none of MIG devices, as on hardware
    if client.instance.is_none() && machine.gpu(client.gpu)?.accounting {
        accounting::begin(store.dir(), client.gpu, slot, client.memory)?;
    }
    let others = live.iter().filter(same).map(|c| c.owner.clone()).collect();
    history::record(store.dir(), Event::Attach { uuid: uuid.clone(), owner: client.owner.clone(), others })?;
    Ok(Attachment { clients, slot, uuid, client: client.clone() })
}

/// The client and the others fit into the device's memory, and into the limits of its cgroups.
fn fits(client: &Client, total: u64, machine: &Machine, others: &[Client]) -> Result<(), Error> {
    let used: u64 = others.iter().filter(|c| c.shares_device_with(client)).map(|c| c.memory).sum();
    let free = total.saturating_sub(used).min(machine.limited(client, others).unwrap_or(u64::MAX));
    if client.memory > free { Err(Error::OutOfMemory { wanted: client.memory, free }) } else { Ok(()) }
}

/// Bytes of a client's device that processes can use, and of these the bytes that other processes do not.
pub fn memory(store: &Store, client: &Client) -> Result<(u64, u64), Error> {
    let (_, total) = device(&*store.read()?, client)?;
    let others = store.clients()?.live()?;
    let used: u64 = others.iter().filter(|c| c.shares_device_with(client)).map(|c| c.memory).sum();
    Ok((total, total.saturating_sub(used)))
}

impl Attachment {
    /// Its slot in the list of clients.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// UUID of the device.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Changes how much memory this process has on the device.
    pub fn resize(&mut self, store: &Store, memory: u64) -> Result<(), Error> {
        let changed = Client { memory, ..self.client.clone() };
        let hold = self.clients.hold()?;
        let machine = store.read()?;
        let (_, total) = device(&machine, &changed)?;
        if memory > self.client.memory {
            fits(&changed, total, &machine, &self.clients.live()?)?;
        }
        hold.rewrite(self.slot, &changed)?;
        accounting::change(store.dir(), self.slot, memory)?;
        self.client = changed;
        Ok(())
    }

    /// Stops using the device.
    pub fn detach(self, store: &Store) -> io::Result<()> {
        let hold = self.clients.hold()?;
        history::record(store.dir(), Event::Detach { uuid: self.uuid, owner: self.client.owner })?;
        hold.leave(self.slot)
    }
}

/// UUID and usable bytes of a client's device.
fn device(machine: &Machine, client: &Client) -> Result<(String, u64), Error> {
    let gpu = machine.gpu(client.gpu)?;
    match client.instance {
        Some((gi, ci)) => {
            let device: MigDevice<'_> = machine.mig_device(client.gpu, gi, ci)?;
            Ok((device.uuid(), gpu.profile_of(device.gi)?.memory_mib << 20))
        }
        None if gpu.mig => Err(Error::MigMode(client.gpu)),
        None => Ok((gpu.uuid.clone(), (gpu.board.memory_mib - RESERVED_MIB) << 20)),
    }
}
