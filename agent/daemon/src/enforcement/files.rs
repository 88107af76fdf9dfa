//! Limits and ledger of a share. A new container gets new files, under names that stay: what an earlier container counted is gone with it, and a
//! container that is restarted finds its own.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use gputenancy_crds::{CONTEXT_MIB, ResizePolicy, SharingMode};
use gputenancy_ledger::{
    Damage, Limits, MapError, Mapped, OnMissing, Usage,
    paths::{LIMITS_FILE, USAGE_FILE},
};

use crate::device::{Device, Share};

/// Bytes that a share that is made smaller keeps beyond what NVML lists, for allocations in progress. What NVML lists has the memory of contexts
/// as well, for which the limit has a reserve of its own.
const MARGIN: u64 = 64 << 20;

/// The right to change the memory of shares: each change reads what programs may allocate, and writes it again if they hold too much.
static RESIZE: Mutex<()> = Mutex::new(());

/// Files of one share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareFiles {
    /// The limits, which containers only read.
    pub limits: PathBuf,
    /// The ledger of one container.
    pub usage: PathBuf,
}

/// Memory of a fraction that a container has, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// What its programs may allocate now.
    pub present: u64,
    /// The memory of the fraction in the layout.
    pub wanted: u64,
    /// What its programs hold.
    pub held: u64,
}

impl ShareFiles {
    /// The files of a device with a limit, below the folder of shares.
    pub fn of(device: &Device, shares: &Path) -> Option<Self> {
        let Share { number, limit_mib: Some(_), .. } = device.share.as_ref()? else { return None };
        let folder = shares.join(device.id.uuid()).join(number.to_string());
        Some(Self { limits: folder.join(LIMITS_FILE), usage: folder.join(USAGE_FILE) })
    }

    /// Creates the files if they are missing, or the limits of another version: a container that has the share from another release, or from before a
    /// restart of the node, does not start without them, and has no limit with others. A ledger that a container has damaged is repaired in its place,
    /// because the container would not get a new one.
    pub fn ensure(&self, device: &Device) -> io::Result<()> {
        let limits = match Mapped::<Limits>::open(&self.limits) {
            Ok(limits) if self.usage.exists() => limits,
            Err(MapError::Io(error)) if !is_missing(&error) => return Err(error),
            Ok(_) | Err(_) => return self.renew(device),
        };
        match self.repair() {
            Ok(None) => {}
            Ok(Some(damage)) => tracing::warn!(device = %device.id, ?damage, "ledger of a share repaired"),
            // the audit tries again; a container that prevents it gets no more memory by that
            Err(error) => tracing::warn!(device = %device.id, %error, "ledger of a share not repaired"),
        }
        // other fractions of the GPU have come or gone, and with them the turns have changed
        let pace = device.share.as_ref().and_then(|share| share.pace);
        // without NVML; the next sample of the audit has it
        let memory = self.memory_for(device, &limits, None);
        if limits.pace() == pace && limits.visible() == memory {
            return Ok(());
        }
        match Mapped::<Limits>::open_writable(&self.limits) {
            Ok(limits) => {
                limits.set_pace(pace);
                self.resize(device, &limits, None);
                Ok(())
            }
            Err(MapError::Io(error)) => Err(error),
            Err(MapError::Invalid) => self.renew(device),
        }
    }

    /// Makes a share smaller whose programs held more than its new size, once they have freed memory. Only where the files exist: they are
    /// created when kubelet allocates the share. `listed`: bytes that NVML lists for its processes, if it does.
    pub fn shrink(&self, device: &Device, listed: Option<u64>) {
        let Ok(limits) = Mapped::<Limits>::open(&self.limits) else { return };
        let smaller = resizable(device).is_some_and(|wanted| wanted < limits.visible());
        if smaller && let Ok(limits) = Mapped::<Limits>::open_writable(&self.limits) {
            self.resize(device, &limits, listed);
        }
    }

    /// Gives the running container of a fraction the memory of the layout as far as its policy permits, and returns what it has then. `None`
    /// without files, and for other shares, whose memory does not change.
    pub fn follow(&self, device: &Device) -> Option<Size> {
        let wanted = resizable(device)?;
        let alone = alone();
        let limits = Mapped::<Limits>::open(&self.limits).ok()?;
        if limits.visible() != wanted
            && let Ok(limits) = Mapped::<Limits>::open_writable(&self.limits)
        {
            self.resize_alone(device, &limits, None, &alone);
        }
        Some(Size { present: limits.visible(), wanted, held: self.held(&limits, None) })
    }

