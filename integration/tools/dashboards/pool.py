"""The board of one pool and its profiles."""

import json

from panels import (
    IN_POOL,
    activity_of_mode,
    board,
    by_mode,
    leader,
    lines,
    query_variable,
    selector,
    sources_panel,
    stat,
    table,
    total,
    zero_with_leader,
)


def pool():
    profile = query_variable("profile", "Profile", 'label_values(gputenancy_pool_profile_devices{pool=~"$pool"}, profile)', description="GpuProfile")
    of = 'profile=~"$profile"'
    one = query_variable("pool", "Pool", "label_values(gputenancy_pool_gpus, pool)", description="GpuPool")
    count = lambda name: total(selector(name, IN_POOL), "pool")
    in_pool = f"on (node) group_left () max by (node) ({selector('gputenancy_device_info', IN_POOL)})"
    profile_state = lambda state: leader(selector("gputenancy_pool_profile_devices", IN_POOL, of, f'state="{state}"'), "pool, profile")
    waiting = leader(selector("gputenancy_tenant_waiting", of), "tenant, profile")
    unmet = leader(selector("gputenancy_tenant_devices", of, 'state="unmet"'), "tenant, profile")
    row = lambda expr: f'max by (row) (label_join({expr}, "row", "/", "pool", "profile"))'
    return board(
        "pool",
        "pool and profiles",
        "Supply and demand of one pool, by profile and state.",
        [one, profile],
        [
            (
                "Now",
                [
                    stat(
                        "GPUs", "GPUs of the selected pools. Includes GPUs that are unhealthy or in a change.", "short", count("gputenancy_pool_gpus")
                    ),
                    stat("Nodes", "Nodes of the selected pools. Includes nodes with a silent agent.", "short", count("gputenancy_pool_nodes")),
                    stat(
                        "GPUs in change",
                        "GPUs with a change of layout in progress. Other devices of these GPUs serve on.",
                        "short",
                        count("gputenancy_pool_changing_gpus"),
                    ),
                    stat(
                        "Unmet guarantees",
                        "Guaranteed devices that the pool cannot provide. Pods need not be waiting for them.",
                        "short",
                        count("gputenancy_pool_unmet_devices"),
                        red=1,
                    ),
                    stat(
                        "Silent agents",
                        "Nodes with an agent that has not reported for a minute. Their devices are unknown.",
                        "short",
                        zero_with_leader(count("gputenancy_operator_silent_agents")),
                        red=1,
                    ),
                    stat(
                        "Marked nodes",
                        "Nodes that another component has cordoned or tainted. Running pods keep their devices there.",
                        "short",
                        zero_with_leader(count("gputenancy_operator_marked_nodes")),
                        red=1,
                    ),
                    stat(
                        "Flapping guarantees",
                        "Guarantees that change up and down so often that the operator waits before it follows. Not an error of a GPU.",
                        "short",
                        zero_with_leader(count("gputenancy_operator_flapping_guarantees")),
                        red=1,
                    ),
                    stat(
                        "Stopped rollouts",
                        "Pools with a stopped rollout of a profile. The nodes serve the earlier profile.",
                        "short",
                        zero_with_leader(count("gputenancy_operator_stopped_rollouts")),
                        red=1,
                    ),
                ],
            ),
            (
                "Capacity",
                [
                    table(
                        "Devices by profile",
                        "Devices of each profile in each selected pool. A profile with no free device is exhausted; whether that matters shows in"
                        " waiting and unmet.",
                        [
                            (f'label_join({profile_state("total")}, "row", "/", "pool", "profile")', "total", "short"),
                            (row(profile_state("allocated")), "allocated", "short"),
                            (row(profile_state("free")), "free", "short"),
                            (row(f"{profile_state('allocated')} / ({profile_state('total')} > 0)"), "allocated / total", "percentunit"),
                        ],
                        12,
                        9,
                        labels=[("pool", "pool"), ("profile", "profile")],
                        hide=["row"],
                        sort="allocated / total",
                    ),
                    table(
                        "Demand by profile",
                        "What tenants are guaranteed and what waits, over all pools, next to all devices of the profile. Guaranteed above total: some"
                        " guarantee is unmet.",
                        [
                            (leader(selector("gputenancy_profile_budget_devices", of), "profile"), "guaranteed", "short"),
                            (leader(selector("gputenancy_profile_devices", of, 'state="total"'), "profile"), "total", "short"),
                            (leader(selector("gputenancy_profile_devices", of, 'state="unschedulable"'), "profile"), "unschedulable", "short"),
                            (leader(selector("gputenancy_profile_waiting", of), "profile"), "waiting", "short"),
                        ],
                        12,
                        9,
                        labels=[("profile", "profile")],
                        sort="waiting",
                    ),
                    lines(
                        "Stranded slices",
                        "Free slices that no profile of the pool can use in the present layout. A change of layout or a smaller profile can make them"
                        " usable.",
                        "short",
                        [(leader(selector("gputenancy_operator_stranded_slices", IN_POOL), "pool, kind"), "{{pool}} {{kind}}")],
                        step=True,
                    ),
                    lines(
                        "Changes and unmet guarantees",
                        "GPUs with a change in progress, and guaranteed devices that the pool cannot provide. A change in progress lowers capacity"
                        " for a time and normally ends with fewer unmet devices.",
                        "short",
                        [
                            (leader(selector("gputenancy_pool_changing_gpus", IN_POOL), "pool"), "{{pool}} GPUs in change"),
                            (leader(selector("gputenancy_pool_unmet_devices", IN_POOL), "pool"), "{{pool}} unmet"),
                        ],
                        step=True,
                    ),
                    lines(
                        "Devices that agents advertise",
                        "Devices by resource and state as agents report them to kubelet. Cordoned: withdrawn for a change, or because of a process of"
                        " another pod or unexplained memory. Unhealthy: fault of the GPU, or its MPS daemon has ended.",
                        "short",
                        [
                            (
                                f"sum by (resource, state) (max by (node, resource, state) (gputenancy_agent_devices) * {in_pool})",
                                "{{resource}} {{state}}",
                            )
                        ],
                        step=True,
                    ),
                    lines(
                        "Shares by what limits their memory",
                        "Shares by means: Driver, Server, Software or None. None: nothing stops a program from taking the memory of its neighbours.",
                        "short",
                        [(f"sum by (means) (max by (node, means) (gputenancy_agent_enforcement) * {in_pool})", "{{means}}")],
                        step=True,
                    ),
                ],
            ),
            (
                "One profile",
                [
                    lines(
                        "Devices of profile $profile",
                        "Allocated and free devices of the profile in the selected pools, by state. A device in a change is in neither.",
                        "short",
                        [
                            (
                                (
                                    "sum by (state)"
                                    f" ({leader(selector('gputenancy_pool_profile_devices', IN_POOL, of, 'state=~' + json.dumps('allocated|free')), 'pool, profile, state')})"
                                ),
                                "{{state}}",
                            ),
                            (f"sum({leader(selector('gputenancy_profile_waiting', of), 'profile')})", "waiting, all pools"),
                        ],
                        24,
                        8,
                        step=True,
                        repeat="profile",
                        repeatDirection="h",
                        maxPerRow=3,
                    )
                ],
            ),
            (
                "Tenants",
                [
                    table(
                        "Tenants that wait or lack devices",
                        "Tenants with waiting pods or unmet guarantees of the selected profiles, in all pools. With more than 1,000 tenants only"
                        " those with a problem, and selected ones, have series.",
                        [
                            (f"{waiting} and ({waiting} > 0 or {unmet} > 0)", "waiting", "short"),
                            (f"{unmet} and ({waiting} > 0 or {unmet} > 0)", "unmet", "short"),
                        ],
                        12,
                        9,
                        labels=[("tenant", "tenant"), ("profile", "profile")],
                        empty="",
                    ),
                    table(
                        "Pools that are not ready",
                        "Pools with a condition Ready that is not True, with its reason. An empty table means that all are ready, or that no operator"
                        " leads.",
                        [(leader(selector("gputenancy_pool_not_ready", IN_POOL), "pool, reason"), "not ready", "none")],
                        12,
                        9,
                        labels=[("pool", "pool"), ("reason", "reason")],
                        empty="",
                    ),
                ],
            ),
            ("Activity, one panel for each mode", [*by_mode(lambda mode, name: activity_of_mode(mode, name, [IN_POOL])), sources_panel(IN_POOL)]),
        ],
    )
