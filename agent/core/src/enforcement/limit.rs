//! How much a share may allocate, and by which means it is held to that. Pure.

use gputenancy_crds::{CONTEXT_MIB, Isolation, SharingMode};

use crate::device::{Device, DriverLimits, Limiters, Share, ShimState};

/// MiB for the programs on one of several time-slices: an equal part of what the driver leaves, without the context.
pub fn of_time_slice(memory_mib: u64, reserved_mib: u64, replicas: usize) -> Option<i64> {
    let usable = i64::try_from(memory_mib.saturating_sub(reserved_mib)).ok()?;
    let part = usable.checked_div(i64::try_from(replicas).ok()?)?;
    Some(part - CONTEXT_MIB).filter(|mib| *mib > 0)
}

/// The means for a container that starts now with this share of a GPU, or of a MIG instance, which the driver does not limit.
pub fn means(share: &Share, of_mig: bool, limiters: Limiters) -> Isolation {
    match (share.mode, share.limit_mib) {
        (SharingMode::Mps, _) if share.memory_mib.is_some() => Isolation::Server,
        (SharingMode::Mps, _) | (_, None) => Isolation::None,
        (_, Some(_)) if limiters.driver == DriverLimits::Supported && !of_mig => Isolation::Driver,
        (_, Some(_)) if limiters.shim == ShimState::Served => Isolation::Software,
        _ => Isolation::None,
    }
}

/// The means of a device that is a share.
pub fn means_of(device: &Device, limiters: Limiters) -> Option<Isolation> {
    device.share.as_ref().map(|share| means(share, device.mig.is_some(), limiters))
}

/// Cordons shares that are not limited as the pool demands, so that no new pod gets one; pods keep theirs.
pub fn cordon_weak(devices: &mut [Device], minimum: Isolation, limiters: Limiters) {
    for device in devices {
        device.cordoned |= means_of(device, limiters).is_some_and(|means| !means.is_at_least(minimum));
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::ResizePolicy;

    use super::*;
    use crate::device::{OtherLimiter, tests::share as device};

    fn with(shim: ShimState, driver: DriverLimits) -> Limiters {
        Limiters { shim, driver }
    }

    #[test]
    fn time_slices_get_equal_parts_without_their_contexts() {
        assert_eq!(of_time_slice(81_920, 512, 4), Some(20_352 - 640));
        assert_eq!(of_time_slice(81_920, 512, 0), None);
        assert_eq!(of_time_slice(8_192, 0, 16), None, "nothing is left after the contexts");
    }

    #[test]
    fn share_without_a_limit_is_not_enforced_and_mps_limits_itself() {
        let share = |mode, memory_mib, limit_mib| Share {
            number: 0,
            mode,
            memory_mib,
            compute: None,
            limit_mib,
            pace: None,
            resize: ResizePolicy::default(),
        };
        let means = |share: Share, shim| means(&share, false, with(shim, DriverLimits::NotSupported));
        let served = ShimState::Served;
        assert_eq!(means(share(SharingMode::Mps, Some(1), None), served), Isolation::Server);
        assert_eq!(means(share(SharingMode::Mps, None, None), served), Isolation::None);
        assert_eq!(means(share(SharingMode::Fraction, Some(1), Some(1)), served), Isolation::Software);
        let other = ShimState::Conflict(OtherLimiter::Folder);
        for shim in [ShimState::Unknown, ShimState::Off, ShimState::NotInstalled, other] {
            assert_eq!(means(share(SharingMode::Fraction, Some(1), Some(1)), shim), Isolation::None);
        }
        assert_eq!(means(share(SharingMode::TimeSlice, None, None), served), Isolation::None);
    }

    #[test]
    fn driver_precedes_the_library_on_whole_gpus_and_does_not_depend_on_it() {
        let share = |mode, limit_mib| Share { limit_mib, ..device(0, mode, Some(1)).share.unwrap() };
        for shim in [ShimState::Served, ShimState::NotInstalled] {
            let limiters = with(shim, DriverLimits::Supported);
            for mode in [SharingMode::TimeSlice, SharingMode::Fraction] {
                assert_eq!(means(&share(mode, Some(1)), false, limiters), Isolation::Driver);
                assert_eq!(means(&share(mode, None), false, limiters), Isolation::None, "nothing to set");
            }
            assert_eq!(means(&share(SharingMode::Mps, None), false, limiters), Isolation::Server);
        }
        let slice = share(SharingMode::TimeSlice, Some(1));
        assert_eq!(means(&slice, true, with(ShimState::Served, DriverLimits::Supported)), Isolation::Software);
        assert_eq!(means(&slice, true, with(ShimState::Off, DriverLimits::Supported)), Isolation::None);
        assert_eq!(means(&slice, false, with(ShimState::Served, DriverLimits::Unknown)), Isolation::Software);
    }

    #[test]
    fn shares_below_the_minimum_are_cordoned_and_other_devices_are_not() {
        let limited = |mode, memory_mib| {
            let mut device = device(0, mode, Some(1024));
            device.share.as_mut().unwrap().limit_mib = memory_mib;
            device
        };
        let all = || {
            let whole = Device { share: None, ..device(0, SharingMode::Mps, None) };
            vec![whole, limited(SharingMode::Mps, None), limited(SharingMode::Fraction, Some(1024))]
        };
        let cordoned = |minimum, shim| {
            let mut devices = all();
            cordon_weak(&mut devices, minimum, with(shim, DriverLimits::NotSupported));
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
