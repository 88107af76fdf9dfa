//! The events about containers that the library cannot serve. Pure.

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::{
    Isolation, Sandbox,
    reasons::{self, Reason},
};

use crate::{
    device::{DeviceId, DeviceOwner},
    event,
};

/// The event for the team whose pod runs in a sandbox.
pub fn of_sandbox(
    node: &str,
    device: &DeviceId,
    owner: &DeviceOwner,
    Sandbox { handler, enforcement }: &Sandbox,
) -> Notice {
    let outcome = match enforcement {
        Isolation::Driver => "the driver limits its memory, and its programs see the whole GPU",
        _ => "nothing limits its memory and compute, and its programs see the whole GPU",
    };
    let text = format!(
        "container {} on share {device} of node {node} runs in a sandbox (RuntimeClass with handler {handler}), which does not get the library that limits memory and compute: {outcome}; run the pod without the RuntimeClass, or use a MIG instance or a whole GPU",
        owner.container
    );
    notice(owner, reasons::SANDBOX_NOT_LIMITED, text)
}

/// The event for the team whose image has musl.
pub fn of_musl(node: &str, device: &DeviceId, owner: &DeviceOwner) -> Notice {
    let text = format!(
        "container {} on share {device} of node {node} has musl and no glibc: CUDA and the library that limits memory cannot be loaded there, so that its programs do not find the GPU; use an image with glibc 2.17 or newer, such as Debian, Ubuntu or UBI",
        owner.container
    );
    notice(owner, reasons::IMAGE_WITHOUT_GLIBC, text)
}

fn notice(owner: &DeviceOwner, reason: Reason, note: String) -> Notice {
    let action = "Report".to_owned();
    Notice { regarding: event::pod(owner), event_type: EventType::Warning, reason, action, note }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_container_cause_and_remedy() {
        let owner = DeviceOwner { namespace: "team-a".into(), pod: "train-0".into(), container: "main".into() };
        let device = DeviceId::share("GPU-a", 3);
        let sandbox = |enforcement| Sandbox { handler: "runsc".into(), enforcement };
        let found = of_sandbox("gpu-1", &device, &owner, &sandbox(Isolation::None));
        assert_eq!((found.reason, found.regarding.name.as_deref()), (reasons::SANDBOX_NOT_LIMITED, Some("train-0")));
        insta::assert_snapshot!(found.note, @"container main on share GPU-a::3 of node gpu-1 runs in a sandbox (RuntimeClass with handler runsc), which does not get the library that limits memory and compute: nothing limits its memory and compute, and its programs see the whole GPU; run the pod without the RuntimeClass, or use a MIG instance or a whole GPU");
        let found = of_sandbox("gpu-1", &device, &owner, &sandbox(Isolation::Driver));
        assert!(found.note.contains("the driver limits its memory, and"), "{}", found.note);
        let found = of_musl("gpu-1", &device, &owner);
        insta::assert_snapshot!(found.note, @"container main on share GPU-a::3 of node gpu-1 has musl and no glibc: CUDA and the library that limits memory cannot be loaded there, so that its programs do not find the GPU; use an image with glibc 2.17 or newer, such as Debian, Ubuntu or UBI");
    }
}
