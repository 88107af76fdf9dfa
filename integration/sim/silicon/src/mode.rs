//! MIG mode, reset, loss of a GPU and ECC errors.

use crate::clients::Client;
use crate::code::Code;
use crate::machine::{Gpu, Leak, Machine, Virtualization};

impl Machine {
    /// The driver has the MIG calls for a GPU: not in a virtual machine with a vGPU.
    pub fn has_mig(&self, gpu: &Gpu) -> bool {
        gpu.board.has_mig() && self.virtualization != Virtualization::Guest
    }

    /// Sets the pending MIG mode and activates it where the hardware can.
    ///
    /// The inner result is the activation status: on Ampere a change waits for a reset; later architectures change at
    /// once when idle, else the change stays pending and the status is `IN_USE`.
    pub fn set_mig_mode(&mut self, gpu: u32, on: bool, clients: &[Client]) -> Result<Result<(), Code>, Code> {
        if !self.has_mig(self.gpu(gpu)?) {
            return Err(Code::NOT_SUPPORTED);
        }
        let gpu = self.gpu_mut(gpu)?;
        gpu.mig_pending = on;
        if gpu.mig == on {
            return Ok(Ok(()));
        }
        if gpu.board.arch.mode_needs_reset() {
            return Ok(Err(Code::RESET_REQUIRED));
        }
        let busy = !gpu.instances.is_empty() || clients.iter().any(|c| c.gpu == gpu.index);
        if busy {
            return Ok(Err(Code::IN_USE));
        }
        gpu.mig = on;
        Ok(Ok(()))
    }

    /// Resets a GPU without clients: activates the pending mode and removes every instance.
    pub fn reset(&mut self, gpu: u32, clients: &[Client]) -> Result<(), Code> {
        if clients.iter().any(|c| c.gpu == gpu) {
            return Err(Code::IN_USE);
        }
        let gpu = self.gpu_mut(gpu)?;
        gpu.mig = gpu.mig_pending;
        gpu.instances.clear();
        gpu.ecc_volatile = 0;
        gpu.compute_mode = 0;
        gpu.leaks.clear();
        gpu.recovery_action = gpu.recovery_action.map(|_| 0);
        Ok(())
    }

    /// Makes a GPU fall off the bus, or puts it back.
    pub fn set_lost(&mut self, gpu: u32, lost: bool) -> Result<(), Code> {
        self.gpus.get_mut(gpu as usize).ok_or(Code::INVALID_ARGUMENT)?.lost = lost;
        Ok(())
    }

    /// Sets what the driver says must be done about a GPU; `None`: it does not say it.
    pub fn set_recovery_action(&mut self, gpu: u32, action: Option<u32>) -> Result<(), Code> {
        self.gpu_mut(gpu)?.recovery_action = action;
        Ok(())
    }

    /// Sets the memory in use that belongs to no process.
    pub fn leak(&mut self, gpu: u32, instance: Option<u32>, bytes: u64) -> Result<(), Code> {
        let gpu = self.gpu_mut(gpu)?;
        gpu.leaks.retain(|leak| leak.instance != instance);
        gpu.leaks.extend((bytes > 0).then_some(Leak { instance, bytes }));
        Ok(())
    }

    /// Adds uncorrected ECC errors.
    pub fn add_ecc(&mut self, gpu: u32, errors: u64) -> Result<(), Code> {
        let gpu = self.gpu_mut(gpu)?;
        gpu.ecc_volatile += errors;
        gpu.ecc_aggregate += errors;
        Ok(())
    }
}
