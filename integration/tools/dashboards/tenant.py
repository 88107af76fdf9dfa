"""The board of one tenant."""

import json

from panels import (
    BUSY,
    EXCLUSIVE,
    HOLDER,
    HOURS,
    HOURS_TEXT,
    LOW,
    PLACE,
    STATES,
    allocations,
    board,
    busy_but_idle,
    by_mode,
    events,
    held_and_idle,
    holder,
    hours,
    leader,
    lines,
    memory_of,
    of_container,
    query_variable,
    ratio,
    selector,
    share_of_known,
    stat,
    table,
    total,
    zero_with_leader,
)


def tenant():
    which = query_variable(
        "tenant",
        "Tenant",
        'label_values({__name__=~"gputenancy_tenant_devices|gputenancy_allocation_info"}, tenant)',
        multiple=False,
        description="GpuTenant",
    )
    of = 'tenant=~"$tenant"'
    devices_of = lambda state: leader(selector("gputenancy_tenant_devices", of, f'state="{state}"'), "profile")
    in_tenant = f"on (namespace, pod, container) group_left () max by (namespace, pod, container) ({selector('gputenancy_allocation_info', of)})"
    share = lambda metric: f"max by (gpu, share, namespace, pod, container) ({metric}) * {in_tenant}"
    rates = lambda state, mode: (
        f'sum(rate({selector("gputenancy_gpu_seconds_total", of, f"state={json.dumps(state)}", f"mode={json.dumps(mode)}")}[$__rate_interval]))'
    )
    busy, activity = busy_but_idle(["gputenancy_container_utilization_ratio", "gputenancy_container_sm_active_ratio"], HOLDER)
    join = lambda expr: f'label_join({expr}, "holder", "/", "uuid", "gpu_instance", "namespace", "pod", "container")'
    held = lambda metric: holder(f"max by ({HOLDER}) ({metric}) and on ({HOLDER}) {selector('gputenancy_allocation_info', of)}")
    pods = [
        ("namespace", "namespace"),
        ("pod", "pod"),
        ("container", "container"),
        ("mode", "mode"),
        ("resource", "resource"),
        ("uuid", "UUID"),
        ("gpu_instance", "instance"),
    ]
    waits = events(selector("gputenancy_operator_queue_wait_seconds_bucket", of), "1h")
    wait = lambda quantile: f"histogram_quantile({quantile}, sum by (resource, le) ({waits})) >= 0"
    return board(
        "tenant",
        "tenant",
        "Budget, use and waste of one tenant.",
        [which, BUSY, LOW],
        [
            (
                "Now",
                [
                    stat(
                        "Guaranteed",
                        "Devices that the tenant's budget guarantees, over all profiles. Devices of different size count as one each.",
                        "short",
                        f"sum({devices_of('budget')})",
                    ),
                    stat(
                        "Used",
                        "Devices that the quotas have admitted. A pod that is admitted may still wait for a node.",
                        "short",
                        f"sum({devices_of('used')})",
                    ),
                    stat("Unmet", "Guaranteed devices that do not exist for the tenant now.", "short", f"sum({devices_of('unmet')})", red=1),
                    stat(
                        "Waiting",
                        "Pods that wait for a device and controllers with pods that the quota refuses. A controller counts once.",
                        "short",
                        total(selector("gputenancy_tenant_waiting", of), "profile"),
                        red=1,
                    ),
                    stat(
                        "Reasons not ready",
                        "Reasons for which the condition Ready of the GpuTenant is not True; 0 while an operator leads and the tenant is ready.",
                        "short",
                        zero_with_leader(total(selector("gputenancy_tenant_not_ready", of), "reason")),
                        red=1,
                    ),
                    stat(
                        "Devices held",
                        "Devices that containers of the tenant have now, as agents report. It can differ from Used for the seconds between admission"
                        " and start.",
                        "short",
                        f"count(max by ({PLACE}, device) ({selector('gputenancy_allocation_info', of)}))",
                    ),
                    stat(
                        "GPU-hours",
                        "Allocated GPU-hours of the selected time range. An instance counts by its memory slices, a share by its part.",
                        HOURS,
                        f"sum(increase({selector('gputenancy_gpu_seconds_total', of, 'state=' + json.dumps('allocated'))}[$__range])) / 3600",
                    ),
                    stat(
                        "Unknown",
                        "Part of these GPU-hours without a source of utilization. They are neither active nor idle, and no ratio contains them.",
                        HOURS,
                        f"sum(increase({selector('gputenancy_gpu_seconds_total', of, 'state=' + json.dumps('unknown'))}[$__range])) / 3600",
                    ),
                ],
            ),
            (
                "Budget",
                [
                    table(
                        "Budget by profile",
                        "Guaranteed, admitted, existing and missing devices, and what waits, by profile.",
                        [
                            (devices_of(state), heading, "short")
                            for state, heading in (("budget", "guaranteed"), ("used", "used"), ("available", "available"), ("unmet", "unmet"))
                        ]
                        + [(leader(selector("gputenancy_tenant_waiting", of), "profile"), "waiting", "short")],
                        12,
                        8,
                        labels=[("profile", "profile")],
                    ),
                    lines(
                        "Used and waiting",
                        "Devices that the quotas have admitted, and what waits, by profile. Waiting with free budget: no free device, or a rule of"
                        " scheduling.",
                        "short",
                        [
                            (devices_of("used"), "{{profile}} used"),
                            (devices_of("budget"), "{{profile}} guaranteed"),
                            (leader(selector("gputenancy_tenant_waiting", of), "profile"), "{{profile}} waiting"),
                        ],
                        step=True,
                    ),
                    lines(
                        "Borrowed and lent devices",
                        "Devices above the guarantee that Jobs of the tenant use, and devices of its guarantee that Jobs of other tenants use. Their"
                        " owners reclaim them. Nothing is borrowed or lent where there is no series.",
                        "short",
                        [(devices_of("borrowed"), "{{profile}} borrowed"), (devices_of("lent"), "{{profile}} lent")],
                        step=True,
                        empty="none",
                    ),
                    lines(
                        "Wait for admission by a queue (p50, p90)",
                        "How long the Jobs waited that Kueue admitted in the last hour, by resource: half of them, and one in ten, waited longer."
                        " Jobs that still wait are not in it. With more than 200 tenants with queues the metric has no tenant.",
                        "s",
                        [(wait(0.5), "{{resource}} p50"), (wait(0.9), "{{resource}} p90")],
                        empty="none",
                    ),
                ],
            ),
            (
                "GPU time",
                [
                    table(
                        "GPU-hours by mode",
                        HOURS_TEXT,
                        [(hours(state, "mode", of), state, HOURS) for state in STATES]
                        + [
                            (share_of_known("active", "mode", of), "active / known", "percentunit"),
                            (share_of_known("useful", "mode", of, EXCLUSIVE), "useful / known", "percentunit"),
                        ],
                        24,
                        7,
                        labels=[("mode", "mode")],
                    ),
                    *by_mode(
                        lambda mode, name: lines(
                            f"GPUs held as {name}",
                            f"GPUs that the tenant holds in mode {mode}, and of these the active, useful and unknown part, as seconds per second."
                            " Active is at most allocated less unknown. A gap between allocated and active is idle time only where unknown is 0.",
                            "suffix: GPUs",
                            [(rates(state, mode), state) for state in STATES],
                        )
                    ),
                    lines(
                        "Device-hours by resource",
                        "Hours of devices by resource and state in the selected time range; each device counts as one, whatever its size.",
                        "suffix: device-h",
                        [
                            (hours(state, "resource, mode", of, metric="gputenancy_device_seconds_total"), "{{resource}} {{mode}} " + state)
                            for state in STATES
                        ],
                    ),
                ],
            ),
            (
                "Pods",
                [
                    table(
                        "Pods and devices",
                        "Each device that a container has, with what is measured of it. Utilization and SM activity of a device that several pods"
                        " share are of this container only where the driver reports its processes. No source: not measured, which is not 0.",
                        [
                            (join(allocations(of)), "devices", "short"),
                            (held("gputenancy_container_utilization_ratio"), "utilization", "percentunit"),
                            (held("gputenancy_container_sm_active_ratio"), "SM activity", "percentunit"),
                            (memory_of(selector("gputenancy_allocation_info", of)), "memory", "bytes"),
                        ],
                        24,
                        10,
                        labels=pods,
                        hide=["holder", "tenant"],
                    ),
                    table(
                        "Busy but idle",
                        "Containers with a utilization of the last 10 minutes above the first threshold and an SM activity below the second. Only"
                        " exclusive devices with a source of SM activity can appear.",
                        [
                            (join(f"({busy}) * on ({HOLDER}) group_left (tenant, mode, resource) {allocations(of)}"), "utilization", "percentunit"),
                            (holder(f"{activity} and on ({HOLDER}) ({busy})"), "SM activity", "percentunit"),
                        ],
                        12,
                        8,
                        labels=pods,
                        hide=["holder", "tenant"],
                        empty="",
                    ),
                    table(
                        "Allocated and idle",
                        "Containers with a device with a utilization that stayed below 1 % for an hour. A container without a source is unknown and"
                        " not listed.",
                        [(join(held_and_idle(of)), "highest utilization", "percentunit"), (memory_of(held_and_idle(of)), "memory", "bytes")],
                        12,
                        8,
                        labels=pods,
                        hide=["holder", "tenant"],
                        empty="",
                    ),
                ],
            ),
            (
                "Activity of containers, one panel for each mode",
                by_mode(
                    lambda mode, name: ratio(
                        f"Utilization in {name} devices",
                        f"Part of the time in which kernels of the container ran, in devices of mode {mode}. Of a shared device it is the container's"
                        " part, and parts of one device add up to at most 1. It does not say how much of the device the kernels used.",
                        [
                            (
                                of_container("gputenancy_container_utilization_ratio", of, f"mode={json.dumps(mode)}"),
                                "{{namespace}}/{{pod}} {{container}} {{gpu_instance}}",
                            )
                        ],
                        8,
                    )
                )
                + [
                    ratio(
                        "SM activity of exclusive devices and instances",
                        "Part of the multiprocessors of the container's own device with work. Absent for shared devices: the hardware does not"
                        " separate it by process.",
                        [(of_container("gputenancy_container_sm_active_ratio", of), "{{namespace}}/{{pod}} {{container}} {{mode}} {{gpu_instance}}")],
                        8,
                    )
                ],
            ),
            (
                "Shares",
                [
                    ratio(
                        "Memory used of the limit",
                        "Memory of the container's processes over the limit of its share. Above 1 the limit is bypassed. Memory that a framework"
                        " caches counts as used.",
                        [
                            (
                                f"({share('gputenancy_agent_share_memory_used_bytes')}) / ({share('gputenancy_agent_share_memory_limit_bytes')} > 0)",
                                "{{namespace}}/{{pod}} {{container}}",
                            )
                        ],
                    ),
                    lines(
                        "Memory of containers",
                        "Memory that the driver counts for the container's processes, by device. Contexts and caches of frameworks are in it; it is"
                        " not what tensors need.",
                        "bytes",
                        [
                            (
                                of_container("gputenancy_container_memory_used_bytes", of),
                                "{{namespace}}/{{pod}} {{container}} {{mode}} {{gpu_instance}}",
                            )
                        ],
                        stack=True,
                    ),
                    lines(
                        "Delay of launches",
                        "Seconds per second, summed over threads, in which launches waited for the fraction's part of the time. Above 1 with several"
                        " threads. It rises if the pod needs more than its part, or if neighbours run long kernels; the container can forge it.",
                        "suffix: s/s",
                        [
                            (
                                (
                                    "sum by (namespace, pod, container) (rate(gputenancy_agent_share_launch_delay_seconds[$__rate_interval]) *"
                                    f" {in_tenant})"
                                ),
                                "{{namespace}}/{{pod}} {{container}}",
                            )
                        ],
                    ),
                    lines(
                        "Time that a fraction may use",
                        "Percent of the GPU's time: its compute, or more while idle time is granted. A permission, not a use.",
                        "percent",
                        [(share("gputenancy_agent_share_compute_percent"), "{{namespace}}/{{pod}} {{container}}")],
                        limit=100,
                    ),
                    lines(
                        "Refused allocations",
                        "Allocations beyond the memory limit since the container started. Programs often retry with less memory, so a refusal is not"
                        " always a failure; the container can forge it.",
                        "short",
                        [(share("gputenancy_agent_share_refused_allocations"), "{{namespace}}/{{pod}} {{container}}")],
                        step=True,
                    ),
                    lines(
                        "Suspended or unlimited containers",
                        "1 while the agent stops the launches of a container, and 1 for a container on a share that the library cannot limit, with"
                        " the cause.",
                        "short",
                        [
                            (share("gputenancy_agent_share_compute_suspended"), "{{namespace}}/{{pod}} suspended"),
                            (
                                f"max by (namespace, pod, container, cause) (gputenancy_agent_unserved_containers) * {in_tenant}",
                                "{{namespace}}/{{pod}} not limited: {{cause}}",
                            ),
                        ],
                        step=True,
                    ),
                ],
            ),
        ],
    )
