//! What is known of the MPS daemons: input of the status and of the device list. Pure.

use std::collections::BTreeMap;

use gputenancy_crds::{
    condition::ConditionUpdate,
    reasons::{self, Reason},
};

use super::{share::mps_share, tenancy::is_near_limit};
use crate::device::{Device, DeviceOwner};

/// Type of the condition.
pub const MPS_READY: &str = "MpsReady";

/// The daemons, by UUID of their GPU.
pub type MpsView = BTreeMap<String, GpuMps>;

/// The daemon of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuMps {
    /// Clients at the latest count.
    pub clients: usize,
    /// Most clients that the server takes.
    pub max_clients: usize,
    /// Set while the daemon does not run although pods need it.
    pub down: Option<Down>,
}

/// A daemon that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Down {
    /// Containers that had shares of the GPU when it ended.
    pub owners: Vec<DeviceOwner>,
    /// Why it was not restarted yet.
    pub error: Option<String>,
}

impl Down {
    /// The pods that it took down, as text.
    pub fn pods(&self) -> String {
        let names: Vec<String> = self.owners.iter().map(|o| format!("{}/{}", o.namespace, o.pod)).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// The condition of the node; none without MPS shares.
pub fn condition(view: &MpsView, devices: &[Device]) -> Option<ConditionUpdate> {
    if view.is_empty() && !devices.iter().any(|device| mps_share(device).is_some()) {
        return None;
    }
    let down: Vec<String> = view.iter().filter_map(|(uuid, gpu)| Some(down_text(uuid, gpu.down.as_ref()?))).collect();
    if !down.is_empty() {
        return Some(ConditionUpdate::no(MPS_READY, reasons::MPS_DAEMON_DOWN, down.join("; ")));
    }
    let yes = |reason: Reason, message: String| Some(ConditionUpdate::yes(MPS_READY, reason, message));
    let near = view.iter().filter(|(_, gpu)| is_near_limit(gpu.clients, gpu.max_clients));
    // without the number, which would change the condition with every client
    let near: Vec<String> = near.map(|(uuid, gpu)| format!("GPU {uuid} (of {})", gpu.max_clients)).collect();
    if near.is_empty() {
        return yes(reasons::MPS_SERVING, format!("MPS daemons that run: {}", view.len()));
    }
    let remedy = "programs beyond the limit fail to start: use fewer processes per pod, or fewer shares";
    yes(
        reasons::MPS_CLIENTS_NEAR_LIMIT,
        format!("at least 90 % of the clients are used on {}: {remedy}", near.join(", ")),
    )
}

fn down_text(uuid: &str, down: &Down) -> String {
    let error = down.error.as_ref().map(|error| format!(" (last attempt: {error})")).unwrap_or_default();
    format!(
        "the MPS daemon of GPU {uuid} has ended and is being restarted{error}; its shares are withdrawn meanwhile; pods whose CUDA contexts ended with it: {}: restart those that do not recover by themselves",
        down.pods()
    )
}

/// Marks the shares of GPUs whose daemon does not run as unhealthy, so that kubelet gives them to no new pod.
pub fn mark_unhealthy(devices: &mut [Device], view: &MpsView) {
    let down = |uuid: &String| view.get(uuid).is_some_and(|gpu| gpu.down.is_some());
    for device in devices.iter_mut().filter(|device| mps_share(device).is_some() && down(&device.gpu_uuid)) {
        device.healthy = false;
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::SharingMode;

    use super::*;
    use crate::mps::share::tests::device;

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "n".into(), pod: pod.into(), container: "c".into() }
    }

    #[test]
    fn condition_names_gpu_and_pods_of_an_ended_daemon_and_its_shares_are_unhealthy() {
        let down = Down { owners: vec![owner("p"), owner("q")], error: None };
        let view: MpsView = [("GPU-a".to_owned(), GpuMps { down: Some(down), ..GpuMps::default() })].into();
        let mut devices = [SharingMode::Mps, SharingMode::TimeSlice].map(|mode| device(0, mode, None, None));
        let condition = condition(&view, &devices).unwrap();
        assert_eq!((condition.status, condition.reason), (Some(false), reasons::MPS_DAEMON_DOWN));
        assert!(condition.message.contains("GPU GPU-a") && condition.message.contains("n/p, n/q"));
        mark_unhealthy(&mut devices, &view);
        assert_eq!(devices.map(|device| device.healthy), [false, true]);
    }

    #[test]
    fn condition_exists_only_with_mps_shares_and_warns_near_the_client_limit() {
        let (shared, sliced) = (device(0, SharingMode::Mps, None, None), device(0, SharingMode::TimeSlice, None, None));
        assert_eq!(condition(&MpsView::new(), &[sliced]), None);
        let reason = |clients| {
            let gpu = GpuMps { clients, max_clients: 48, down: None };
            condition(&[("GPU-a".to_owned(), gpu)].into(), std::slice::from_ref(&shared)).map(|c| (c.status, c.reason))
        };
        assert_eq!(reason(43), Some((Some(true), reasons::MPS_SERVING)));
        assert_eq!(reason(44), Some((Some(true), reasons::MPS_CLIENTS_NEAR_LIMIT)));
    }
}
