"""The board of one GPU and its sharers."""

import json

from panels import (
    DEVICE,
    HOLDER,
    MODES,
    PLACE,
    board,
    boards,
    devices,
    events,
    holder,
    lines,
    mapping,
    of_board,
    of_container,
    of_device,
    place,
    place_of,
    query_variable,
    ratio,
    selector,
    table,
    timeline,
    uuid_of,
)

VERDICTS = {0: ("matches", "green"), 1: ("allocated, no process", "orange"), 2: ("process, not allocated", "red"), 3: ("node or MPS daemon", "text")}
HEALTH = {1: ("healthy", "green"), 0: ("fault", "red")}
VERDICT_KEY = "uuid, namespace, pod, container"


def processes(*matchers):
    return f"sum by ({VERDICT_KEY}) ({uuid_of('gputenancy_agent_processes', *matchers)}) > 0"


def verdict(allocated, listed):
    """Compares kubelet's allocation with the driver's processes, for each container."""
    held = f"max by ({VERDICT_KEY}) ({selector('gputenancy_allocation_info', *allocated)})"
    named, other = processes('pod!=""', *listed), processes('pod=""', *listed)
    on = f"on ({VERDICT_KEY})"
    return f"(({held} unless {on} ({named})) * 0 + 1 or (({named}) unless {on} {held}) * 0 + 2 or {held} * 0 or ({other}) * 0 + 3)"


