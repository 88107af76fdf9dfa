//! What a world starts with.

use gputenancy_crds::{Canary, DurationText, Layout, UnmanagedPods};
use gputenancy_decisions::change::{PodController, Policy};
use k8s_openapi::jiff::SignedDuration;

/// One change, the pods in its way, and what goes wrong beside crashes.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub from: Layout,
    pub to: Layout,
    /// Pods by the first slice of their device, and who replaces them.
    pub pods: Vec<(i32, PodController)>,
    /// So many evictions are refused before one is accepted.
    pub refusals: u32,
    /// So many creates are refused by NVML.
    pub failures: u32,
    /// So many canary pods fail.
    pub broken: u32,
    /// So many pods start wherever kubelet offers a device.
    pub arrivals: u32,
    pub policy: Policy,
    /// Nobody ever lets go: the old layout is where it ends.
    pub blocked: bool,
}

/// A layout by profiles and starts.
pub fn layout(instances: &[(&str, i32)]) -> Layout {
    let spec = |(profile, start): &(&str, i32)| serde_json::json!({"profile": profile, "start": start});
    let instances: Vec<_> = instances.iter().map(spec).collect();
    serde_json::from_value(serde_json::json!({"mig": !instances.is_empty(), "instances": instances})).unwrap()
}

pub fn split() -> Layout {
    layout(&[("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)])
}

pub fn halves() -> Layout {
    layout(&[("3g.40gb", 0), ("3g.40gb", 4)])
}

fn plain(name: &'static str) -> Scenario {
    Scenario {
        name,
        from: split(),
        to: halves(),
        pods: vec![(0, PodController::Replaces), (4, PodController::Replaces)],
        refusals: 0,
        failures: 0,
        broken: 0,
        arrivals: 0,
        policy: Policy::default(),
        blocked: false,
    }
}

pub fn all() -> Vec<Scenario> {
    let with_notice = Policy { notice: SignedDuration::from_secs(60), ..Policy::default() };
    let canary = Canary { image: "i".into(), command: Vec::new(), timeout: DurationText::parse("2m").unwrap() };
    let tried = Policy { canary: Some(canary), ..Policy::default() };
    let unmanaged = Policy { unmanaged_pods: UnmanagedPods::Evict, ..Policy::default() };
    vec![
        plain("one owner goes, a neighbour stays"),
        Scenario { pods: vec![], ..plain("no pod is there") },
        Scenario { policy: with_notice, arrivals: 1, ..plain("owners are notified, and a pod comes meanwhile") },
        Scenario { refusals: 2, ..plain("a budget refuses twice") },
        Scenario { failures: 1, ..plain("NVML refuses once") },
        Scenario { failures: 2, pods: vec![(0, PodController::Replaces)], ..plain("NVML refuses the old layout too") },
        Scenario { policy: tried.clone(), arrivals: 1, ..plain("a canary pod passes, and a pod waits for the device") },
        Scenario {
            policy: tried.clone(),
            broken: 1,
            pods: vec![(0, PodController::Replaces)],
            ..plain("a canary pod fails once")
        },
        Scenario {
            policy: tried,
            from: halves(),
            to: split(),
            pods: vec![],
            ..plain("one of two new instances is tried")
        },
        Scenario { to: Layout::default(), ..plain("all must go, MIG is turned off") },
        Scenario {
            from: Layout::default(),
            to: split(),
            pods: vec![(0, PodController::Replaces)],
            ..plain("MIG is turned on")
        },
        Scenario {
            pods: vec![(1, PodController::None)],
            policy: unmanaged,
            ..plain("a pod without a controller may be evicted")
        },
        Scenario {
            pods: vec![(0, PodController::Replaces), (1, PodController::None)],
            blocked: true,
            ..plain("a pod without a controller is waited for in vain")
        },
    ]
}
