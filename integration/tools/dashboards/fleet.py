"""The board of all pools and tenants."""

import json

from panels import (
    BUSY,
    EXCLUSIVE,
    HOURS,
    HOURS_TEXT,
    IN_POOL,
    LOW,
    PLACE,
    POOL,
    STATES,
    activity_of_mode,
    board,
    by_mode,
    device_busy_but_idle,
    held_and_idle,
    hours,
    leader,
    lines,
    mapping,
    memory_of,
    named_tenant,
    of_board,
    ratio,
    selector,
    share_of_known,
    sources_panel,
    stat,
    table,
    total,
    zero_with_leader,
)

LEADER = mapping({1: ("leads", "green"), 0: ("no leader", "red")})


def fleet():
    healthy = (
        "sum((1 - min by (uuid) (gputenancy_device_healthy)) * on (uuid) group_left () max by (uuid)"
        f' ({selector("gputenancy_device_info", IN_POOL)}))'
    )
    reporting = f"count by (pool) (max by (pool, node) ({selector('gputenancy_device_info', IN_POOL)}))"
    nodes = leader(selector("gputenancy_pool_nodes", IN_POOL), "pool")
    allocated = selector("gputenancy_allocation_info")
    by_mode_allocated = (
        f"max by ({PLACE}, device, mode) ({allocated}) * on ({PLACE}) group_left () max by ({PLACE}) ({selector('gputenancy_device_info', IN_POOL)})"
    )
    idle_here = f"{held_and_idle()} and on ({PLACE}) {selector('gputenancy_device_info', IN_POOL)}"
    key = "tenant, mode"
    return board(
        "fleet",
        "fleet",
        "Capacity, demand and use of all GPUs.",
        [POOL, BUSY, LOW],
        [
            (
                "Now",
                [
                    stat(
                        "GPUs",
                        "GPUs of the selected pools, by the operator. Includes GPUs that are unhealthy or in a change.",
                        "short",
                        total(selector("gputenancy_pool_gpus", IN_POOL), "pool"),
                    ),
                    stat(
                        "Nodes",
                        "Nodes of the selected pools. Includes nodes with a silent agent.",
                        "short",
                        total(selector("gputenancy_pool_nodes", IN_POOL), "pool"),
                    ),
                    stat(
                        "Silent agents",
                        "Nodes with an agent that has not reported for a minute. Their devices are unknown, not free and not idle.",
                        "short",
                        zero_with_leader(total(selector("gputenancy_operator_silent_agents", IN_POOL), "pool")),
                        red=1,
                    ),
                    stat(
                        "Unhealthy GPUs", "GPUs with a fault, as their agents report. GPUs of silent agents are not in it.", "short", healthy, red=1
                    ),
                    stat(
                        "GPUs in change",
                        "GPUs with a change of layout in progress. Their removed devices are withdrawn, other devices of them serve on.",
                        "short",
                        total(selector("gputenancy_pool_changing_gpus", IN_POOL), "pool"),
                    ),
                    stat(
                        "Unmet guarantees",
                        "Devices that are guaranteed to tenants and that the pools cannot provide. Not the same as waiting pods: a tenant may use"
                        " less than its guarantee.",
                        "short",
                        total(selector("gputenancy_pool_unmet_devices", IN_POOL), "pool"),
                        red=1,
                    ),
                    stat(
                        "Waiting",
                        "Pods that wait for a device and controllers with pods that a quota refuses, over all pools and tenants. A controller counts"
                        " once, whatever its number of replicas.",
                        "short",
                        total("gputenancy_profile_waiting", "profile"),
                    ),
                    stat(
                        "Operator",
                        "Whether a replica of the operator leads. Without a leader the operator's numbers on this board are missing.",
                        "none",
                        "max(gputenancy_operator_leader)",
                        maps=[LEADER],
                    ),
                ],
            ),
            (
                "Capacity and demand",
                [
                    lines(
                        "Devices by state",
                        "Devices of the selected pools over all profiles: allocated to a pod, or free. Devices of different size count as one each,"
                        " so the sum is no measure of capacity; use the next table for one profile.",
                        "short",
                        [
                            (
                                (
                                    "sum by (state)"
                                    f" ({leader(selector('gputenancy_pool_profile_devices', IN_POOL, 'state=~' + json.dumps('allocated|free')), 'pool, profile, state')})"
                                ),
                                "{{state}}",
                            )
                        ],
                        stack=True,
                        step=True,
                    ),
                    lines(
                        "Stranded slices",
                        "Free slices that no profile of the pool can use in the present layout. Two 3g instances strand one compute slice, seven 1g"
                        " one memory slice. They are free in NVML's list and cannot serve any request.",
                        "short",
                        [(leader(selector("gputenancy_operator_stranded_slices", IN_POOL), "pool, kind"), "{{pool}} {{kind}}")],
                        step=True,
                    ),
                    table(
                        "Profiles",
                        "Devices of each profile over all pools, what tenants are guaranteed, and what waits. Free devices and waiting pods together"
                        " point to a rule of scheduling (taint, affinity, queue), not to a lack of GPUs.",
                        [(leader('gputenancy_profile_devices{state="total"}', "profile"), "total", "short")]
                        + [
                            (leader(f'gputenancy_profile_devices{{state="{state}"}}', "profile"), state, "short")
                            for state in ("allocated", "free", "unschedulable")
                        ]
                        + [
                            (leader("gputenancy_profile_budget_devices", "profile"), "guaranteed", "short"),
                            (leader("gputenancy_profile_waiting", "profile"), "waiting", "short"),
                        ],
                        12,
                        8,
                        labels=[("profile", "profile")],
                        sort="waiting",
                    ),
                    lines(
                        "Allocated devices by mode",
                        "Devices that containers have, by mode, one series for each. A share counts as one device, as a whole GPU does.",
                        "short",
                        [(f"count by (mode) ({by_mode_allocated})", "{{mode}}")],
                        step=True,
                    ),
                    lines(
                        "Waiting by profile",
                        "Pods and refused controllers that wait, by profile, over all pools. It does not show the reason: taints, affinity, queues"
                        " and quotas count as well as a lack of GPUs.",
                        "short",
                        [(leader("gputenancy_profile_waiting", "profile"), "{{profile}}")],
                        step=True,
                    ),
                    lines(
                        "Nodes without an agent's report",
                        "Nodes of each pool by the operator, less nodes with current series of an agent. Above 0: the agent is silent, or Prometheus"
                        " does not reach it. Their GPUs are unknown.",
                        "short",
                        [(f"{nodes} - ({reporting} or 0 * {nodes})", "{{pool}}")],
                        step=True,
                    ),
                    ratio(
                        "Fairness of borrowing",
                        "How evenly the teams of each sharing group borrow by weight: 1 is even, 1/n means that one of n teams borrows all. No series"
                        " where fewer than two teams borrow or have waiting Jobs. A team that waits for a profile of which nothing is idle lowers it.",
                        [(leader("gputenancy_operator_queue_fairness", "group"), "{{group}}")],
                        24,
                        empty="none",
                    ),
                ],
            ),
            ("Activity, one panel for each mode", [*by_mode(lambda mode, name: activity_of_mode(mode, name, [IN_POOL])), sources_panel(IN_POOL)]),
            (
                "Use of GPU time, all pools",
                [
                    table(
                        "GPU-hours by tenant and mode",
                        HOURS_TEXT,
                        [(named_tenant(hours(state, key)), state, HOURS) for state in STATES]
                        + [
                            (named_tenant(share_of_known("active", key)), "active / known", "percentunit"),
                            (named_tenant(share_of_known("useful", key, EXCLUSIVE)), "useful / known", "percentunit"),
                        ],
                        24,
                        10,
                        labels=[("tenant", "tenant"), ("mode", "mode")],
                        sort="allocated",
                    )
                ],
            ),
            (
                "Waste",
                [
                    device_busy_but_idle(IN_POOL),
                    table(
                        "Allocated and idle",
                        "Containers that have a device with a utilization that stayed below 1 % for an hour. Only devices with a source: one without"
                        " a source is unknown and not listed. A service that waits for requests, and a notebook, look the same.",
                        [
                            (
                                f'label_join({idle_here}, "holder", "/", "uuid", "gpu_instance", "namespace", "pod", "container")',
                                "highest utilization",
                                "percentunit",
                            ),
                            (memory_of(idle_here), "memory", "bytes"),
                        ],
                        labels=[
                            ("tenant", "tenant"),
                            ("namespace", "namespace"),
                            ("pod", "pod"),
                            ("container", "container"),
                            ("mode", "mode"),
                            ("resource", "resource"),
                            ("uuid", "UUID"),
                            ("gpu_instance", "instance"),
                        ],
                        hide=["holder"],
                        empty="",
                    ),
                ],
            ),
            (
                "Boards",
                [
                    lines(
                        "Power",
                        "Sum of the power of the boards in each pool. Only whole boards are measured: no part of it belongs to an instance or a pod.",
                        "watt",
                        [(f"sum by (pool) ({of_board('gputenancy_gpu_power_watts', IN_POOL)})", "{{pool}}")],
                        stack=True,
                    ),
                    lines(
                        "Highest temperature",
                        "Temperature of the hottest GPU of each pool. GPUs slow down above a temperature that depends on the board.",
                        "celsius",
                        [(f"max by (pool) ({of_board('gputenancy_gpu_temperature_celsius', IN_POOL)})", "{{pool}}")],
                    ),
                ],
            ),
        ],
    )
