//! Creates MIG instances as mig-parted does: for all GPUs of the node, recreating those whose counts differ, without placements.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use gputenancy_nvml::{Gpu, InstanceProfile, Nvml, NvmlFailure, OpenError, Silent, code, find_library, full_width};

use crate::config::{ConfigError, Selected, Wanted};

/// Why partitioning ended early.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    /// The driver is missing.
    #[error("no NVML below {0}")]
    NoDriver(PathBuf),
    /// NVML cannot be loaded.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// NVML refused.
    #[error(transparent)]
    Nvml(#[from] NvmlFailure),
    /// The config does not fit the node.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The board has no such profile.
    #[error("GPU {gpu} has no profile {profile}")]
    NoProfile {
        /// Its index in PCI order.
        gpu: usize,
        /// The profile.
        profile: String,
    },
    /// No placement is free.
    #[error("GPU {gpu} has no place left for {profile}")]
    NoPlace {
        /// Its index in PCI order.
        gpu: usize,
        /// The profile.
        profile: String,
    },
    /// nvidia-smi failed.
    #[error("nvidia-smi -r: {0}")]
    Reset(String),
}

/// Does the node match the config?
pub fn is_applied(root: &Path, config: &Selected) -> Result<bool, PartitionError> {
    let nvml = open(root)?;
    let gpus = gpus(&nvml)?;
    let wanted = config.wanted(gpus.len())?;
    let shown = gpus.iter().map(shown).collect::<Result<Vec<_>, _>>()?;
    Ok(shown == wanted)
}

/// Applies the config to the node.
pub fn apply(root: &Path, config: &Selected) -> Result<(), PartitionError> {
    apply_mode(root, config)?;
    let nvml = open(root)?;
    let gpus = gpus(&nvml)?;
    for (place, (gpu, wanted)) in gpus.iter().zip(config.wanted(gpus.len())?).enumerate() {
        if wanted.mig && shown(gpu)? != wanted {
            clear(gpu)?;
            let made = create(place, gpu, &wanted);
            if made.is_err() {
                clear(gpu)?;
            }
            made?;
        }
    }
    Ok(())
}

/// When any GPU's mode is wrong, all GPUs with MIG on are cleared, and all GPUs are reset when one of them needs it.
fn apply_mode(root: &Path, config: &Selected) -> Result<(), PartitionError> {
    let mut ids = Vec::new();
    let mut pending = false;
    {
        let nvml = open(root)?;
        let gpus = gpus(&nvml)?;
        let wanted = config.wanted(gpus.len())?;
        let right = |(gpu, wanted): (&Gpu<'_>, &Wanted)| Ok::<_, NvmlFailure>(mode(gpu)? == wanted.mig);
        if gpus.iter().zip(&wanted).map(right).collect::<Result<Vec<_>, _>>()?.into_iter().all(|right| right) {
            return Ok(());
        }
        for (gpu, wanted) in gpus.iter().zip(&wanted) {
            if mode(gpu)? {
                clear(gpu)?;
            }
            gpu.set_mig_mode(wanted.mig)?;
            pending |= gpu.mig_mode()?.is_some_and(|m| m.current != m.pending);
            ids.push(gpu.pci_bus_id()?);
        }
    }
    // NVML is closed here, because an open handle counts as a client
    if pending { reset(root, &ids) } else { Ok(()) }
}

fn reset(root: &Path, ids: &[String]) -> Result<(), PartitionError> {
    let mut command = Command::new(root.join("usr/bin/nvidia-smi"));
    command.args(["-r", "-i", &ids.join(",")]);
    if let Some(folder) = find_library(root).as_deref().and_then(Path::parent) {
        command.env("LD_LIBRARY_PATH", folder);
    }
    let output = command.output().map_err(|error| PartitionError::Reset(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(PartitionError::Reset(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

fn open(root: &Path) -> Result<Nvml, PartitionError> {
    let library = find_library(root).ok_or_else(|| PartitionError::NoDriver(root.to_owned()))?;
    Ok(Nvml::open(library, Box::new(Silent))?)
}

fn gpus(nvml: &Nvml) -> Result<Vec<Gpu<'_>>, NvmlFailure> {
    let gpus = (0..nvml.gpu_count()?).map(|index| nvml.gpu(index)).collect::<Result<Vec<_>, _>>()?;
    let mut placed =
        gpus.into_iter().map(|gpu| Ok((gpu.pci_bus_id()?, gpu))).collect::<Result<Vec<_>, NvmlFailure>>()?;
    placed.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(placed.into_iter().map(|(_, gpu)| gpu).collect())
}

fn mode(gpu: &Gpu<'_>) -> Result<bool, NvmlFailure> {
    Ok(gpu.mig_mode()?.is_some_and(|m| m.current))
}

fn profiles(gpu: &Gpu<'_>) -> Result<Vec<InstanceProfile>, NvmlFailure> {
    gpu.instance_profiles(gpu.memory()?.total_mib)
}

fn shown(gpu: &Gpu<'_>) -> Result<Wanted, NvmlFailure> {
    let mut wanted = Wanted { mig: mode(gpu)?, counts: BTreeMap::new() };
    let profiles = profiles(gpu)?;
    for instance in gpu.gpu_instances(&profiles)? {
        let id = instance.info()?.profile_id;
        if let Some(profile) = profiles.iter().find(|p| p.id == id) {
            *wanted.counts.entry(profile.name.clone()).or_default() += 1;
        }
    }
    Ok(wanted)
}

fn clear(gpu: &Gpu<'_>) -> Result<(), NvmlFailure> {
    for instance in gpu.gpu_instances(&profiles(gpu)?)? {
        for compute in instance.compute_instances(&instance.compute_profiles()?)? {
            compute.destroy()?;
        }
        instance.destroy()?;
    }
    Ok(())
}

/// Largest first, each at the last free placement, unlike the planner, which prefers the first.
fn create(place: usize, gpu: &Gpu<'_>, wanted: &Wanted) -> Result<(), PartitionError> {
    let profiles = profiles(gpu)?;
    let mut order: Vec<&InstanceProfile> = Vec::new();
    for (name, count) in &wanted.counts {
        let found = profiles.iter().find(|p| p.name == *name);
        let profile = found.ok_or_else(|| PartitionError::NoProfile { gpu: place, profile: name.clone() })?;
        order.extend((0..*count).map(|_| profile));
    }
    order.sort_by_key(|p| std::cmp::Reverse(p.size));
    for profile in order {
        let mut starts = profile.starts.iter().rev();
        let instance = loop {
            let Some(start) = starts.next() else {
                return Err(PartitionError::NoPlace { gpu: place, profile: profile.name.clone() });
            };
            match gpu.create_gpu_instance(profile.id, *start, profile.size) {
                Ok(instance) => break instance,
                Err(failure) if failure.code == code::INSUFFICIENT_RESOURCES => {}
                Err(failure) => return Err(failure.into()),
            }
        };
        let compute = full_width(&instance.compute_profiles()?, profile.slices);
        let compute = compute.ok_or_else(|| PartitionError::NoProfile { gpu: place, profile: profile.name.clone() })?;
        instance.create_compute_instance(compute.id)?;
    }
    Ok(())
}
