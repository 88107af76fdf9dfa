//! This container's share: its limits, and this process's place in the ledger. Found at the first allocation, and again by a child process.
//!
//! A container that has this library was sold a limit. Without a file of limits it has none; with a file that is not the agent's, of another
//! version or not readable it gets no memory.

use std::{
    io,
    path::Path,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

use gputenancy_ledger::{
    Denied, Ledger, Limits, MapError, Mapped, OnMissing, Pace, Usage, Used,
    paths::{LIMITS, USAGE},
};

use crate::{
    abi::{Device, SUCCESS},
    clock::now,
    lock::Lock,
    real::driver,
};

/// Devices whose answer is remembered.
const DEVICES: usize = 64;

/// A share of a GPU.
pub struct Share {
    /// `None`: they cannot be used, and nothing is allocated on any GPU.
    limits: Option<Mapped<Limits>>,
    /// `None` without a usable usage file, or if too many processes use the GPU.
    ledger: Option<Ledger<'static>>,
    /// The context of this process is counted. A thread that waits for another one to count it gets nothing before.
    context: Lock<bool>,
    /// For each ordinal: 0 not known, 1 this share's GPU, 2 another.
    devices: [AtomicU8; DEVICES],
}

/// The share; null while it is not known.
static SHARE: AtomicPtr<Share> = AtomicPtr::new(std::ptr::null_mut());
/// The share while its limits cannot be used.
static REFUSED: Share =
    Share { limits: None, ledger: None, context: Lock::new(false), devices: [const { AtomicU8::new(0) }; DEVICES] };
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
        if LOOKING.compare_exchange(false, true, SeqCst, SeqCst).is_err() {
            std::thread::yield_now();
            continue;
        }
        let found = find();
        let failed = found.is_err();
        match found {
            Ok(Some(found)) => SHARE.store(Box::into_raw(Box::new(found)), Release),
            Ok(None) => NONE.store(true, Release),
            Err(_) => {}
        }
        LOOKING.store(false, SeqCst);
        if failed {
            // such as too many open files, which a program can bring about; the next call looks again
            return Some(&REFUSED);
        }
    }
}

/// A child process has its own place in the ledger. The old one is the parent's, and its mapping stays.
pub fn forget() {
    SHARE.store(std::ptr::null_mut(), SeqCst);
    LOOKING.store(false, SeqCst);
}

