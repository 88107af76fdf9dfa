//! Executes operations: each is one NVML call or one reset, and fails if a process would lose its instance.

pub use gputenancy_agent_core::gpu::operation::{Operation, OperationError, RESET_CALL};
use gputenancy_nvml::{Activation, Gpu, GpuInstance, Nvml, NvmlFailure, code, full_width};

use super::{
    driver::Session,
    processes::{cap_minors::CapMinors, device_files::holders_of},
};

/// Executes an operation other than [`Operation::Reset`], which needs NVML closed.
pub(super) fn execute(session: Session<'_>, uuid: &str, operation: &Operation) -> Result<(), OperationError> {
    let gpu = find(session.nvml, uuid)?;
    let instance = |gi| -> Result<GpuInstance<'_>, OperationError> {
        gpu.gpu_instance(gi)?.ok_or_else(|| gone("GPU instance", gi))
    };
    match *operation {
        Operation::SetMode { on } => {
            if let Activation::Pending(reason) = gpu.set_mig_mode(on)? {
                tracing::info!(gpu = uuid, %reason, "MIG mode is pending");
            }
        }
        Operation::Reset { .. } => {}
        Operation::DestroyCompute { gi, ci } => {
            let instance = instance(gi)?;
            refuse_if_used(&gpu, session, &instance, gi)?;
            instance.compute_instance(ci)?.ok_or_else(|| gone("compute instance", ci))?.destroy()?;
        }
        Operation::DestroyInstance { gi } => {
            let instance = instance(gi)?;
            refuse_if_used(&gpu, session, &instance, gi)?;
            instance.destroy()?;
        }
        Operation::CreateInstance { profile_id, start, size } => {
            gpu.create_gpu_instance(profile_id, start, size)?;
        }
        Operation::CreateCompute { gi, slices } => {
            let instance = instance(gi)?;
            let profile = full_width(&instance.compute_profiles()?, slices).ok_or_else(|| NvmlFailure {
                call: "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                code: code::NOT_FOUND,
                message: format!("no compute profile of {slices} slices"),
            })?;
            instance.create_compute_instance(profile.id)?;
        }
        Operation::SetComputeMode { mode } => {
            if gpu.compute_mode()? != mode {
                gpu.set_compute_mode(mode)?;
            }
        }
    }
    Ok(())
}

fn gone(what: &str, id: u32) -> OperationError {
    OperationError::Gone(format!("{what} {id}"))
}

fn find<'n>(nvml: &'n Nvml, uuid: &str) -> Result<Gpu<'n>, OperationError> {
    for index in 0..nvml.gpu_count()? {
        // a lost GPU must not hide the others
        let Ok(gpu) = nvml.gpu(index) else { continue };
        if gpu.uuid().is_ok_and(|found| found == uuid) {
            return Ok(gpu);
        }
    }
    Err(OperationError::Gone(format!("GPU {uuid}")))
}

/// The check right before a destroy: NVML's processes of the GPU and of its MIG devices, and open capability files.
fn refuse_if_used(
    gpu: &Gpu<'_>,
    session: Session<'_>,
    instance: &GpuInstance<'_>,
    gi: u32,
) -> Result<(), OperationError> {
    let mut pids: Vec<u32> = gpu.processes()?.iter().filter(|p| p.gi == Some(gi)).map(|p| p.pid).collect();
    let proc_root = &session.paths.proc_root;
    let cap_minors = CapMinors::read(proc_root, &session.driver_root.local);
    let gpu_minor = gpu.minor()?;
    let mut files = vec![cap_minors.minor(gpu_minor, gi, None)];
    for compute in instance.compute_instances(&instance.compute_profiles()?)? {
        let info = compute.info()?;
        files.push(cap_minors.minor(gpu_minor, gi, Some(info.id)));
        if let Some(device) = compute.mig_device(gi, &info)? {
            pids.extend(device.processes()?.iter().map(|process| process.pid));
        }
    }
    pids.extend(holders_of(proc_root, &files));
    pids.sort_unstable();
    pids.dedup();
    if pids.is_empty() { Ok(()) } else { Err(OperationError::InUse { pids }) }
}
