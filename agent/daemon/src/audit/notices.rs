//! The events about shares. Pure.

use gputenancy_agent_core::audit::{Finding, Observation, Size, percent};
use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::{
    reasons::{self, Reason},
    words::counted,
};
use gputenancy_ledger::paths::USAGE;
use k8s_openapi::api::core::v1::ObjectReference;

use super::sample::OwnedShare;
use crate::{device::DeviceOwner, event};

/// The event for the team whose container uses much of its share.
pub fn memory_high(node: &str, share: &OwnedShare, seen: &Observation, threshold: u64) -> Notice {
    let (used, all) = (mib(seen.counted.saturating_sub(seen.context)), mib(seen.visible));
    let text = format!(
        "container {} uses {used} of {all} MiB ({} %) of its share {} of node {node}, at least {threshold} %: at 100 % its allocations fail; let it use less memory, or choose a larger share",
        share.owner.container,
        percent(seen),
        share.device.id,
    );
    notice(event::pod(&share.owner), reasons::SHARE_MEMORY_HIGH, text)
}

/// The event for the team whose kernels do not end.
pub fn endless(node: &str, share: &OwnedShare, count: u64) -> Notice {
    let text = format!(
        "container {} waited {count} times for more than two seconds for its kernels or graphs on share {} of node {node}: they cannot be stopped, and pods on other shares of GPU {} may have waited, too; make them shorter, or use a MIG instance or a whole GPU",
        share.owner.container, share.device.id, share.device.gpu_uuid,
    );
    notice(event::pod(&share.owner), reasons::KERNEL_UNCONTROLLABLE, text)
}

/// The event for the team whose share has another size, because its profile has.
pub fn resized(node: &str, share: &OwnedShare, before: Size) -> Notice {
    let size = |Size { memory, compute }: Size| match compute {
        Some(percent) => format!("{} MiB and {percent} % of the GPU's time", mib(memory)),
        None => format!("{} MiB", mib(memory)),
    };
    let text = format!(
        "container {} has {} on share {} ({}) of node {node}, before {}: device.fraction of its GpuProfile changed; running programs keep the memory that they hold; if memory changed, restart programs that read it at their start",
        share.owner.container,
        size(Size { memory: share.visible, compute: share.compute }),
        share.device.id,
        share.device.resource,
        size(before),
    );
    Notice { event_type: EventType::Normal, ..notice(event::pod(&share.owner), reasons::SHARE_RESIZED, text) }
}

/// The events about a bypass: on the pod, if possible by its UID, and on the `GpuNode`.
pub fn bypassed(
    node: &str,
    share: &OwnedShare,
    uid: Option<&str>,
    finding: &Finding,
    without_cuda: bool,
) -> [Notice; 2] {
    let DeviceOwner { namespace, pod, container } = &share.owner;
    let (what, of_pod, of_node) = match (finding.broken, without_cuda) {
        (true, _) => damaged(node, share, finding),
        (false, true) => uncounted(node, share, finding),
        (false, false) => exceeded(node, share, finding),
    };
    let mut regarding = event::pod(&share.owner);
    regarding.uid = uid.map(str::to_owned);
    let of_pod = format!("container {container}: {what}; {of_pod}, and restart the pod");
    let of_node = format!(
        "container {container} of pod {namespace}/{pod}: {what}; {of_node} delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool of the node"
    );
    [
        notice(regarding, reasons::MEMORY_LIMIT_BYPASSED, of_pod),
        notice(event::gpu_node(node), reasons::MEMORY_LIMIT_BYPASSED, of_node),
    ]
}

/// What happened, and the beginnings of the remedies for team and administrator: the processes use more than is counted or permitted.
fn exceeded(node: &str, share: &OwnedShare, finding: &Finding) -> (String, &'static str, &'static str) {
    let Finding { used, counted: in_ledger, limit, processes, .. } = finding;
    let what = format!(
        "its {} {} {} MiB of GPU {} of node {node}; share {} is limited to {} MiB (with one CUDA context) and counts {} MiB: a program loads another libcuda.so.1 than the container has, or the container started before memory was limited",
        counted(*processes, "process"),
        if *processes == 1 { "uses" } else { "use" },
        mib(*used),
        share.device.gpu_uuid,
        share.device.id,
        mib(*limit),
        mib(*in_ledger),
    );
    (what, "load the library by its name libcuda.so.1", "correct the image or its LD_LIBRARY_PATH and")
}