fn find() -> io::Result<Option<Share>> {
    let limits = match Mapped::<Limits>::open_mounted(Path::new(LIMITS)) {
        Ok(limits) => limits,
        Err(MapError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(MapError::Io(error)) => return Err(error),
        Err(MapError::Invalid) => return Err(io::ErrorKind::InvalidData.into()),
    };
    let usage = match Mapped::<Usage>::open(Path::new(USAGE)) {
        Ok(usage) => Some(usage),
        Err(MapError::Io(error)) if !is_missing(&error) => return Err(error),
        Err(_) => None,
    };
    let ledger = usage.and_then(|usage| Ledger::join(Box::leak(Box::new(usage))));
    let devices = std::array::from_fn(|_| AtomicU8::new(0));
    Ok(Some(Share { limits: Some(limits), ledger, context: Lock::new(false), devices }))
}

/// The file is not there, or too short: waiting does not help.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}

impl Share {
    /// The share, if the calling thread's context is on its GPU.
    pub fn of_current_context() -> Option<&'static Self> {
        let share = share()?;
        let mut device: Device = 0;
        let code = driver!(cuCtxGetDevice(&raw mut device => *mut Device));
        (code == SUCCESS && share.is_on(device)).then_some(share)
    }

    /// The calling thread has no context that lives.
    pub fn has_no_context() -> bool {
        let mut device: Device = 0;
        driver!(cuCtxGetDevice(&raw mut device => *mut Device)) != SUCCESS
    }

    /// The share, if it has a limited part of the GPU's time.
    pub fn with_pace() -> Option<(&'static Self, Pace)> {
        let share = share()?;
        Some((share, share.pace()?))
    }

    /// Its part of the GPU's time now, if that is limited.
    pub fn pace(&self) -> Option<Pace> {
        self.limits.as_ref()?.pace_at(now)
    }

    /// Nothing is launched for now.
    pub fn is_suspended(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.is_suspended())
    }

    /// Until when the work of neighbours is known, if the agent relays it.
    pub fn relayed(&self, now: u64) -> Option<u64> {
        self.limits.as_ref()?.relayed(now)
    }

    /// When the GPU ended what neighbours had launched before this time.
    pub fn waited_until(&self, launched: u64) -> u64 {
        self.limits.as_ref().map_or(0, |limits| limits.waited_until(launched))
    }

    /// Records work that has ended.
    pub fn record(&self, launched: u64, end: u64) {
        if let Some(ledger) = &self.ledger {
            ledger.usage().record(launched, end);
        }
    }

    /// The program launches now, or waits for that.
    pub fn want(&self, now: u64) {
        if let Some(ledger) = &self.ledger {
            ledger.usage().want(now);
        }
    }

    /// Adds nanoseconds that a launch waited for the part of the time.
    pub fn count_delay(&self, nanoseconds: u64) {
        if let Some(ledger) = self.ledger.as_ref().filter(|_| nanoseconds > 0) {
            ledger.usage().count_delay(nanoseconds);
        }
    }

    /// When the time that the container used is paid for.
    pub fn paid(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| ledger.usage().paid())
    }

    /// Charges time of the GPU.
    pub fn charge_time(&self, used: &Used, neighbours: Option<u64>, percent: u64) {
        if let Some(ledger) = &self.ledger {
            ledger.usage().charge_time(used, neighbours, percent);
        }
    }

    /// Counts a kernel that does not end.
    pub fn count_endless(&self) {
        if let Some(ledger) = &self.ledger {
            ledger.usage().count_endless();
        }
    }

    /// Runs a call that waits for the GPU, with its begin in the ledger as long as it takes.
    pub fn waiting<R>(&self, begin: u64, call: impl FnOnce() -> R) -> R {
        match &self.ledger {
            Some(ledger) => ledger.waiting(begin, call),
            None => call(),
        }
    }

    /// The share, also if the current context is on another GPU.
    pub fn of_container() -> Option<&'static Self> {
        share()
    }

    /// The share, if it is one of this device.
    pub fn of_device(device: Device) -> Option<&'static Self> {
        share().filter(|share| share.is_on(device))
    }

    /// It is one of this device, by UUID: `CUDA_VISIBLE_DEVICES` changes ordinals.
    pub fn is_on(&self, device: Device) -> bool {
        let Some(limits) = &self.limits else { return true };
        let known = usize::try_from(device).ok().and_then(|at| self.devices.get(at));
        match known.map_or(0, |known| known.load(Relaxed)) {
            0 => {
                // without an answer, such as before cuInit, the next call asks again
                let Some(same) = has_uuid(device, &limits.uuid()) else { return false };
                if let Some(known) = known {
                    known.store(if same { 1 } else { 2 }, Relaxed);
                }
                same
            }
            answer => answer == 1,
        }
    }

    /// Counts the context of this process, once; true if it was not counted before.
    pub fn count_context(&self) -> Result<bool, Denied> {
        let Some(ledger) = &self.ledger else { return self.without_ledger().map(|()| false) };
        self.context.with(|counted| {
            if *counted {
                return Ok(false);
            }
            ledger.reserve(self.context_bytes(), self.limit())?;
            *counted = true;
            Ok(true)
        })
    }

    /// The context that was counted could not be created. Another one of the process is counted again with its next allocation.
    pub fn discount_context(&self) {
        let Some(ledger) = &self.ledger else { return };
        self.context.with(|counted| {
            if std::mem::take(counted) {
                ledger.release(self.context_bytes());
            }
        });
    }

    /// Bytes that the processes of the container may hold.
    fn limit(&self) -> u64 {
        self.limits.as_ref().map_or(0, |limits| limits.limit())
    }

    /// Bytes that each process counts for its context.
    fn context_bytes(&self) -> u64 {
        self.limits.as_ref().map_or(0, |limits| limits.context())
    }

    /// Reserves memory, with the context of this process if it is not counted yet.
    pub fn reserve(&self, bytes: u64) -> Result<(), Denied> {
        self.count_context()?;
        match &self.ledger {
            Some(ledger) => ledger.reserve(bytes, self.limit()),
            None => self.without_ledger(),
        }
    }

    fn without_ledger(&self) -> Result<(), Denied> {
        match self.limits.as_ref().map(|limits| limits.on_missing()) {
            Some(OnMissing::Allow) => Ok(()),
            Some(OnMissing::Deny) | None => Err(Denied),
        }
    }

    /// The processes of the container hold more than they may.
    pub fn is_exceeded(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.used() > self.limit())
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

    /// Counts what the driver has really given, where so much was counted for it.
    pub fn correct(&self, counted: u64, given: u64) {
        match given.checked_sub(counted) {
            Some(0) => {}
            Some(more) => self.charge(more),
            None => self.release(counted.saturating_sub(given)),
        }
    }

    /// Bytes that programs see as the memory of the GPU; `None` if the limits cannot be used.
    pub fn visible(&self) -> Option<u64> {
        Some(self.limits.as_ref()?.visible())
    }

    /// Bytes that could still be reserved, without what ended processes held.
    pub fn left(&self) -> u64 {
        let visible = self.visible().unwrap_or(0);
        let Some(ledger) = &self.ledger else { return visible };
        ledger.recover();
        // before the first allocation the context of this process may not be counted yet
        let context = if self.context.with(|counted| *counted) { 0 } else { self.context_bytes() };
        let used = ledger.used().saturating_add(context);
        self.limit().saturating_sub(used).min(visible)
    }
}

/// A device has this UUID; `None` if the driver does not answer.
fn has_uuid(device: Device, wanted: &[u8]) -> Option<bool> {
    let mut uuid = [0_u8; 16];
    // the newer call answers for a MIG device with its own UUID
    let mut code = driver!(cuDeviceGetUuid_v2(&raw mut uuid => *mut [u8; 16], device => Device));
    if code != SUCCESS {
        code = driver!(cuDeviceGetUuid(&raw mut uuid => *mut [u8; 16], device => Device));
    }
    (code == SUCCESS).then(|| parse(wanted) == Some(uuid))
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
