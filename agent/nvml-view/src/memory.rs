//! Memory of a device: the share is the GPU.

use crate::{
    abi::{Code, Device, Memory, MemoryV2, SUCCESS},
    share::{Bytes, Share},
};

/// A struct that NVML fills with the memory of a device.
pub trait Answer: Copy {
    /// With the memory of a share instead.
    fn with(self, bytes: Bytes) -> Self;
}

impl Answer for Memory {
    fn with(self, Bytes { total, free }: Bytes) -> Self {
        Self { total, free, used: total.saturating_sub(free) }
    }
}

impl Answer for MemoryV2 {
    fn with(self, Bytes { total, free }: Bytes) -> Self {
        Self { total, reserved: 0, free, used: total.saturating_sub(free), ..self }
    }
}

/// Memory of a device. The driver checks the arguments.
pub fn of<T: Answer>(device: Device, answer: *mut T, real: impl FnOnce() -> Code) -> Code {
    let share = match Share::of_device(device) {
        Ok(share) => share,
        Err(code) => return code,
    };
    let code = real();
    if let (SUCCESS, Some(share)) = (code, share) {
        // SAFETY: the driver has just written to it.
        unsafe { answer.write(answer.read().with(share.memory())) };
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_and_free_are_the_share() {
        let bytes = Bytes { total: 10, free: 4 };
        let Memory { total, free, used } = Memory { total: 80, free: 70, used: 10 }.with(bytes);
        assert_eq!((total, free, used), (10, 4, 6));
        let whole = MemoryV2 { version: 7, total: 80, reserved: 1, free: 70, used: 9 };
        let MemoryV2 { version, total, reserved, free, used } = whole.with(bytes);
        assert_eq!((version, total, reserved, free, used), (7, 10, 0, 4, 6));
    }
}
