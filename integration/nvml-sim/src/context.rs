//! What a call works with.

use std::{sync::Arc, time::Duration};

use silicon::clients::Client;
use silicon::history::{self, Event};
use silicon::latency::Slow;
use silicon::visible::View;
use silicon::{Code, Machine, Store, nodes, store};

/// What a call works with.
pub struct Context {
    /// The machine as the call found it.
    pub machine: Arc<Machine>,
    /// What this process may see.
    pub view: View,
    pub(crate) store: Arc<Store>,
}

impl Context {
    /// The processes that use the GPUs.
    pub fn clients(&self) -> Result<Vec<Client>, Code> {
        let clients = self.store.clients().map_err(|_| Code::UNKNOWN)?;
        clients.live().map_err(|_| Code::UNKNOWN)
    }

    /// The machine as it is now, for calls that wait.
    pub fn now(&self) -> Result<Arc<Machine>, Code> {
        self.store.read().map_err(|e| e.code())
    }

    /// Changes the machine, as slowly as the driver does it, and records what happened.
    pub fn change<T>(
        &self,
        slow: Option<Slow>,
        decide: impl FnOnce(&mut Machine, &[Client]) -> Result<T, Code>,
        event: impl FnOnce(&T) -> Event,
    ) -> Result<T, Code> {
        if !self.view.configure() {
            return Err(Code::NO_PERMISSION);
        }
        let answer = self.store.change(decide).map_err(|e: store::Error| e.code())?;
        // The record and the nodes serve tests and tenants; the change itself is made.
        let _ = history::record(self.store.dir(), event(&answer));
        if let (Ok(machine), View::Nodes(dev)) = (self.store.read(), &self.view) {
            let _ = nodes::sync_caps(dev, &machine);
        }
        if let Some(slow) = slow {
            pause(slow.on(&self.machine));
        }
        Ok(answer)
    }

    /// Changes the machine without a record.
    pub fn quietly(&self, decide: impl FnOnce(&mut Machine) -> Result<(), Code>) -> Result<(), Code> {
        self.store.change(|machine, _| decide(machine)).map_err(|e| e.code())
    }
}

fn pause(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}
