//! The context of a call.

use std::{sync::Arc, time::Duration};

use silicon::clients::Client;
use silicon::history::{self, Event};
use silicon::latency::Slow;
use silicon::visible::View;
use silicon::{Code, Machine, Store, nodes, store};

/// The context of a call.
pub struct Context {
    /// The machine at the start of the call.
    pub machine: Arc<Machine>,
    /// The devices visible to this process.
    pub view: View,
    pub(crate) store: Arc<Store>,
}

impl Context {
    /// The processes that use the GPUs.
    pub fn clients(&self) -> Result<Vec<Client>, Code> {
        let clients = self.store.clients().map_err(|_| Code::UNKNOWN)?;
        clients.live().map_err(|_| Code::UNKNOWN)
    }

    /// As [`Context::clients`], with the slot of each in their list.
    pub fn client_slots(&self) -> Result<Vec<(u64, Client)>, Code> {
        let clients = self.store.clients().map_err(|_| Code::UNKNOWN)?;
        clients.live_slots().map_err(|_| Code::UNKNOWN)
    }

    /// The present machine, for calls that wait.
    pub fn now(&self) -> Result<Arc<Machine>, Code> {
        self.store.read().map_err(|e| e.code())
    }

    /// Changes the machine with the driver's latency, and writes the history.
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
        // the change is made even if history or device nodes cannot be written
        let _ = history::record(self.store.dir(), event(&answer));
        if let (Ok(machine), View::Nodes(dev)) = (self.store.read(), &self.view) {
            let _ = nodes::sync_caps(dev, &machine);
        }
        if let Some(slow) = slow {
            pause(slow.on(&self.machine));
        }
        Ok(answer)
    }

    /// Changes the machine without an entry in the history.
    pub fn quietly(&self, decide: impl FnOnce(&mut Machine) -> Result<(), Code>) -> Result<(), Code> {
        self.store.change(|machine, _| decide(machine)).map_err(|e| e.code())
    }
}

fn pause(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}