def gpu():
    in_node = 'node=~"$node"'
    node = query_variable("node", "Node", "label_values(gputenancy_device_info, node)", description="Node with GPUs")
    which = query_variable("uuid", "GPU", 'label_values(gputenancy_device_info{node=~"$node"}, uuid)', multiple=False, description="UUID of the GPU")
    instance = query_variable(
        "gpu_instance",
        "Instance",
        'label_values(gputenancy_device_info{uuid=~"$uuid"}, gpu_instance)',
        description="GPU instance id; All for a whole GPU",
    )
    of, of_instance, of_gpu = 'uuid=~"$uuid"', 'gpu_instance=~"$gpu_instance"', 'gpu=~"$uuid"'
    device = lambda metric: of_device(selector(metric, of, of_instance), of, of_instance)
    legend = "GPU {{gpu}} {{profile}} {{gpu_instance}} {{mode}}"
    by_uuid = lambda expr: f"sum by (uuid) ({expr})"
    here = lambda expr: f"{expr} and on (uuid) {selector('gputenancy_device_info', in_node)}"
    key = lambda expr: holder(expr, separate=False)
    held = f'label_join({selector("gputenancy_allocation_info", of)}, "holder", "/", "uuid", "namespace", "pod", "container")'
    held = f"count by (holder, tenant, mode) (max by (holder, tenant, mode, gpu_instance, device) ({held}))"
    per_gpu = lambda metric: f"max by (uuid) ({selector(metric, of)})"
    selected = (
        f"sum by (layer) (max by (uuid, gpu_instance, layer) ({place_of('gputenancy_agent_device_memory_bytes', of_gpu)}) * on ({PLACE}) group_left"
        f" () max by ({PLACE}) ({selector('gputenancy_device_info', of, of_instance)}))"
    )
    shared = lambda mode: [
        (
            of_container(selector("gputenancy_container_utilization_ratio", of, of_instance), of, f"mode={json.dumps(mode)}"),
            "{{tenant}} {{namespace}}/{{pod}} {{container}} {{gpu_instance}}",
        ),
        (
            of_device(selector("gputenancy_device_unattributed_utilization_ratio", of, of_instance), of, of_instance, f"mode={json.dumps(mode)}"),
            "unattributed {{gpu_instance}}",
        ),
    ]
    return board(
        "gpu",
        "GPU and its sharers",
        "One GPU: allocation, processes and activity, memory, power, faults and the pods that share it.",
        [node, which, instance],
        [
            (
                "GPUs of the selected nodes: three views in one row",
                [
                    table(
                        "Allocation, processes, activity",
                        "One row for each GPU: what kubelet has allocated, what the driver lists, what the hardware does. The verdict is the worst of"
                        " the GPU's containers: allocated without a process (not started, crashed or half dead), or a process of a pod that has no"
                        " device of the GPU. Utilization above 0 without a pod or process is unattributed work. No source is not 0.",
                        [
                            (boards(in_node), "GPUs", "short"),
                            (here(f"count by (uuid) (max by ({VERDICT_KEY}) (gputenancy_allocation_info))"), "containers allocated", "short"),
                            (here(by_uuid(uuid_of("gputenancy_agent_processes"))), "processes", "short"),
                            (here(by_uuid(uuid_of("gputenancy_agent_unlisted_processes"))), "unlisted processes", "short"),
                            (here(f"max by (uuid) ({verdict([], [])} < 3)"), "verdict", "short", mapping(VERDICTS)),
                            (here("max by (uuid) (gputenancy_device_utilization_ratio)"), "highest utilization", "percentunit"),
                            (here("max by (uuid) (gputenancy_device_sm_active_ratio)"), "highest SM activity", "percentunit"),
                            (here(by_uuid(f"max by ({PLACE}) ({place_of('gputenancy_agent_ghost_memory_bytes')})")), "ghost memory", "bytes"),
                            (here("min by (uuid) (gputenancy_device_healthy)"), "health", "short", mapping(HEALTH)),
                        ],
                        labels=[("node", "node"), ("gpu", "GPU"), ("product", "product"), ("pool", "pool"), ("uuid", "UUID")],
                        hide=["Value #A"],
                    )
                ],
            ),
            (
                "The selected GPU",
                [
                    table(
                        "Holders: allocation, processes, activity",
                        "One row for each container: a device by kubelet, processes by the driver, memory and activity. Allocated, no process: the"
                        " pod has not started, has crashed, or a part of it is dead. Process, not allocated: it survived its pod or was started"
                        " around kubelet. Processes without a pod belong to the node or to an MPS daemon.",
                        [
                            (
                                f'label_join({verdict([of], [of_gpu])}, "holder", "/", "uuid", "namespace", "pod", "container")',
                                "verdict",
                                "short",
                                mapping(VERDICTS),
                            ),
                            (held, "devices allocated", "short"),
                            (key(processes(of_gpu)), "processes", "short"),
                            (key(f"sum by ({VERDICT_KEY}) ({selector('gputenancy_container_memory_used_bytes', of)})"), "memory", "bytes"),
                            (key(f"max by ({VERDICT_KEY}) ({selector('gputenancy_container_utilization_ratio', of)})"), "utilization", "percentunit"),
                            (key(f"max by ({VERDICT_KEY}) ({selector('gputenancy_container_sm_active_ratio', of)})"), "SM activity", "percentunit"),
                        ],
                        24,
                        9,
                        labels=[("tenant", "tenant"), ("namespace", "namespace"), ("pod", "pod"), ("container", "container"), ("mode", "mode")],
                        hide=["holder", "uuid"],
                        sort="verdict",
                    ),
                    table(
                        "Devices of the GPU",
                        "The GPU, or its MIG instances, with mode, memory and activity. Mode none: no device, or the board of a GPU in MIG mode.",
                        [
                            (f'label_join({devices(DEVICE + ", resource", of)}, "place", "/", "uuid", "gpu_instance")', "devices", "short"),
                            (place(selector("gputenancy_device_utilization_ratio", of)), "utilization", "percentunit"),
                            (place(selector("gputenancy_device_sm_active_ratio", of)), "SM activity", "percentunit"),
                            (place(selector("gputenancy_device_memory_used_bytes", of)), "memory used", "bytes"),
                            (place(selector("gputenancy_device_memory_total_bytes", of)), "memory", "bytes"),
                            (
                                (
                                    f'count by (place) (label_join(max by ({HOLDER}) ({selector("gputenancy_allocation_info", of)}), "place", "/",'
                                    ' "uuid", "gpu_instance"))'
                                ),
                                "containers",
                                "short",
                            ),
                        ],
                        24,
                        8,
                        labels=[
                            ("gpu_instance", "instance"),
                            ("profile", "profile"),
                            ("mode", "mode"),
                            ("resource", "resource"),
                            ("node", "node"),
                            ("pool", "pool"),
                        ],
                        hide=["place", "uuid", "gpu", "Value #A"],
                    ),
                ],
            ),
            (
                "Activity, one panel for each way of sharing",
                [
                    ratio(
                        "Devices, one series each",
                        "Utilization and SM activity, one series for each device, with its mode in the legend. Utilization counts a kernel on one"
                        " multiprocessor as much as one on all.",
                        [
                            (device("gputenancy_device_utilization_ratio"), legend + " utilization"),
                            (device("gputenancy_device_sm_active_ratio"), legend + " SM activity"),
                        ],
                    ),
                    *[
                        ratio(
                            f"Parts of a {MODES[mode]} device",
                            f"The parts of the containers in the utilization of a device in mode {mode}, and what no container explains; stacked they"
                            " are the device's utilization. The unattributed part is not spread over containers. Empty for other modes.",
                            shared(mode),
                            stack=True,
                        )
                        for mode in ("time-slice", "mps", "fraction")
                    ],
                    ratio(
                        "Tensor cores, memory bandwidth, warps",
                        "Part of the time in which tensor cores worked, part of the memory bandwidth, and resident warps, by device. Only with GPM"
                        " (Hopper and later) or DCGM. They do not add up to 1.",
                        [
                            (device("gputenancy_device_tensor_active_ratio"), legend + " tensor"),
                            (device("gputenancy_device_dram_active_ratio"), legend + " DRAM"),
                            (device("gputenancy_device_sm_occupancy_ratio"), legend + " occupancy"),
                        ],
                    ),
                    ratio(
                        "Memory controller",
                        "Part of the time in which memory was read or written (MEM_COPY_UTIL), not the part of memory in use. Absent in MIG mode.",
                        [(of_board(selector("gputenancy_gpu_memory_utilization_ratio", of), of), "GPU {{gpu}}")],
                    ),
                ],
            ),
            (
                "Memory",
                [
                    lines(
                        "Layers of memory",
                        "All memory of the selected devices: reserved by the driver, held by processes, in use by no process, free. The layers add up"
                        " to the memory of the device. Held memory includes contexts and caches of frameworks.",
                        "bytes",
                        [(selected, "{{layer}}")],
                        stack=True,
                    ),
                    lines(
                        "Memory by container",
                        "Memory of the processes of each container on the GPU. Their sum is the layer of processes, less processes outside of"
                        " containers.",
                        "bytes",
                        [
                            (
                                of_container(selector("gputenancy_container_memory_used_bytes", of, of_instance), of),
                                "{{tenant}} {{namespace}}/{{pod}} {{container}} {{gpu_instance}}",
                            )
                        ],
                        stack=True,
                    ),
                    lines(
                        "Shares: limit, counted, used",
                        "Limit of each share, what the ledger counts, and what the driver reports. Counted has 640 MiB for each context, so that it"
                        " is above used; the container can forge it.",
                        "bytes",
                        [
                            (
                                f"max by (share, namespace, pod, container) ({selector('gputenancy_agent_share_memory_limit_bytes', of_gpu)})",
                                "{{namespace}}/{{pod}} limit",
                            ),
                            (
                                f"max by (share, namespace, pod, container) ({selector('gputenancy_agent_share_memory_counted_bytes', of_gpu)})",
                                "{{namespace}}/{{pod}} counted",
                            ),
                            (
                                f"max by (share, namespace, pod, container) ({selector('gputenancy_agent_share_memory_used_bytes', of_gpu)})",
                                "{{namespace}}/{{pod}} used",
                            ),
                        ],
                    ),
                    lines(
                        "Memory that no process explains",
                        "Ghost memory by device: held by processes that have ended, or by none. The agent withdraws the device meanwhile. Brief"
                        " values at the end of a process are filtered out.",
                        "bytes",
                        [(f"max by (uuid, gpu_instance) ({place_of('gputenancy_agent_ghost_memory_bytes', of_gpu)})", "memory {{gpu_instance}}")],
                    ),
                ],
            ),
            (
                "Board: never of an instance",
                [
                    lines(
                        "Power",
                        "Power of the board. It is measured for the whole board only, and is not divided among instances or pods.",
                        "watt",
                        [(of_board(selector("gputenancy_gpu_power_watts", of), of), "GPU {{gpu}}")],
                        8,
                    ),
                    lines(
                        "Temperature",
                        "Temperature of the GPU. The limit at which the clock is lowered depends on the board; see clock limits.",
                        "celsius",
                        [(of_board(selector("gputenancy_gpu_temperature_celsius", of), of), "GPU {{gpu}}")],
                        8,
                    ),
                    lines(
                        "SM clock",
                        "Frequency of the multiprocessors. A low clock of an idle GPU is normal.",
                        "hertz",
                        [(of_board(selector("gputenancy_gpu_sm_clock_hertz", of), of), "GPU {{gpu}}")],
                        8,
                    ),
                    timeline(
                        "Clock limited",
                        "Whether the clock is lowered, by reason: power-cap is normal under full load, power-brake, thermal and slowdown point to"
                        " power supply or cooling. Not shown: the clock of an idle GPU.",
                        [(f"max by (uuid, reason) ({selector('gputenancy_gpu_clock_limited', of)})", "{{reason}}")],
                        {0: ("not limited", "green"), 1: ("limited", "orange")},
                        12,
                    ),
                    lines(
                        "Energy",
                        "Energy of the board per hour of the time at each point, from the driver's counter; divided by 3600 it is the mean power. It"
                        " covers all pods of the GPU together.",
                        "joule",
                        [(f"max by (uuid) (rate({selector('gputenancy_gpu_energy_joules_total', of)}[$__rate_interval])) * 3600", "energy per hour")],
                    ),
                    lines(
                        "PCIe and NVLink",
                        "Bytes per second to and from the GPU. Absent where the driver has no counter.",
                        "binBps",
                        [
                            (
                                f"max by (uuid, direction) (rate({selector('gputenancy_gpu_pcie_bytes_total', of)}[$__rate_interval]))",
                                "PCIe {{direction}}",
                            ),
                            (
                                f"max by (uuid, direction) (rate({selector('gputenancy_gpu_nvlink_bytes_total', of)}[$__rate_interval]))",
                                "NVLink {{direction}}",
                            ),
                        ],
                    ),
                    lines(
                        "Xid errors",
                        "Xid errors in the time of each point, by number and class. Class application is a fault of a program; hardware and node"
                        " concern every pod of the GPU or node.",
                        "short",
                        [
                            (
                                f"sum by (xid, class) ({events(selector('gputenancy_gpu_xid_errors_total', of), '$__rate_interval')})",
                                "Xid {{xid}} {{class}}",
                            )
                        ],
                    ),
                    timeline(
                        "Health",
                        "0 while the GPU has a fault: its devices get no new pods. It does not say that running pods have failed.",
                        [(per_gpu("gputenancy_device_healthy"), "GPU")],
                        HEALTH,
                        12,
                    ),
                    lines(
                        "Pods on the GPU",
                        "Pods with a device of the GPU. A fault of the whole GPU affects all of them, a fault of one MIG instance fewer.",
                        "short",
                        [(f"max by (gpu) ({selector('gputenancy_agent_gpu_pods', of_gpu)})", "pods")],
                        step=True,
                    ),
                ],
            ),
        ],
    )
