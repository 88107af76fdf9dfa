//! This container's share: its limits, and this process's place in the ledger. Found at the first allocation, and again by a child process.

use std::{
    path::Path,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

use gputenancy_ledger::{Denied, Identity, Ledger, Limits, Mapped, OnMissing, Usage};

use crate::{
    abi::{Device, SUCCESS},
    real::driver,
};

/// Limits in the container.
const LIMITS: &str = "/run/gputenancy/share/limits";
/// Usage in the container.
const USAGE: &str = "/run/gputenancy/share/usage";
/// Devices whose answer is remembered.
const DEVICES: usize = 64;

/// A share of a GPU.
pub struct Share {
    limits: Mapped<Limits>,
    /// `None` without a usable usage file, or if too many processes use the GPU.
    ledger: Option<Ledger<'static>>,
    /// The context of this process is counted.
    context: AtomicBool,
    /// For each ordinal: 0 not known, 1 this share's GPU, 2 another.
    devices: [AtomicU8; DEVICES],
}

/// The share; null while it is not known.
static SHARE: AtomicPtr<Share> = AtomicPtr::new(std::ptr::null_mut());
/// There is none: the container has no limits.
static NONE: AtomicBool = AtomicBool::new(false);
/// A thread is looking.
static LOOKING: AtomicBool = AtomicBool::new(false);

/// The share of this container, if it has one.
fn share() -> Option<&'static Share> {
    loop {
        // SAFETY: null, or a share that is never freed.
        if let Some(known) = unsafe { SHARE.load(Acquire).as_ref() } {
            return Some(known);
        }
        if NONE.load(Acquire) {
            return None;
        }
        if LOOKING.compare_exchange(false, true, SeqCst, SeqCst).is_ok() {
            match find() {
                Some(found) => SHARE.store(Box::into_raw(Box::new(found)), Release),
                None => NONE.store(true, Release),
            }
            LOOKING.store(false, SeqCst);
        }
        std::thread::yield_now();
    }
}

/// A child process has its own place in the ledger. The old one is the parent's, and its mapping stays.
extern "C" fn after_fork() {
    SHARE.store(std::ptr::null_mut(), SeqCst);
    LOOKING.store(false, SeqCst);
    crate::held::forget();
}

fn find() -> Option<Share> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    let limits = Mapped::<Limits>::open(Path::new(LIMITS)).ok()?;
    if !WATCHED.swap(true, SeqCst) {
        // SAFETY: a function of this library, which is never unloaded: it is the driver's place for the program's life.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    }
    let usage = Mapped::<Usage>::open(Path::new(USAGE)).ok();
    let ledger = usage.and_then(|usage| Ledger::join(&*Box::leak(Box::new(usage)), Identity::own()));
    let devices = std::array::from_fn(|_| AtomicU8::new(0));
    Some(Share { limits, ledger, context: AtomicBool::new(false), devices })
}

impl Share {
    /// The share, if the calling thread's context is on its GPU.
    pub fn of_current_context() -> Option<&'static Self> {
        let share = share()?;
        let mut device: Device = 0;
        let code = driver!(cuCtxGetDevice(&raw mut device => *mut Device));
        (code == SUCCESS && share.is_on(device)).then_some(share)
    }

    /// The share, whatever the current context is.
    pub fn of_container() -> Option<&'static Self> {
        share()
    }

    /// The share, if it is one of this device.
    pub fn of_device(device: Device) -> Option<&'static Self> {
        share().filter(|share| share.is_on(device))
    }

    /// It is one of this device, by UUID: `CUDA_VISIBLE_DEVICES` changes ordinals.
    fn is_on(&self, device: Device) -> bool {
        let known = usize::try_from(device).ok().and_then(|at| self.devices.get(at));
        match known.map_or(0, |known| known.load(Relaxed)) {
            0 => {
                let same = self.has_uuid(device);
                if let Some(known) = known {
                    known.store(if same { 1 } else { 2 }, Relaxed);
                }
                same
            }
            answer => answer == 1,
        }
    }

    fn has_uuid(&self, device: Device) -> bool {
        let mut uuid = [0_u8; 16];
        let own = parse(&self.limits.uuid());
        // the newer call answers for a MIG device with its own UUID
        let mut code = driver!(cuDeviceGetUuid_v2(&raw mut uuid => *mut [u8; 16], device => Device));
        if code != SUCCESS {
            code = driver!(cuDeviceGetUuid(&raw mut uuid => *mut [u8; 16], device => Device));
        }
        code == SUCCESS && own == Some(uuid)
    }

    /// Reserves memory, with the context of this process if this is the first time.
    pub fn reserve(&self, bytes: u64) -> Result<(), Denied> {
        let Some(ledger) = &self.ledger else {
            return match self.limits.on_missing() {
                OnMissing::Allow => Ok(()),
                OnMissing::Deny => Err(Denied),
            };
        };
        let limit = self.limits.limit();
        if !self.context.swap(true, SeqCst) && ledger.reserve(self.limits.context(), limit).is_err() {
            self.context.store(false, SeqCst);
            return Err(Denied);
        }
        ledger.reserve(bytes, limit)
    }

    /// Gives memory back.
    pub fn release(&self, bytes: u64) {
        if let Some(ledger) = &self.ledger {
            ledger.release(bytes);
        }
    }

    /// Counts memory that the driver has given already.
    pub fn charge(&self, bytes: u64) {
        if let Some(ledger) = &self.ledger {
            ledger.charge(bytes);
        }
    }

    /// Bytes that programs see as the memory of the GPU.
    pub fn visible(&self) -> u64 {
        self.limits.visible()
    }

    /// Bytes that could still be reserved.
    pub fn left(&self) -> u64 {
        let Some(ledger) = &self.ledger else { return self.visible() };
        // before the first allocation the context of this process is not counted yet
        let context = if self.context.load(SeqCst) { 0 } else { self.limits.context() };
        let used = ledger.used().saturating_add(context);
        self.limits.limit().saturating_sub(used).min(self.visible())
    }
}

/// The bytes of a UUID such as `GPU-xxxxxxxx-xxxx-…`.
fn parse(text: &[u8]) -> Option<[u8; 16]> {
    let digits = text.iter().skip(4).filter_map(|b| char::from(*b).to_digit(16));
    let mut bytes = [0_u8; 16];
    let mut count = 0_usize;
    for (at, digit) in digits.enumerate() {
        let byte = bytes.get_mut(at.checked_div(2)?)?;
        *byte = byte.checked_shl(4)? | u8::try_from(digit).ok()?;
        count = count.saturating_add(1);
    }
    (count == 32).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_thirty_two_digits_after_its_kind() {
        let mut text = [0; 64];
        text.iter_mut().zip(b"GPU-00112233-4455-6677-8899-aabbccddeeff").for_each(|(to, from)| *to = *from);
        let expected = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        assert_eq!(parse(&text), Some(expected));
        assert_eq!(parse(b"GPU-0011"), None);
        assert_eq!(parse(&[b'f'; 64]), None, "too long");
    }
}
