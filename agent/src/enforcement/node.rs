//! What the node can give to containers that start now, before any share exists. Pure.

use gputenancy_crds::{Advertiser, Isolation, NodeEnforcement};

use crate::device::{OtherLimiter, ShimState};

/// The means by kind of share; `None`: not known yet.
pub fn of_node(advertiser: Advertiser, shim: ShimState) -> Option<NodeEnforcement> {
    if !advertiser.is_agent() {
        let reason = "NVIDIA's device plugin serves the shares, and nothing limits their memory: set spec.advertiser: Agent in the GpuPool";
        return Some(NodeEnforcement { reason: Some(reason.to_owned()), ..NodeEnforcement::default() });
    }
    let reason = match shim {
        ShimState::Unknown => return None,
        ShimState::Served => None,
        ShimState::Off => Some(OFF),
        ShimState::NotInstalled => Some(NOT_INSTALLED),
        ShimState::Conflict(other) => Some(conflict(other)),
    };
    let library = if reason.is_none() { Isolation::Software } else { Isolation::None };
    Some(NodeEnforcement {
        time_slice: library,
        mps: Isolation::Server,
        fraction: library,
        reason: reason.map(str::to_owned),
    })
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
        let given = |advertiser, shim| of_node(advertiser, shim).map(|node| modes.map(|mode| node.of(mode)));
        let (software, none) = (Isolation::Software, Isolation::None);
        assert_eq!(given(Advertiser::Agent, ShimState::Unknown), None);
        assert_eq!(given(Advertiser::Agent, ShimState::Served), Some([software, Isolation::Server, software]));
        let others = [OtherLimiter::Preload, OtherLimiter::Folder].map(ShimState::Conflict);
        for shim in [ShimState::Off, ShimState::NotInstalled].into_iter().chain(others) {
            assert_eq!(given(Advertiser::Agent, shim), Some([none, Isolation::Server, none]));
            assert!(of_node(Advertiser::Agent, shim).unwrap().reason.is_some(), "{shim:?}");
        }
        assert_eq!(given(Advertiser::NvidiaDevicePlugin, ShimState::Served), Some([none; 3]));
    }
}
