//! Identities that real boards derive from hardware: UUIDs, bus addresses, capability minors.

use sha2::{Digest, Sha256};

/// UUID of a GPU: the same for a node and index at every boot.
pub fn gpu_uuid(node: &str, index: u32) -> String {
    format!("GPU-{}", uuid(&format!("gpu/{node}/{index}")))
}

/// UUID of a MIG device: the same whenever the same placement is partitioned again on the same GPU.
pub fn mig_uuid(gpu_uuid: &str, gi: u32, ci_start: u32, ci_size: u32) -> String {
    format!("MIG-{}", uuid(&format!("mig/{gpu_uuid}/{gi}/{ci_start}:{ci_size}")))
}

/// PCI bus address in NVML's long form.
pub fn pci_bus_id(index: u32) -> String {
    format!("00000000:{:02X}:00.0", pci_bus(index))
}

/// PCI bus number of a GPU.
pub fn pci_bus(index: u32) -> u32 {
    0x07 + 8 * index
}

/// Minor of `/dev/nvidia-caps/nvidia-capN` for a GPU instance.
pub fn gi_minor(gpu: u32, gi: u32) -> u32 {
    3 + 135 * gpu + 9 * gi
}

/// Minor of `/dev/nvidia-caps/nvidia-capN` for a compute instance.
pub fn ci_minor(gpu: u32, gi: u32, ci: u32) -> u32 {
    gi_minor(gpu, gi) + 1 + ci
}

/// A name-based UUID (version 8: an own hash).
fn uuid(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    let mut bytes = [0u8; 16];
    bytes.iter_mut().zip(digest.iter()).for_each(|(b, d)| *b = *d);
    let hex: String = bytes
        .iter()
        .enumerate()
        .map(|(i, b)| match i {
            6 => format!("{:02x}", (b & 0x0f) | 0x80),
            8 => format!("{:02x}", (b & 0x3f) | 0x80),
            _ => format!("{b:02x}"),
        })
        .collect();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
