"""The board of changes and incidents."""

import json

from panels import (
    BOARD,
    IN_POOL,
    POOL,
    board,
    boards,
    events,
    leader,
    lines,
    of_board,
    query_variable,
    selector,
    stat,
    table,
    total,
    zero_with_leader,
)


def incidents():
    node = query_variable("node", "Node", 'label_values(gputenancy_device_info{pool=~"$pool"}, node)', description="Node with GPUs")
    on_node = 'node=~"$node"'
    found = lambda metric, by, *matchers: f"sum by ({by}) ({events(selector(metric, *matchers), '$__rate_interval')})"
    in_range = lambda metric, by, *matchers: f"sum by ({by}) ({events(selector(metric, *matchers), '$__range')}) > 0"
    xids = f"({in_range('gputenancy_gpu_xid_errors_total', 'uuid', on_node)})"
    failed = f"max by (state) ({selector('gputenancy_operator_gpu_changes', 'state=~' + json.dumps('Stuck|RolledBack'))})"
    return board(
        "incidents",
        "changes and incidents",
        "Changes of layouts in progress, faults of GPUs, and what the programs cannot do.",
        [POOL, node],
        [
            (
                "Now",
                [
                    stat(
                        "GPUs in change",
                        "GPUs of the selected pools with a change of layout in progress.",
                        "short",
                        total(selector("gputenancy_pool_changing_gpus", IN_POOL), "pool"),
                    ),
                    stat(
                        "Failed changes",
                        "GPUs in the phases Stuck and RolledBack, in all pools. RolledBack GPUs serve their earlier layout.",
                        "short",
                        zero_with_leader(f"sum({failed})"),
                        red=1,
                    ),
                    stat(
                        "Silent agents",
                        "Nodes with an agent that has not reported for a minute. Their devices are unknown, not free.",
                        "short",
                        zero_with_leader(total(selector("gputenancy_operator_silent_agents", IN_POOL), "pool")),
                        red=1,
                    ),
                    stat(
                        "Conflicting owners",
                        "Nodes with GPUs that another component partitions or shares. Nothing is changed there.",
                        "short",
                        zero_with_leader(total("gputenancy_operator_foreign_partitioners", "by")),
                        red=1,
                    ),
                    stat(
                        "Unhealthy devices",
                        "Devices that agents have marked unhealthy on the selected nodes. They get no new pods.",
                        "short",
                        f"sum(max by (node, resource) ({selector('gputenancy_agent_devices', on_node, 'state=' + json.dumps('unhealthy'))})) or 0 * sum({selector('gputenancy_agent_devices', on_node)})",
                        red=1,
                    ),
                    stat(
                        "Cordoned devices",
                        "Devices that are withdrawn for a change, or because of a process or memory of another pod. Not a fault by itself.",
                        "short",
                        f"sum(max by (node, resource) ({selector('gputenancy_agent_devices', on_node, 'state=' + json.dumps('cordoned'))})) or 0 * sum({selector('gputenancy_agent_devices', on_node)})",
                    ),
                    stat(
                        "Tenants not ready",
                        "Tenants with a condition Ready that is not True. With more than 1,000 tenants at most 1,000 of these are counted.",
                        "short",
                        zero_with_leader(f"count({leader('gputenancy_tenant_not_ready', 'tenant')})"),
                        red=1,
                    ),
                    stat(
                        "Missing rights",
                        "Rights that the operator or an agent needs and does not have. The feature that needs them does not work.",
                        "short",
                        zero_with_leader(
                            'sum(max by (verb, resource, feature) ({__name__=~"gputenancy_operator_missing_rights|gputenancy_agent_missing_rights"}))'
                        ),
                        red=1,
                    ),
                ],
            ),
            (
                "Changes",
                [
                    lines(
                        "Changes by phase",
                        "GPUs with a change, by phase, in all pools. Evicting and Idle wait for pods and processes to end; a phase that does not fall"
                        " points to what it waits for.",
                        "short",
                        [(leader("gputenancy_operator_gpu_changes", "state"), "{{state}}")],
                        stack=True,
                        step=True,
                    ),
                    lines(
                        "GPUs in change by pool",
                        "GPUs with a change in progress, by pool. Failed changes are not in it.",
                        "short",
                        [(leader(selector("gputenancy_pool_changing_gpus", IN_POOL), "pool"), "{{pool}}")],
                        step=True,
                    ),
                    lines(
                        "Operations that partition",
                        "Operations on GPU and compute instances by step and outcome, in the time of each point. A failed operation is retried or"
                        " rolled back.",
                        "short",
                        [(found("gputenancy_agent_partition_operations_total", "step, outcome", on_node), "{{step}} {{outcome}}")],
                        empty="none",
                    ),
                    lines(
                        "Canary verifications",
                        "Canary verifications by outcome, in the time of each point. A failed one keeps the new device from tenants.",
                        "short",
                        [(found("gputenancy_operator_canaries_total", "state"), "{{state}}")],
                        empty="none",
                    ),
                    lines(
                        "Rollouts, marks and flapping",
                        "Pools with a stopped rollout, nodes that others have marked, and guarantees that flap, by pool. Each delays"
                        " changes; none is a fault of a GPU.",
                        "short",
                        [
                            (leader(selector("gputenancy_operator_stopped_rollouts", IN_POOL), "pool"), "{{pool}} stopped rollout"),
                            (leader(selector("gputenancy_operator_marked_nodes", IN_POOL), "pool"), "{{pool}} marked nodes"),
                            (leader(selector("gputenancy_operator_flapping_guarantees", IN_POOL), "pool"), "{{pool}} flapping guarantees"),
                        ],
                        step=True,
                    ),
                    lines(
                        "Stranded slices",
                        "Free slices that no profile of the pool can use. A rise after a change shows what its layout costs.",
                        "short",
                        [(leader(selector("gputenancy_operator_stranded_slices", IN_POOL), "pool, kind"), "{{pool}} {{kind}}")],
                        step=True,
                    ),
                    table(
                        "Objects that are not ready",
                        "Pools and tenants with a condition Ready that is not True, with the reason. Empty: all are ready, or no operator leads.",
                        [
                            (
                                'max by (tenant, pool, reason) ({__name__=~"gputenancy_pool_not_ready|gputenancy_tenant_not_ready"})',
                                "not ready",
                                "none",
                            )
                        ],
                        12,
                        8,
                        labels=[("pool", "pool"), ("tenant", "tenant"), ("reason", "reason")],
                        empty="",
                    ),
                    lines(
                        "Silent agents",
                        "Nodes with an agent that has not reported for a minute, by pool. After a change of leader the number is missing for up to a"
                        " minute.",
                        "short",
                        [(leader(selector("gputenancy_operator_silent_agents", IN_POOL), "pool"), "{{pool}}")],
                        step=True,
                    ),
                ],
            ),
            (
                "Faults of GPUs",
                [
                    table(
                        "Xid errors",
                        "Xid errors of the selected time range by GPU. Class application: a fault of a program of that GPU. Hardware and node: the"
                        " GPU or node is taken out. The driver may report one fault several times.",
                        [
                            (
                                (
                                    f"({in_range('gputenancy_gpu_xid_errors_total', 'uuid, xid, class', on_node)}) * on (uuid) group_left ({BOARD})"
                                    f" {boards()}"
                                ),
                                "errors",
                                "short",
                            )
                        ],
                        12,
                        9,
                        labels=[
                            ("node", "node"),
                            ("gpu", "GPU"),
                            ("xid", "Xid"),
                            ("class", "class"),
                            ("pool", "pool"),
                            ("product", "product"),
                            ("uuid", "UUID"),
                        ],
                        empty="",
                        sort="errors",
                    ),
                    table(
                        "Pods on GPUs with Xid errors",
                        "Pods that have a device now of a GPU with Xid errors in the selected time range. A pod that started after the error is"
                        " listed too; MIG confines many errors to one instance.",
                        [
                            (
                                f"max by (uuid, tenant, namespace, pod, mode) (gputenancy_allocation_info) * on (uuid) group_left () {xids}",
                                "errors of the GPU",
                                "short",
                            )
                        ],
                        12,
                        9,
                        labels=[("tenant", "tenant"), ("namespace", "namespace"), ("pod", "pod"), ("mode", "mode"), ("uuid", "UUID")],
                        empty="",
                    ),
                    lines(
                        "Faults by class",
                        "Xid and uncorrectable ECC errors that the driver reported, by class, in the time of each point. Only hardware and node take"
                        " devices out of service.",
                        "short",
                        [(found("gputenancy_agent_gpu_faults_total", "class", on_node), "{{class}}")],
                        empty="none",
                    ),
                    lines(
                        "GPUs with a limited clock",
                        "GPUs with a lowered clock, by reason. Power-cap is normal under full load; the others point to power supply or cooling.",
                        "short",
                        [
                            (
                                f"sum by (reason) ({of_board(selector('gputenancy_gpu_clock_limited', on_node), IN_POOL, by='uuid, reason')})",
                                "{{reason}}",
                            )
                        ],
                        step=True,
                    ),
                    lines(
                        "Lost MIG devices and recoveries",
                        "MIG devices that another program destroyed under a container, and GPUs that serve again after a fault without a reset, in"
                        " the time of each point.",
                        "short",
                        [
                            (found("gputenancy_agent_lost_devices_total", "node", on_node), "{{node}} lost"),
                            (found("gputenancy_agent_gpu_recoveries_total", "node", on_node), "{{node}} recovered"),
                        ],
                        empty="none",
                    ),
                    lines(
                        "Failed NVML calls",
                        "NVML calls that failed, by call and code, in the time of each point. Calls that a board does not support are not failures.",
                        "short",
                        [(found("gputenancy_agent_nvml_failures_total", "call, code", on_node), "{{call}} {{code}}")],
                        empty="none",
                    ),
                ],
            ),
            (
                "Processes and limits",
                [
                    lines(
                        "Memory that no process explains",
                        "Ghost memory by node. The agent withdraws the devices until it is gone; a reset of the GPU may be needed.",
                        "bytes",
                        [(f"sum by (node) (max by (node, gpu, instance) ({selector('gputenancy_agent_ghost_memory_bytes', on_node)}))", "{{node}}")],
                    ),
                    lines(
                        "Unlisted and ghost processes",
                        "Processes with the GPU open that the driver does not list, of pods without a device of it, and processes that the driver"
                        " lists although they ended.",
                        "short",
                        [
                            (f"sum by (node) (max by (node, gpu) ({selector('gputenancy_agent_unlisted_processes', on_node)}))", "{{node}} unlisted"),
                            (
                                f"sum by (node) (max by (node, gpu, instance) ({selector('gputenancy_agent_ghost_processes', on_node)}))",
                                "{{node}} ghost",
                            ),
                        ],
                        step=True,
                    ),
                    lines(
                        "Refused allocations of devices",
                        "Allocations by kubelet that agents refused, by reason, in the time of each point. The pod fails and its controller"
                        " replaces it.",
                        "short",
                        [(found("gputenancy_agent_refused_allocations_total", "reason", on_node), "{{reason}}")],
                        empty="none",
                    ),
                    lines(
                        "Bypassed limits and ended processes",
                        "Containers found to use memory past their limit, processes killed because they outlived their pod, and containers stopped"
                        " after their deadline, in the time of each point.",
                        "short",
                        [
                            (found("gputenancy_agent_bypasses_total", "node", on_node), "{{node}} bypassed"),
                            (found("gputenancy_agent_terminated_processes_total", "node", on_node), "{{node}} killed"),
                            (found("gputenancy_agent_stopped_after_deadline_total", "node", on_node), "{{node}} stopped"),
                        ],
                        empty="none",
                    ),
                ],
            ),
            (
                "Programs",
                [
                    lines(
                        "Failed reconciles",
                        "Reconciles per second that failed, by controller. Single failures are retried and are no incident.",
                        "ops",
                        [("sum by (controller) (rate(gputenancy_operator_reconcile_errors_total[$__rate_interval]))", "{{controller}}")],
                    ),
                    lines(
                        "Duration of reconciles, 99th percentile",
                        "Time in which 99 of 100 reconciles end, by controller, from a histogram: accurate to its buckets.",
                        "s",
                        [
                            (
                                (
                                    "histogram_quantile(0.99, sum by (controller, le)"
                                    " (rate(gputenancy_operator_reconcile_seconds_bucket[$__rate_interval])))"
                                ),
                                "{{controller}}",
                            )
                        ],
                    ),
                    lines(
                        "Time until headroom moves, 95th percentile",
                        "Time from a pod's refusal by a quota until its headroom is enforced. Only refusals that could be served count.",
                        "s",
                        [
                            (
                                "histogram_quantile(0.95, sum by (le) (rate(gputenancy_operator_budget_move_seconds_bucket[$__rate_interval])))",
                                "95th percentile",
                            )
                        ],
                        empty="none",
                    ),
                    lines(
                        "Duration of usage samples, 95th percentile",
                        "Time that an agent needs to sample all devices of a node. Near the sampling interval samples are late and usage is less"
                        " accurate.",
                        "s",
                        [
                            (
                                (
                                    "histogram_quantile(0.95, sum by (node, le)"
                                    f" (rate({selector('gputenancy_usage_sample_seconds_bucket', on_node)}[$__rate_interval])))"
                                ),
                                "{{node}}",
                            )
                        ],
                    ),
                    table(
                        "Missing rights",
                        "Rights that a program needs and does not have, with the feature that needs them.",
                        [
                            (
                                (
                                    "max by (verb, resource, feature)"
                                    ' ({__name__=~"gputenancy_operator_missing_rights|gputenancy_agent_missing_rights"}) > 0'
                                ),
                                "missing",
                                "none",
                            )
                        ],
                        12,
                        8,
                        labels=[("feature", "feature"), ("verb", "verb"), ("resource", "resource")],
                        empty="",
                    ),
                    lines(
                        "Failed writes of the GpuNode's status",
                        "Writes of status that failed, by node, in the time of each point. While they fail the operator decides from old data.",
                        "short",
                        [(found("gputenancy_agent_status_failures_total", "node", on_node), "{{node}}")],
                        empty="none",
                    ),
                ],
            ),
        ],
    )