/// The same for memory that CUDA has not allocated.
fn uncounted(node: &str, share: &OwnedShare, finding: &Finding) -> (String, &'static str, &'static str) {
    let what = format!(
        "its {} with {} MiB of GPU {} of node {node} {} not loaded libcuda.so: memory of graphics or video, or of a copy of the library under another name, is not limited; share {} has {} MiB (with one CUDA context)",
        counted(finding.processes, "process"),
        mib(finding.used),
        share.device.gpu_uuid,
        if finding.processes == 1 { "has" } else { "have" },
        share.device.id,
        mib(finding.limit),
    );
    (
        what,
        "use less of such memory, or ask for a MIG instance or a whole GPU",
        "give the team a profile with MIG or a whole GPU and",
    )
}

/// The same for a damaged ledger.
fn damaged(node: &str, share: &OwnedShare, finding: &Finding) -> (String, &'static str, &'static str) {
    let what = format!(
        "a program damaged {USAGE}, the file that counts the memory of share {} of node {node}; the agent has repaired it; by NVML the container has {} with {} MiB, the limit is {} MiB (with one CUDA context)",
        share.device.id,
        counted(finding.processes, "process"),
        mib(finding.used),
        mib(finding.limit),
    );
    (what, "let no program write to that file", "find the program and")
}

