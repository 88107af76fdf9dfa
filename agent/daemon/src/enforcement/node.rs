//! What the node can give to containers that start now, before any share exists. Pure.

use gputenancy_crds::{Advertiser, Isolation, NodeEnforcement};

use crate::device::{DriverLimits, Limiters, OtherLimiter, ShimState};

/// The means by kind of share; `None`: not known yet.
pub fn of_node(advertiser: Advertiser, limiters: Limiters) -> Option<NodeEnforcement> {
    if !advertiser.is_agent() {
        let reason = "NVIDIA's device plugin serves the shares, and nothing limits their memory: set spec.advertiser: Agent in the GpuPool";
        return Some(NodeEnforcement { reason: Some(reason.to_owned()), ..NodeEnforcement::default() });
    }
    let without_driver = match limiters.shim {
        ShimState::Unknown => return None,
        _ if limiters.driver == DriverLimits::Unknown => return None,
        ShimState::Served => None,
        ShimState::Off => Some(OFF),
        ShimState::NotInstalled => Some(NOT_INSTALLED),
        ShimState::Conflict(other) => Some(conflict(other)),
    };
    let by_driver = limiters.driver == DriverLimits::Supported;
    let means = match without_driver {
        _ if by_driver => Isolation::Driver,
        None => Isolation::Software,
        Some(_) => Isolation::None,
    };
    let reason = without_driver.filter(|_| !by_driver).map(str::to_owned);
    let other_limits = Vec::new();
    Some(NodeEnforcement { time_slice: means, mps: Isolation::Server, fraction: means, reason, other_limits })
}

/// Why memory is not limited next to another product, and what to do.
pub fn conflict(other: OtherLimiter) -> &'static str {
    match other {
        OtherLimiter::Preload => {
            "/etc/ld.so.preload of the node names libvgpu, the library of HAMi, and two libraries that limit memory break each other: remove HAMi from the node and that line from the file, or set agent.memoryLimits: None"
        }
        OtherLimiter::Folder => {
            "/usr/local/vgpu of the node has libvgpu, the library of HAMi, of Volcano's vGPU plugin and of KAI's resource isolator, and two libraries that limit memory break each other: remove that product from the node and its files from the folder, or set agent.memoryLimits: None"
        }
        OtherLimiter::Fractioning => {
            "the Node has the condition gpu-fractioning.nvidia.com/Ready of kai-gpu-fractioning, and two products that set the driver's limits overwrite each other: exclude the node from its GpuFractioningConfig, or set agent.memoryLimits: None"
        }
    }
}

/// Memory is not to be limited.
const OFF: &str = "memory limits are switched off: set agent.memoryLimits: Shim in the values of the chart; without the chart, start the agent with --memory-limits=shim and --allocate=cdi";

/// Memory is to be limited, and cannot be.
pub const NOT_INSTALLED: &str = "the library that limits it could not be installed, the files of a share could not be written, or the driver has no libcuda: read the agent's log, and restart the agent after the repair";

#[cfg(test)]
mod tests {
    use gputenancy_crds::SharingMode;

    use super::*;

    #[test]
    fn means_of_each_kind_of_share_are_known_without_shares() {
        let modes = [SharingMode::TimeSlice, SharingMode::Mps, SharingMode::Fraction];
        let without = |shim| Limiters { shim, driver: DriverLimits::NotSupported };
        let given = |advertiser, shim| of_node(advertiser, without(shim)).map(|node| modes.map(|mode| node.of(mode)));
        let (software, none) = (Isolation::Software, Isolation::None);
        assert_eq!(given(Advertiser::Agent, ShimState::Unknown), None);
        assert_eq!(given(Advertiser::Agent, ShimState::Served), Some([software, Isolation::Server, software]));
        let others = [OtherLimiter::Preload, OtherLimiter::Folder, OtherLimiter::Fractioning].map(ShimState::Conflict);
        for shim in [ShimState::Off, ShimState::NotInstalled].into_iter().chain(others) {
            assert_eq!(given(Advertiser::Agent, shim), Some([none, Isolation::Server, none]));
            assert!(of_node(Advertiser::Agent, without(shim)).unwrap().reason.is_some(), "{shim:?}");
        }
        assert_eq!(given(Advertiser::NvidiaDevicePlugin, ShimState::Served), Some([none; 3]));
    }
    #[test]
    fn driver_is_reported_once_it_has_answered() {
        let node = |shim, driver| of_node(Advertiser::Agent, Limiters { shim, driver });
        assert_eq!(node(ShimState::Served, DriverLimits::Unknown), None);
        for shim in [ShimState::Served, ShimState::NotInstalled] {
            let by_driver = node(shim, DriverLimits::Supported).unwrap();
            assert_eq!((by_driver.time_slice, by_driver.fraction), (Isolation::Driver, Isolation::Driver));
            assert_eq!((by_driver.mps, by_driver.reason), (Isolation::Server, None));
        }
        let theirs = of_node(Advertiser::NvidiaDevicePlugin, Limiters::OFF).unwrap();
        assert_eq!(theirs.time_slice, Isolation::None);
    }
}