    fn resize(&self, device: &Device, limits: &Limits, listed: Option<u64>) {
        self.resize_alone(device, limits, listed, &alone());
    }

    /// While no other thread changes the memory of shares.
    fn resize_alone(&self, device: &Device, limits: &Limits, listed: Option<u64>, _: &MutexGuard<'_, ()>) {
        let (before, memory) = (limits.visible(), self.memory_for(device, limits, listed));
        if memory < before && !is_forced(device) && self.held(limits, listed) > memory {
            return;
        }
        limits.resize(memory);
        // what a program allocated since its use was read is not taken from it either
        let held = self.held(limits, listed).min(before);
        if held > limits.visible() {
            limits.resize(if is_forced(device) { held } else { before });
        }
    }

    /// Bytes that running programs may allocate now. That is the size of the share, unless they hold more: then all that they had before, or
    /// what they hold if the change is forced, so that the share shrinks as they free memory. None of it is taken from them.
    fn memory_for(&self, device: &Device, present: &Limits, listed: Option<u64>) -> u64 {
        let before = present.visible();
        let wanted = resizable(device).unwrap_or(before);
        let held = self.held(present, listed);
        match held <= wanted {
            true => wanted,
            false if is_forced(device) => wanted.max(before.min(held)),
            false => wanted.max(before),
        }
    }

    /// Bytes that the programs hold, without the context of the first: by their ledger, but not more than NVML lists. A container can write any
    /// number into its ledger, and would keep the former size.
    fn held(&self, limits: &Limits, listed: Option<u64>) -> u64 {
        let counts = Mapped::<Usage>::read_counts(&self.usage).unwrap_or_default();
        let most = listed.map_or(u64::MAX, |listed| listed.saturating_add(MARGIN));
        counts.used().saturating_sub(limits.context()).min(most)
    }

    /// Repairs a ledger that its container has damaged, and returns what was wrong. Without limits of this version the ledger may be one of
    /// another version, and is left as it is.
    pub fn repair(&self) -> io::Result<Option<Damage>> {
        if Mapped::<Limits>::open(&self.limits).is_err() || !self.usage.exists() {
            return Ok(None);
        }
        Mapped::<Usage>::repair(&self.usage)
    }

    /// Cuts back a ledger that its container has made larger; false if it is as large as it is made, or there is none.
    pub fn cut_back(&self) -> io::Result<bool> {
        match fs::metadata(&self.usage) {
            Ok(meta) if meta.is_file() && meta.len() > Mapped::<Usage>::SIZE => Ok(self.repair()?.is_some()),
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// New files for a new container. A program that forges its ledger affects no other container, and one that breaks it gets no memory.
    pub fn renew(&self, device: &Device) -> io::Result<()> {
        let Some(memory) = memory(device) else { return Ok(()) };
        if let Some(folder) = self.limits.parent() {
            fs::create_dir_all(folder)?;
        }
        // first, because it may be large, and take the place that the new one needs
        remove_if_exists(&self.usage)?;
        replace(&self.limits, |path| {
            let limits = Mapped::<Limits>::create(path)?;
            limits.write(device.id.uuid(), memory, bytes(CONTEXT_MIB), OnMissing::Deny);
            limits.set_pace(device.share.as_ref().and_then(|share| share.pace));
            Ok(())
        })?;
        replace(&self.usage, |path| Mapped::<Usage>::create(path).map(drop))
    }
}

/// Bytes for the programs on a share, without a context.
fn memory(device: &Device) -> Option<u64> {
    Some(bytes(device.share.as_ref()?.limit_mib?))
}

/// The same, if a change reaches running programs: the part of a time-slice depends on more than its profile, and stays.
fn resizable(device: &Device) -> Option<u64> {
    let fraction = device.share.as_ref()?.mode == SharingMode::Fraction;
    memory(device).filter(|_| fraction)
}

/// Whether a size below what programs hold is to be applied.
pub(super) fn is_forced(device: &Device) -> bool {
    device.share.as_ref().is_some_and(|share| share.resize == ResizePolicy::Force)
}

fn alone() -> MutexGuard<'static, ()> {
    RESIZE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(mib: i64) -> u64 {
    u64::try_from(mib).unwrap_or(0) << 20
}

/// Writes a file next to its place, and puts it there.
fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let fresh = path.with_extension("new");
    // a mapping of the former file stays with its container
    remove_if_exists(&fresh)?;
    write(&fresh)?;
    fs::rename(&fresh, path)
}

/// The file is not there, or incomplete.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_ledger::{Ledger, Pace, Turn};

