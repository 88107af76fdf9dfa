//! The licence of a vGPU, which its driver fetches from NVIDIA's licence server.

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGridLicensableFeature_t, nvmlGridLicensableFeatures_t, nvmlGridLicenseExpiry_t,
    nvmlGridLicenseFeatureCode_t_NVML_GRID_LICENSE_FEATURE_CODE_COMPUTE as COMPUTE,
};
use silicon::{Code, Virtualization};

use crate::call::{
    nvml,
    out::{field, put},
};

/// `NVML_GRID_LICENSE_EXPIRY_PERMANENT`.
const PERMANENT: u8 = 4;

nvml! {
    fn nvmlDeviceGetGridLicensableFeatures_v4[device](
        ctx, device: nvmlDevice_t, features: *mut nvmlGridLicensableFeatures_t,
    ) {
        ctx.gpu(device)?;
        if ctx.machine.virtualization != Virtualization::Guest {
            return Err(Code::NOT_SUPPORTED);
        }
        let expiry = |status| nvmlGridLicenseExpiry_t { year: 0, month: 0, day: 0, hour: 0, min: 0, sec: 0, status };
        let licensed = !ctx.machine.unlicensed;
        let compute = nvmlGridLicensableFeature_t {
            featureCode: COMPUTE,
            featureState: licensed.into(),
            licenseInfo: field(if licensed { "Licensed" } else { "Unlicensed" }),
            productName: field("NVIDIA Virtual Compute Server"),
            featureEnabled: 1,
            licenseExpiry: expiry(if licensed { PERMANENT } else { 0 }),
        };
        let none = nvmlGridLicensableFeature_t {
            featureCode: 0,
            featureState: 0,
            licenseInfo: field(""),
            productName: field(""),
            featureEnabled: 0,
            licenseExpiry: expiry(0),
        };
        put(features, nvmlGridLicensableFeatures_t {
            isGridLicenseSupported: 1,
            licensableFeaturesCount: 1,
            gridLicensableFeatures: [compute, none, none],
        })
    }
}
