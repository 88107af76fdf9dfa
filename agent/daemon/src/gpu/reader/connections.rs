//! Reads how the GPUs are connected: in the first full scans, because links come up after the driver, and when GPUs come, go or change their MIG mode.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_nvml::{Connection, Nvml, NvmlFailure};

use crate::gpu::inventory::{Connections, ObservedGpu, Scan};

/// Full scans that read the connections again, half a minute apart: links are trained, and the fabric manager is started, within minutes.
const REPEATED: u32 = 10;

/// The connections that were read last.
#[derive(Default)]
pub(super) struct Topology {
    /// How often they were read among these GPUs.
    reads: u32,
    /// The GPUs among which they were read: index, UUID and PCI address.
    gpus: Vec<(u32, String, String)>,
    connections: Arc<Connections>,
}

impl Topology {
    /// The connections between these GPUs. A GPU with MIG mode has none, and no pod gets it with another one.
    pub(super) fn of(&mut self, nvml: &Nvml, gpus: &BTreeMap<u32, ObservedGpu>, scan: Scan) -> Arc<Connections> {
        let whole = gpus.values().filter(|gpu| !gpu.mig_enabled() && gpu.failure.is_none());
        let whole: Vec<_> = whole.map(|gpu| (gpu.index, gpu.uuid.clone(), gpu.pci_bus_id.clone())).collect();
        if whole != self.gpus {
            *self = Self { gpus: whole, ..Self::default() };
        } else if scan == Scan::Quick || self.reads >= REPEATED {
            return self.connections.clone();
        }
        match read(nvml, &self.gpus) {
            Ok(read) if read == *self.connections => self.reads += 1,
            Ok(read) => (self.reads, self.connections) = (self.reads + 1, Arc::new(read)),
            // it only makes one choice among free GPUs better than another; the next full scan tries again
            Err(failure) => tracing::warn!(%failure, "connections between GPUs are not known"),
        }
        self.connections.clone()
    }
}

fn read(nvml: &Nvml, gpus: &[(u32, String, String)]) -> Result<Connections, NvmlFailure> {
    let mut connections = Connections::default();
    if gpus.len() < 2 {
        return Ok(connections);
    }
    let opened = gpus.iter().map(|(index, uuid, bus)| {
        let gpu = nvml.gpu(*index)?;
        Ok((gpu, gpu.nvlinks()?, uuid, bus))
    });
    let opened = opened.collect::<Result<Vec<_>, NvmlFailure>>()?;
    for (at, (gpu, links, uuid, _)) in opened.iter().enumerate() {
        for (other, their_links, their_uuid, bus) in opened.iter().skip(at + 1) {
            let path = match links.to(bus, their_links) {
                0 => gpu.pci_path(other)?,
                links => Some(Connection::NvLink(links)),
            };
            if let Some(path) = path {
                connections.insert(uuid, their_uuid, path);
            }
        }
    }
    Ok(connections)
}
