//! How two GPUs are connected.

use std::mem::zeroed;

use nvml_wrapper_sys::bindings::{
    NVML_NVLINK_MAX_LINKS, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH, nvmlPciInfo_t,
};

use crate::{
    Connection, Gpu, NvmlFailure, code,
    library::{call, output, string},
};

/// Where the active links (`NVLink`) of one GPU lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvLinks {
    /// Links to switches, through which every GPU of the node that has such links is reached.
    to_switches: u32,
    /// PCI address of the other end of each other link, in lower case.
    ends: Vec<String>,
}

impl NvLinks {
    /// Links by which it reaches a GPU with this PCI address and these links.
    pub fn to(&self, pci_bus_id: &str, other: &Self) -> u32 {
        let address = pci_bus_id.to_lowercase();
        let direct = self.ends.iter().filter(|end| **end == address).count();
        u32::try_from(direct).unwrap_or(u32::MAX).saturating_add(self.to_switches.min(other.to_switches))
    }
}

impl Gpu<'_> {
    /// Its active links of `NVLink`; none on a board without them.
    pub fn nvlinks(&self) -> Result<NvLinks, NvmlFailure> {
        let mut links = NvLinks::default();
        for link in 0..NVML_NVLINK_MAX_LINKS {
            let state = output(0, |state| call!(self.nvml, nvmlDeviceGetNvLinkState(self.handle, link, state)));
            // boards have fewer links than the header's limit, and may not use all of them
            let absent = [code::NOT_SUPPORTED, code::FUNCTION_NOT_FOUND, code::INVALID_ARGUMENT];
            if NvmlFailure::none_for(&absent, state)? == Some(1) {
                self.add_link(&mut links, link)?;
            }
        }
        Ok(links)
    }

    fn add_link(&self, links: &mut NvLinks, link: u32) -> Result<(), NvmlFailure> {
        let kind = output(0, |kind| call!(self.nvml, nvmlDeviceGetNvLinkRemoteDeviceType(self.handle, link, kind)));
        if NvmlFailure::optional(kind)? == Some(SWITCH) {
            links.to_switches += 1;
            return Ok(());
        }
        // SAFETY: a struct of integers and character arrays; zero is a value of each.
        let empty: nvmlPciInfo_t = unsafe { zeroed() };
        let end = output(empty, |pci| call!(self.nvml, nvmlDeviceGetNvLinkRemotePciInfo_v2(self.handle, link, pci)));
        links.ends.extend(NvmlFailure::optional(end)?.map(|pci| string(&pci.busId).to_lowercase()));
        Ok(())
    }

    /// The PCI path to another GPU; `None` if NVML does not report it, as in some virtual machines.
    pub fn pci_path(&self, other: &Gpu<'_>) -> Result<Option<Connection>, NvmlFailure> {
        let level =
            output(0, |level| call!(self.nvml, nvmlDeviceGetTopologyCommonAncestor(self.handle, other.handle, level)));
        // values of `nvmlGpuTopologyLevel_t`
        Ok(NvmlFailure::optional(level)?.map(|level| match level {
            0..10 => Connection::Board,
            10..20 => Connection::Switch,
            20..30 => Connection::Switches,
            30..40 => Connection::HostBridge,
            40..50 => Connection::NumaNode,
            50.. => Connection::System,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_switches_and_to_the_gpu_itself_count_together() {
        let ends = ["00000000:1b:00.0", "00000000:1b:00.0", "00000000:1c:00.0"].map(str::to_owned).to_vec();
        let links = |to_switches| NvLinks { to_switches, ends: Vec::new() };
        let own = NvLinks { to_switches: 6, ends };
        assert_eq!(own.to("00000000:1B:00.0", &links(0)), 2);
        assert_eq!(own.to("00000000:1C:00.0", &links(4)), 5, "as many as both have to switches");
        assert_eq!(own.to("00000000:1D:00.0", &links(18)), 6);
    }
}