fn notice(regarding: ObjectReference, reason: Reason, note: String) -> Notice {
    Notice { regarding, event_type: EventType::Warning, reason, action: "Report".to_owned(), note }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::SharingMode;

    use super::*;
    use crate::{enforcement::ShareFiles, mps::share::tests::device};

    const MIB: u64 = 1 << 20;

    fn share() -> OwnedShare {
        OwnedShare {
            device: device(3, SharingMode::TimeSlice, None, None),
            owner: DeviceOwner { namespace: "team-a".into(), pod: "train-0".into(), container: "main".into() },
            files: ShareFiles { limits: "limits".into(), usage: "usage".into() },
            limit: 20_352 * MIB,
            visible: 19_840 * MIB,
            compute: None,
            context: 512 * MIB,
        }
    }

    #[test]
    fn event_about_memory_has_the_numbers_of_the_share_and_a_remedy() {
        let OwnedShare { limit, visible, context, .. } = share();
        let seen = Observation { limit, visible, context, counted: 17_376 * MIB, ..Observation::default() };
        let found = memory_high("gpu-1", &share(), &seen, 80);
        assert_eq!((found.reason, found.regarding.name.as_deref()), (reasons::SHARE_MEMORY_HIGH, Some("train-0")));
        insta::assert_snapshot!(found.note, @"container main uses 16864 of 19840 MiB (85 %) of its share GPU-a::3 of node gpu-1, at least 80 %: at 100 % its allocations fail; let it use less memory, or choose a larger share");
    }

    #[test]
    fn event_about_kernels_that_do_not_end_has_a_remedy() {
        let found = endless("gpu-1", &share(), 2);
        insta::assert_snapshot!(found.note, @"container main waited 2 times for more than two seconds for its kernels or graphs on share GPU-a::3 of node gpu-1: they cannot be stopped, and pods on other shares of GPU GPU-a may have waited, too; make them shorter, or use a MIG instance or a whole GPU");
    }

    #[test]
    fn event_about_another_size_has_both() {
        let before = Size { memory: 20_480 * MIB, compute: None };
        let found = resized("gpu-1", &share(), before);
        assert_eq!((found.reason, found.event_type), (reasons::SHARE_RESIZED, EventType::Normal));
        insta::assert_snapshot!(found.note, @"container main has 19840 MiB on share GPU-a::3 (gputenancy.io/mps) of node gpu-1, before 20480 MiB: device.fraction of its GpuProfile changed; running programs keep the memory that they hold; if memory changed, restart programs that read it at their start");
        let found =
            resized("gpu-1", &OwnedShare { compute: Some(30), ..share() }, Size { compute: Some(25), ..before });
        assert!(found.note.starts_with("container main has 19840 MiB and 30 % of the GPU's time on share GPU-a::3"));
        assert!(found.note.contains(", before 20480 MiB and 25 % of the GPU's time: "), "{}", found.note);
    }

    #[test]
    fn events_about_a_bypass_name_container_numbers_and_remedy_and_the_team_reads_of_no_other_pod() {
        let finding = Finding { used: 30_300 * MIB, counted: 0, limit: 20_352 * MIB, processes: 1, broken: false };
        let [of_pod, of_node] = bypassed("gpu-1", &share(), Some("uid"), &finding, false);
        assert_eq!(
            (of_pod.regarding.uid.as_deref(), of_node.regarding.kind.as_deref()),
            (Some("uid"), Some("GpuNode"))
        );
        insta::assert_snapshot!(of_pod.note, @"container main: its 1 process uses 30300 MiB of GPU GPU-a of node gpu-1; share GPU-a::3 is limited to 20352 MiB (with one CUDA context) and counts 0 MiB: a program loads another libcuda.so.1 than the container has, or the container started before memory was limited; load the library by its name libcuda.so.1, and restart the pod");
        insta::assert_snapshot!(of_node.note, @"container main of pod team-a/train-0: its 1 process uses 30300 MiB of GPU GPU-a of node gpu-1; share GPU-a::3 is limited to 20352 MiB (with one CUDA context) and counts 0 MiB: a program loads another libcuda.so.1 than the container has, or the container started before memory was limited; correct the image or its LD_LIBRARY_PATH and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool of the node");
    }

    #[test]
    fn event_about_memory_without_cuda_names_graphics_and_another_profile() {
        let finding = Finding { used: 30_300 * MIB, counted: 0, limit: 20_352 * MIB, processes: 2, broken: false };
        let [of_pod, of_node] = bypassed("gpu-1", &share(), Some("uid"), &finding, true);
        insta::assert_snapshot!(of_pod.note, @"container main: its 2 processes with 30300 MiB of GPU GPU-a of node gpu-1 have not loaded libcuda.so: memory of graphics or video, or of a copy of the library under another name, is not limited; share GPU-a::3 has 20352 MiB (with one CUDA context); use less of such memory, or ask for a MIG instance or a whole GPU, and restart the pod");
        insta::assert_snapshot!(of_node.note, @"container main of pod team-a/train-0: its 2 processes with 30300 MiB of GPU GPU-a of node gpu-1 have not loaded libcuda.so: memory of graphics or video, or of a copy of the library under another name, is not limited; share GPU-a::3 has 20352 MiB (with one CUDA context); give the team a profile with MIG or a whole GPU and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool of the node");
    }

    #[test]
    fn events_about_a_damaged_ledger_name_the_file() {
        let finding = Finding { used: 300 * MIB, counted: 0, limit: 20_352 * MIB, processes: 1, broken: true };
        let [of_pod, of_node] = bypassed("gpu-1", &share(), Some("uid"), &finding, false);
        insta::assert_snapshot!(of_pod.note, @"container main: a program damaged /run/gputenancy/share/usage, the file that counts the memory of share GPU-a::3 of node gpu-1; the agent has repaired it; by NVML the container has 1 process with 300 MiB, the limit is 20352 MiB (with one CUDA context); let no program write to that file, and restart the pod");
        insta::assert_snapshot!(of_node.note, @"container main of pod team-a/train-0: a program damaged /run/gputenancy/share/usage, the file that counts the memory of share GPU-a::3 of node gpu-1; the agent has repaired it; by NVML the container has 1 process with 300 MiB, the limit is 20352 MiB (with one CUDA context); find the program and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool of the node");
    }
}
