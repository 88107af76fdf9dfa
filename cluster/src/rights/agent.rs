//! The rights that the agent needs. A test compares them with its role in the chart.

use gputenancy_crds::GROUP;

use super::table::{self, Line, Right, Setting};

/// API group of this project.
const OURS: &str = GROUP;

/// One line for each rule. RBAC cannot say "its own node"; the chart's admission policies do.
pub const TABLE: &[Line] = &[
    Line::new(&["list", "watch"], OURS, "gpunodes", "the layout of its node"),
    Line::new(&["create"], OURS, "gpunodes", "the GpuNode of its node"),
    Line::new(&["patch"], OURS, "gpunodes/status", "reporting what NVML shows"),
    Line::new(&["get"], "", "nodes", "deleting the GpuNode with its Node; its condition of an earlier run"),
    Line::new(&["watch"], "", "nodes", "the Node's count of our devices"),
    Line::new(
        &["patch"],
        "",
        "nodes/status",
        "lowering that count before devices are removed, as kubelet lags up to ten seconds; the condition gputenancy.io/DevicesReady",
    ),
    Line::new(&["watch"], "", "pods", "pods that are being bound to its node, or that are deleted and do not end")
        .only_for(
            "pods that are being bound while devices are withdrawn, containers with hidden variables, and containers of deleted pods",
        ),
    Line::new(&["list", "watch"], "node.k8s.io", "runtimeclasses", "which pods run in a sandbox, such as gVisor")
        .only_for("sandboxes whose RuntimeClass has another name than its handler"),
    Line::new(&["get"], OURS, "gpugrants", "whether a container with hidden variables, or of a deleted pod, is a tenant's")
        .only_for("containers with hidden variables, and containers of deleted pods"),
    Line::new(&["create"], "events.k8s.io", "events", "why a container was stopped").only_for("events"),
];

/// All rights of the agent.
pub fn rights() -> Vec<Right> {
    table::rights(TABLE, &Setting { role: "gputenancy-agent", ..Setting::default() })
}
