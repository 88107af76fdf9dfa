//! How the GPUs of a node are connected: all below one CPU, and by `NVLink` as the machine says.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as TYPE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as TYPE_SWITCH, nvmlPciInfo_t,
};
use silicon::machine::Gpu;
use silicon::{Code, LINKS, Links};

use crate::{
    call::{
        context::Context,
        nvml,
        out::{field, put},
    },
    device::pci_of,
};

/// `NVML_TOPOLOGY_INTERNAL`: one board.
const INTERNAL: c_uint = 0;
/// `NVML_TOPOLOGY_NODE`: one CPU.
const NODE: c_uint = 40;

/// The other end of a link.
enum End<'a> {
    Gpu(&'a Gpu),
    Switch(u32),
}

impl Context {
    /// Where a link of a GPU leads; `None`: it is not active. A GPU with MIG mode has no active links.
    fn link_end(&self, device: nvmlDevice_t, link: c_uint) -> Result<Option<End<'_>>, Code> {
        let gpu = self.gpu(device)?;
        if link >= LINKS {
            return Err(Code::INVALID_ARGUMENT);
        }
        Ok(match self.machine.links {
            _ if gpu.mig => None,
            Links::None => None,
            Links::Switches => Some(End::Switch(link)),
            Links::Bridges => self.machine.gpu(Links::bridge(gpu.index)).ok().map(End::Gpu),
        })
    }
}

nvml! {
    fn nvmlDeviceGetNvLinkState[device](ctx, device: nvmlDevice_t, link: c_uint, active: *mut c_uint) {
        put(active, ctx.link_end(device, link)?.is_some().into())
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType[device](ctx, device: nvmlDevice_t, link: c_uint, kind: *mut c_uint) {
        match ctx.link_end(device, link)?.ok_or(Code::NOT_SUPPORTED)? {
            End::Gpu(_) => put(kind, TYPE_GPU),
            End::Switch(_) => put(kind, TYPE_SWITCH),
        }
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2[device](ctx, device: nvmlDevice_t, link: c_uint, pci: *mut nvmlPciInfo_t) {
        match ctx.link_end(device, link)?.ok_or(Code::NOT_SUPPORTED)? {
            End::Gpu(gpu) => put(pci, pci_of(gpu)),
            End::Switch(number) => {
                let gpu = pci_of(ctx.gpu(device)?);
                put(pci, nvmlPciInfo_t { busId: field(&format!("00000000:{:02X}:00.0", 0xC0 + number)), ..gpu })
            }
        }
    }

    fn nvmlDeviceGetTopologyCommonAncestor[a](ctx, a: nvmlDevice_t, b: nvmlDevice_t, level: *mut c_uint) {
        let same = ctx.gpu(a)?.index == ctx.gpu(b)?.index;
        put(level, if same { INTERNAL } else { NODE })
    }

    fn nvmlDeviceGetP2PStatus[a](
        ctx, a: nvmlDevice_t, b: nvmlDevice_t, _capability: c_uint, status: *mut c_uint,
    ) {
        ctx.gpu(a)?;
        ctx.gpu(b)?;
        put(status, 0)
    }

    fn nvmlDeviceOnSameBoard[a](ctx, a: nvmlDevice_t, b: nvmlDevice_t, same: *mut c_uint) {
        put(same, (ctx.gpu(a)?.index == ctx.gpu(b)?.index).into())
    }

    fn nvmlDeviceGetNumaNodeId[device](ctx, device: nvmlDevice_t, node: *mut c_uint) {
        ctx.gpu(device)?;
        put(node, 0)
    }

    fn nvmlDeviceGetCpuAffinity[device](
        ctx, device: nvmlDevice_t, size: c_uint, set: *mut c_ulong,
    ) {
        ctx.gpu(device)?;
        if set.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for i in 0..size as usize {
            let bits = cpus.saturating_sub(i * 64).min(64);
            let word = if bits == 64 { c_ulong::MAX } else { (1 << bits) - 1 };
            // SAFETY: NVML demands an array of `size` words.
            put(unsafe { set.add(i) }, word)?;
        }
        Ok(())
    }
}
