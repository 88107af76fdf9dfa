//! Contexts: creating, retaining and choosing them.

use std::ffi::{c_int, c_uint};

use crate::{
    abi::{Device, Failure, Handle, INVALID_CONTEXT, INVALID_VALUE, put},
    process::{Allocation, Context, Process, cuda, current, handle, number, set_current},
};

impl Process {
    fn create(&mut self, ordinal: usize, primary: bool) -> Result<usize, Failure> {
        self.change(ordinal, |device| device.contexts += 1)?;
        let number = self.handle();
        self.contexts.insert(number, Context { device: ordinal, primary, retained: 0 });
        Ok(number)
    }

    /// Destroys a context with what was allocated in it. Pools end with the last context of their device; memory of `cuMemCreate` is of no context.
    fn destroy(&mut self, number: usize) -> Result<(), Failure> {
        let Context { device, .. } = self.contexts.remove(&number).ok_or(INVALID_CONTEXT)?;
        let last = !self.contexts.values().any(|context| context.device == device);
        self.streams.forget(number);
        self.imports.end_context(number);
        let mut ended = Vec::new();
        let imports = &mut self.imports;
        self.allocations.retain(|address, allocation| {
            let Allocation { context, pool, bytes, .. } = *allocation;
            if pool.is_none() && context == number {
                ended.push(bytes);
                imports.end_export(*address);
            }
            if pool.is_some() { !last || allocation.device != device } else { context != number }
        });
        self.arrays.retain(|_, array| {
            if array.context == number {
                ended.push(array.bytes);
            }
            array.context != number
        });
        let mut reserved = 0;
        if last {
            self.pools.retain(|_, pool| {
                if pool.device == device {
                    reserved += pool.pieces.reserved();
                }
                pool.device != device
            });
            reserved += self.end_graphs(device);
        }
        self.change(device, |state| {
            state.contexts -= 1;
            for bytes in ended {
                state.remove(bytes);
            }
            state.large = state.large.saturating_sub(reserved);
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
        if let Some(context) = process.contexts.get_mut(&primary) {
            context.retained += 1;
        }
        put(context, handle(primary))
    }

    fn cuDevicePrimaryCtxRelease_v2(process, device: Device) {
        let at = ordinal(process, device)?;
        let primary = process.primary(at).ok_or(INVALID_CONTEXT)?;
        let context = process.contexts.get_mut(&primary).ok_or(INVALID_CONTEXT)?;
        context.retained = context.retained.saturating_sub(1);
        if context.retained > 0 { Ok(()) } else { process.destroy(primary) }
    }

    fn cuDevicePrimaryCtxReset_v2(process, device: Device) {
        let at = ordinal(process, device)?;
        process.primary(at).map_or(Ok(()), |primary| process.destroy(primary))
    }

    fn cuDevicePrimaryCtxGetState(process, device: Device, flags: *mut c_uint, active: *mut c_int) {
        let at = ordinal(process, device)?;
        put(flags, 0)?;
        put(active, c_int::from(process.primary(at).is_some()))
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