    use super::*;
    use crate::{device::DeviceId, mps::share::tests::device};

    /// A fraction of this size.
    fn sized(mib: i64) -> Device {
        let device = device(0, SharingMode::Fraction, Some(mib), None);
        Device { share: Some(Share { limit_mib: Some(mib), ..device.share.clone().unwrap() }), ..device }
    }

    /// The same, where a smaller size is forced.
    fn forced(mib: i64) -> Device {
        let device = sized(mib);
        Device { share: Some(Share { resize: ResizePolicy::Force, ..device.share.clone().unwrap() }), ..device }
    }

    #[test]
    fn new_container_counts_from_nothing_and_a_restarted_one_goes_on() {
        let root = tempfile::tempdir().unwrap();
        let gpu = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let share = device(3, SharingMode::Fraction, Some(10_240), None);
        let share = Device { id: DeviceId::share(gpu, 3), gpu_uuid: gpu.to_owned(), ..share };
        let limited = Share { limit_mib: Some(10_240), ..share.share.clone().unwrap() };
        assert_eq!(ShareFiles::of(&share, root.path()), None, "without a limit");
        let share = Device { share: Some(limited), ..share };
        let files = ShareFiles::of(&share, root.path()).unwrap();
        files.ensure(&share).unwrap();
        let used = || Mapped::<Usage>::open(&files.usage).unwrap().used();
        {
            let usage = Mapped::<Usage>::open(&files.usage).unwrap();
            Ledger::join(&usage).unwrap().reserve(1024, u64::MAX).unwrap();
        }
        assert_eq!(used(), 1024);
        files.ensure(&share).unwrap();
        assert_eq!(used(), 1024);
        files.renew(&share).unwrap();
        assert_eq!(used(), 0);
        fs::write(&files.limits, "of another version").unwrap();
        files.ensure(&share).unwrap();
        // a container cuts its ledger, makes it larger, or writes over it
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&files.usage).unwrap());
        let (before, ledger) = (inode(), || fs::OpenOptions::new().write(true).open(&files.usage).unwrap());
        ledger().set_len(10).unwrap();
        assert!(!Mapped::<Usage>::is_valid_file(&files.usage));
        files.ensure(&share).unwrap();
        assert!(Mapped::<Usage>::is_valid_file(&files.usage));
        std::os::unix::fs::FileExt::write_all_at(&ledger(), &[7; 12], 0).unwrap();
        files.ensure(&share).unwrap();
        assert!(Mapped::<Usage>::is_valid_file(&files.usage));
        ledger().set_len(Mapped::<Usage>::SIZE + 1).unwrap();
        assert_eq!([files.repair().unwrap(), files.repair().unwrap()], [Some(Damage::Larger), None]);
        assert_eq!(inode(), before, "the container keeps its file");
        fs::remove_file(&files.usage).unwrap();
        assert_eq!(files.repair().unwrap(), None);
        files.ensure(&share).unwrap();
        assert!(Mapped::<Usage>::is_valid_file(&files.usage));
        let limits = Mapped::<Limits>::open(&files.limits).unwrap();
        assert_eq!((limits.visible(), limits.limit()), (10_240 << 20, (10_240 + 640) << 20));
        assert!(limits.uuid().starts_with(gpu.as_bytes()));
        // running programs see a changed part of the time
        assert_eq!(limits.pace(), None);
        let turn = Some(Turn { period: 20_000_000, start: 0, length: 5_000_000 });
        let pace = Some(Pace { percent: 25, turn, burst: true });
        let paced = Share { pace, ..share.share.clone().unwrap() };
        files.ensure(&Device { share: Some(paced), ..share.clone() }).unwrap();
        assert_eq!(limits.pace(), pace);
        files.ensure(&share).unwrap();
        assert_eq!(limits.pace(), None);
    }

    #[test]
    fn smaller_size_is_refused_while_programs_hold_more() {
        let root = tempfile::tempdir().unwrap();
        let files = ShareFiles::of(&sized(1000), root.path()).unwrap();
        files.ensure(&sized(1000)).unwrap();
        let usage = Mapped::<Usage>::open(&files.usage).unwrap();
        let ledger = Ledger::join(&usage).unwrap();
        ledger.reserve(bytes(CONTEXT_MIB + 700), u64::MAX).unwrap();
        let follow =
            |device: &Device| files.follow(device).map(|size| [size.present, size.wanted, size.held].map(|b| b >> 20));
        let refused = Some([1000, 500, 700]);
        assert_eq!(follow(&sized(500)), refused, "the whole former size");
        files.ensure(&sized(500)).unwrap();
        files.shrink(&sized(500), Some(bytes(700)));
        assert_eq!(follow(&sized(500)), refused);
        // it allocates within its former size meanwhile
        ledger.reserve(bytes(200), u64::MAX).unwrap();
        ledger.release(bytes(399));
        assert_eq!(follow(&sized(500)), Some([1000, 500, 501]));
        ledger.release(bytes(1));
        assert_eq!(follow(&sized(500)), Some([500, 500, 500]), "at once when it is free");
        assert_eq!(follow(&sized(600)), Some([600, 600, 500]), "growth is immediate");
        assert_eq!(follow(&forced(400)), Some([500, 400, 500]), "forced: what it holds");
        let slice = device(0, SharingMode::TimeSlice, None, None);
        assert_eq!(follow(&slice), None, "its size does not change");
        fs::remove_file(&files.limits).unwrap();
        assert_eq!(follow(&sized(600)), None);
    }

    #[test]
    fn forced_change_sinks_with_what_programs_hold() {
        let root = tempfile::tempdir().unwrap();
        let files = ShareFiles::of(&sized(1000), root.path()).unwrap();
        files.ensure(&sized(1000)).unwrap();
        let limits = Mapped::<Limits>::open(&files.limits).unwrap();
        let usage = Mapped::<Usage>::open(&files.usage).unwrap();
        let ledger = Ledger::join(&usage).unwrap();
        ledger.reserve(bytes(CONTEXT_MIB + 700), u64::MAX).unwrap();
        let visible = |mib: i64| {
            files.ensure(&forced(mib)).unwrap();
            limits.visible() >> 20
        };
        assert_eq!(visible(1200), 1200);
        assert_eq!(visible(500), 700, "what they hold");
        assert_eq!(limits.limit() >> 20, 700 + 640);
        ledger.release(bytes(100));
        assert_eq!(visible(500), 600);
        ledger.release(bytes(600));
        assert_eq!(visible(500), 500);
        // more than before only by the size of the share
        ledger.reserve(bytes(300), u64::MAX).unwrap();
        assert_eq!((visible(500), visible(800)), (500, 800));
    }

    #[test]
    fn forged_ledger_does_not_keep_the_former_size() {
        let root = tempfile::tempdir().unwrap();
        let files = ShareFiles::of(&sized(10_000), root.path()).unwrap();
        files.ensure(&sized(10_000)).unwrap();
        // the sum, at its place in the header
        let file = fs::OpenOptions::new().write(true).open(&files.usage).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[255; 8], 16).unwrap();
        let visible = || Mapped::<Limits>::open(&files.limits).unwrap().visible() >> 20;
        files.ensure(&sized(2_000)).unwrap();
        assert_eq!(visible(), 10_000, "all that the ledger counts may be held");
        files.shrink(&sized(2_000), None);
        assert_eq!(visible(), 10_000, "without an answer of NVML");
        files.shrink(&sized(2_000), Some(bytes(6_000)));
        assert_eq!(visible(), 10_000, "refused by what NVML lists");
        for (listed, expected) in [(6_000, 6_064), (9_000, 6_064), (2_500, 2_564), (900, 2_000), (9_000, 2_000)] {
            files.shrink(&forced(2_000), Some(bytes(listed)));
            assert_eq!(visible(), expected, "{listed} MiB listed");
        }
    }
}
