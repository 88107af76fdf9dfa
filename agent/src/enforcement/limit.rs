//! How much a share may allocate, and by which means it is held to that. Pure.

use gputenancy_crds::{Isolation, SharingMode};

use crate::device::{Device, Share, ShimState};

/// MiB that the planner keeps free for the CUDA context of a share: see `CONTEXT_MIB` of the planner. The first process of a container has
/// it on top of the limit; each further one counts as much against the limit.
pub const CONTEXT_MIB: i64 = 640;

/// MiB for the programs on a fraction: its part of the memory.
pub fn of_fraction(memory_mib: i64) -> i64 {
    memory_mib
}

/// MiB for the programs on one of several time-slices: an equal part of what the driver leaves, without the context.
pub fn of_time_slice(memory_mib: u64, reserved_mib: u64, replicas: usize) -> Option<i64> {
    let usable = i64::try_from(memory_mib.saturating_sub(reserved_mib)).ok()?;
    let part = usable.checked_div(i64::try_from(replicas).ok()?)?;
    Some(part - CONTEXT_MIB).filter(|mib| *mib > 0)
}

/// The means for a container that starts now with this share.
pub fn means(share: &Share, shim: ShimState) -> Isolation {
    match (share.mode, share.limit_mib) {
        (SharingMode::Mps, _) if share.memory_mib.is_some() => Isolation::Server,
        (SharingMode::Mps, _) | (_, None) => Isolation::None,
        (_, Some(_)) if shim == ShimState::Served => Isolation::Software,
        _ => Isolation::None,
    }
}

/// Cordons shares that are not limited as the pool demands, so that no new pod gets one; pods keep theirs.
pub fn cordon_weak(devices: &mut [Device], minimum: Isolation, shim: ShimState) {
    for device in devices {
        device.cordoned |= device.share.as_ref().is_some_and(|share| !means(share, shim).is_at_least(minimum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::OtherLimiter;

    #[test]
    fn time_slices_get_equal_parts_without_their_contexts() {
        assert_eq!(of_time_slice(81_920, 512, 4), Some(20_352 - 640));
        assert_eq!(of_time_slice(81_920, 512, 0), None);
        assert_eq!(of_time_slice(8_192, 0, 16), None, "nothing is left after the contexts");
    }

    #[test]
    fn share_without_a_limit_is_not_enforced_and_mps_limits_itself() {
        let share =
            |mode, memory_mib, limit_mib| Share { number: 0, mode, memory_mib, compute: None, limit_mib, pace: None };
        let served = ShimState::Served;
        assert_eq!(means(&share(SharingMode::Mps, Some(1), None), served), Isolation::Server);
        assert_eq!(means(&share(SharingMode::Mps, None, None), served), Isolation::None);
        assert_eq!(means(&share(SharingMode::Fraction, Some(1), Some(1)), served), Isolation::Software);
        let other = ShimState::Conflict(OtherLimiter::Folder);
        for shim in [ShimState::Unknown, ShimState::Off, ShimState::NotInstalled, other] {
            assert_eq!(means(&share(SharingMode::Fraction, Some(1), Some(1)), shim), Isolation::None);
        }
        assert_eq!(means(&share(SharingMode::TimeSlice, None, None), served), Isolation::None);
    }

    #[test]
    fn shares_below_the_minimum_are_cordoned_and_other_devices_are_not() {
        use crate::mps::share::tests::device;
        let limited = |mode, memory_mib| {
            let mut device = device(0, mode, Some(1024), None);
            device.share.as_mut().unwrap().limit_mib = memory_mib;
            device
        };
        let all = || {
            let whole = Device { share: None, ..device(0, SharingMode::Mps, None, None) };
            vec![whole, limited(SharingMode::Mps, None), limited(SharingMode::Fraction, Some(1024))]
        };
        let cordoned = |minimum, shim| {
            let mut devices = all();
            cordon_weak(&mut devices, minimum, shim);
            devices.iter().map(|device| device.cordoned).collect::<Vec<_>>()
        };
        assert_eq!(cordoned(Isolation::None, ShimState::Off), [false, false, false]);
        assert_eq!(cordoned(Isolation::Software, ShimState::Served), [false, false, false]);
        for shim in [ShimState::Unknown, ShimState::Off, ShimState::NotInstalled] {
            assert_eq!(cordoned(Isolation::Software, shim), [false, false, true]);
        }
        assert_eq!(cordoned(Isolation::Server, ShimState::Served), [false, false, true]);
        assert_eq!(cordoned(Isolation::Hardware, ShimState::Served), [false, true, true]);
    }
}
