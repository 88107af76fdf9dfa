//! What the API server accepts and the operator refuses: windows that never open, and MIG profiles that no board has.

use gputenancy_engine::change::Windows;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use crate::world::World;

/// Names of the MIG profiles of all boards up to the driver branch 595, in NVIDIA's MIG User Guide and NVML.
const MIG_PROFILES: &[&str] = &[
    "1g.10gb", "1g.12gb", "1g.16gb", "1g.18gb", "1g.20gb", "1g.23gb", "1g.24gb", "1g.34gb", "1g.35gb", "1g.36gb",
    "1g.45gb", "1g.47gb", "1g.5gb", "1g.67gb", "1g.6gb", "1g.70gb", "1g.8gb", "2g.10gb", "2g.12gb", "2g.16gb",
    "2g.20gb", "2g.24gb", "2g.32gb", "2g.35gb", "2g.36gb", "2g.45gb", "2g.47gb", "2g.48gb", "2g.67gb", "2g.70gb",
    "3g.135gb", "3g.139gb", "3g.20gb", "3g.32gb", "3g.39gb", "3g.40gb", "3g.47gb", "3g.48gb", "3g.71gb", "3g.72gb",
    "3g.90gb", "3g.93gb", "3g.95gb", "4g.135gb", "4g.139gb", "4g.20gb", "4g.24gb", "4g.32gb", "4g.40gb", "4g.47gb",
    "4g.48gb", "4g.71gb", "4g.72gb", "4g.90gb", "4g.93gb", "4g.95gb", "4g.96gb", "7g.141gb", "7g.144gb", "7g.180gb",
    "7g.186gb", "7g.189gb", "7g.269gb", "7g.278gb", "7g.40gb", "7g.64gb", "7g.79gb", "7g.80gb", "7g.94gb", "7g.96gb",
];

/// Kind, name, pointer and message of each.
pub(super) fn refused(world: &World) -> Vec<(&'static str, String, String, String)> {
    let windows = world.fleet.pools.iter().flat_map(|pool| {
        let windows = pool.spec.disruption.windows.iter().enumerate();
        windows.filter_map(move |(index, window)| {
            let error = Windows::read(std::slice::from_ref(window), Timestamp::UNIX_EPOCH).err()?.to_string();
            // of a list with this one window
            let (field, message) = error.split_once(": ")?;
            let field = field.rsplit('.').next().unwrap_or_default();
            let pointer = format!("/spec/disruption/windows/{index}/{field}");
            Some(("GpuPool", pool.name_any(), pointer, message.to_owned()))
        })
    });
    let profiles = world.fleet.profiles.iter().filter_map(|profile| {
        let device = &profile.spec.device;
        let sliced = || Some(&device.time_slice.as_ref()?.of.as_ref()?.mig);
        let whole = device.mig.as_ref().map(|mig| (mig, "/spec/device/mig/profile"));
        let (mig, pointer) = whole.or_else(|| Some((sliced()?, "/spec/device/timeSlice/of/mig/profile")))?;
        let name = mig.profile.as_ref().filter(|name| !is_known(name))?;
        Some(("GpuProfile", profile.name_any(), pointer.to_owned(), unknown(name)))
    });
    windows.chain(profiles).collect()
}

/// Whether a board has it, without regard to attributes such as `+me`.
fn is_known(name: &str) -> bool {
    MIG_PROFILES.contains(&name.split(['+', '-']).next().unwrap_or_default())
}

fn unknown(name: &str) -> String {
    let slices = name.split('.').next().unwrap_or_default();
    let same = MIG_PROFILES.iter().filter(|known| known.starts_with(&format!("{slices}."))).copied();
    let same = same.collect::<Vec<_>>().join(", ");
    let same = if same.is_empty() { same } else { format!("one of {same}; or ") };
    format!(
        "no board that is known to this version has {name}: write {same}slices and memory instead of a name, which also fits newer boards"
    )
}
