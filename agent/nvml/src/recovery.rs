//! What the driver says must be done about a GPU, from version 570 on.

use std::mem::zeroed;

use nvml_wrapper_sys::bindings::{
    field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvmlFieldValue_t, nvmlReturn_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
};

use crate::{
    Gpu, NvmlFailure, code,
    library::{call, output},
};

/// NVML's `nvmlDeviceGpuRecoveryAction_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Nothing.
    None,
    /// Reset the GPU.
    GpuReset,
    /// Restart the node.
    NodeReboot,
    /// Stop traffic between GPUs first.
    DrainP2P,
    /// Let its programs end, then reset the GPU.
    DrainAndReset,
    /// Another one; NVML's number.
    Other(u32),
}

impl From<u32> for RecoveryAction {
    /// `NVML_GPU_RECOVERY_ACTION_*` of `nvml.h`.
    fn from(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::GpuReset,
            2 => Self::NodeReboot,
            3 => Self::DrainP2P,
            4 => Self::DrainAndReset,
            other => Self::Other(other),
        }
    }
}

impl Gpu<'_> {
    /// What must be done about the GPU. `None`: the driver does not say it.
    pub fn recovery_action(&self) -> Result<Option<RecoveryAction>, NvmlFailure> {
        // SAFETY: a struct of integers and a union of numbers; zero is a value of each.
        let empty: nvmlFieldValue_t = unsafe { zeroed() };
        let field = nvmlFieldValue_t { fieldId: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, ..empty };
        let read = output(field, |field| call!(self.nvml, nvmlDeviceGetFieldValues(self.handle, 1, field)));
        let Some(field) = NvmlFailure::optional(read)? else { return Ok(None) };
        let found = match field.nvmlReturn as nvmlReturn_t {
            code::SUCCESS => Ok(()),
            failed => Err(self.nvml.failure("nvmlDeviceGetFieldValues", failed)),
        };
        // a driver that does not know the field calls it an invalid argument
        let found = NvmlFailure::none_for(&[code::INVALID_ARGUMENT, code::NOT_SUPPORTED], found)?;
        let is_number = field.valueType == nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
        // SAFETY: NVML says that the union has this member.
        Ok(found.filter(|()| is_number).map(|()| unsafe { field.value.uiVal }.into()))
    }
}
