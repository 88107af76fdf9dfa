//! Contexts: creating, retaining and choosing them.

use std::ffi::{c_int, c_uint};

use crate::{
    abi::{Device, Failure, Handle, INVALID_CONTEXT, INVALID_VALUE, put},
    process::{Context, Process, cuda, current, handle, number, set_current},
};

impl Process {
    fn create(&mut self, ordinal: usize, primary: bool) -> Result<usize, Failure> {
        self.change(ordinal, |device| device.contexts += 1)?;
        let number = self.handle();
        self.contexts.insert(number, Context { device: ordinal, primary });
        Ok(number)
    }

    /// Destroys a context; what was allocated in it is freed when the last one of its device is gone.
    fn destroy(&mut self, number: usize) -> Result<(), Failure> {
        let Context { device, .. } = self.contexts.remove(&number).ok_or(INVALID_CONTEXT)?;
        let last = !self.contexts.values().any(|context| context.device == device);
        self.streams.forget(number);
        if last {
            self.allocations.retain(|_, allocation| allocation.device != device);
            self.arrays.retain(|_, array| array.device != device);
            self.pools.retain(|_, pool| pool.device != device);
        }
        self.change(device, |state| {
            state.contexts -= 1;
            if last {
                (state.large, state.small) = (0, 0);
            }
        })
    }

    fn primary(&self, ordinal: usize) -> Option<usize> {
        let found = self.contexts.iter().find(|(_, context)| context.primary && context.device == ordinal);
        found.map(|(number, _)| *number)
    }
}

fn ordinal(process: &mut Process, device: Device) -> Result<usize, Failure> {
    process.device(device)?;
    usize::try_from(device).map_err(|_| INVALID_VALUE)
}

cuda! {
    fn cuCtxCreate_v2(process, context: *mut Handle, _flags: c_uint, device: Device) {
        let at = ordinal(process, device)?;
        let created = process.create(at, false)?;
        set_current(created);
        put(context, handle(created))
    }

    fn cuCtxDestroy_v2(process, context: Handle) {
        if current() == number(context) {
            set_current(0);
        }
        process.destroy(number(context))
    }

    fn cuDevicePrimaryCtxRetain(process, context: *mut Handle, device: Device) {
        let at = ordinal(process, device)?;
        let primary = match process.primary(at) {
            Some(known) => known,
            None => process.create(at, true)?,
        };
        put(context, handle(primary))
    }

    fn cuDevicePrimaryCtxRelease_v2(process, device: Device) {
        let at = ordinal(process, device)?;
        // contexts are not counted: the first release of a program that retains once
        match process.primary(at) {
            Some(primary) => process.destroy(primary),
            None => Err(INVALID_CONTEXT),
        }
    }

    fn cuDevicePrimaryCtxReset_v2(process, device: Device) {
        let at = ordinal(process, device)?;
        process.primary(at).map_or(Ok(()), |primary| process.destroy(primary))
    }

    fn cuCtxSetCurrent(process, context: Handle) {
        let number = number(context);
        if number != 0 && !process.contexts.contains_key(&number) {
            return Err(INVALID_CONTEXT);
        }
        set_current(number);
        Ok(())
    }

    fn cuCtxGetCurrent(_process, context: *mut Handle) {
        put(context, handle(current()))
    }

    fn cuCtxGetDevice(process, device: *mut Device) {
        let at = process.current_device()?;
        put(device, Device::try_from(at).unwrap_or(0))
    }

    fn cuCtxGetApiVersion(_process, _context: Handle, version: *mut c_int) {
        put(version, 3020_i32)
    }
}
