"""What the boards share: joins of PromQL, units, panels, tables, variables and the layout of a board."""

import json

SOURCE = {"type": "prometheus", "uid": "$datasource"}
WIDTH = 24

# --- PromQL ---------------------------------------------------------------------------------------------------------------------------------------

PLACE = "uuid, gpu_instance"
HOLDER = "uuid, gpu_instance, namespace, pod, container"
BOARD = "node, pool, product, gpu"
DEVICE = "node, pool, gpu, profile, mode"
HOURS = "suffix: GPU-h"
MODES = {"exclusive": "whole GPU", "mig": "MIG", "time-slice": "time-slice", "mps": "MPS", "fraction": "fraction"}


def selector(name, *matchers):
    matchers = ", ".join(m for m in matchers if m)
    return f"{name}{{{matchers}}}" if matchers else name


def devices(labels=DEVICE, *matchers):
    """One series for each device; topk guards the joins while a device has an old and a new series."""
    info = selector("gputenancy_device_info", *matchers)
    return f"topk by ({PLACE}) (1, max by ({PLACE}, {labels}) ({info}))"


def boards(*matchers):
    """One series for each GPU."""
    info = selector("gputenancy_device_info", 'gpu_instance=""', *matchers)
    return f"topk by (uuid) (1, max by (uuid, {BOARD}) ({info}))"


def of_device(metric, *matchers, labels=DEVICE):
    """A value of a device with the labels of the device."""
    return f"max by ({PLACE}) ({metric}) * on ({PLACE}) group_left ({labels}) {devices(labels, *matchers)}"


def of_board(metric, *matchers, by="uuid"):
    """A value of a GPU with the labels of the GPU."""
    return f"max by ({by}) ({metric}) * on (uuid) group_left ({BOARD}) {boards(*matchers)}"


def allocations(*matchers):
    """One series for each device of a container."""
    info = selector("gputenancy_allocation_info", *matchers)
    return f"topk by ({HOLDER}) (1, max by ({HOLDER}, tenant, mode, resource) ({info}))"


def of_container(metric, *matchers):
    """A value of a container with its tenant and the mode of its device."""
    return f"max by ({HOLDER}) ({metric}) * on ({HOLDER}) group_left (tenant, mode, resource) {allocations(*matchers)}"


def leader(metric, by):
    """A gauge of the leader: a standby exports none or 0."""
    return f"max by ({by}) ({metric})" if by else f"max({metric})"


def total(metric, by):
    return f"sum({leader(metric, by)})"


def zero_with_leader(expr):
    """0 while nothing is found and an operator leads; no value without a leader."""
    return f"{expr} or 0 * max(gputenancy_operator_leader == 1)"


def place(expr):
    """Keyed by one label that is never empty: a table cannot join rows by gpu_instance, which whole GPUs lack."""
    return f'max by (place) (label_join({expr}, "place", "/", "uuid", "gpu_instance"))'


def holder(expr, separate=True):
    labels = '"uuid", "gpu_instance", "namespace", "pod", "container"' if separate else '"uuid", "namespace", "pod", "container"'
    return f'max by (holder) (label_join({expr}, "holder", "/", {labels}))'


def memory_of(containers):
    """A table joins rows of all queries, so that each query is restricted to the containers of the first."""
    return holder(f"max by ({HOLDER}) (gputenancy_container_memory_used_bytes) and on ({HOLDER}) ({containers})")


def uuid_of(metric, *matchers):
    """Metrics of the agent have the UUID in `gpu`."""
    return f'label_replace({selector(metric, *matchers)}, "uuid", "$1", "gpu", "(.+)")'


def place_of(metric, *matchers):
    """The same of metrics with the instance in `instance`; an empty one may be Prometheus' own label, which is no number."""
    return f'label_replace({uuid_of(metric, *matchers)}, "gpu_instance", "$1", "instance", "([0-9]+)")'


def named_tenant(expr):
    return f'label_replace({expr}, "tenant", "(no tenant)", "tenant", "")'


# --- panels ---------------------------------------------------------------------------------------------------------------------------------------


def target(expr, legend="", table=False, ref="A"):
    one = {"datasource": SOURCE, "editorMode": "code", "expr": expr, "legendFormat": legend or "__auto", "refId": ref}
    return one | ({"format": "table", "instant": True, "range": False} if table else {"range": True})


def targets(pairs):
    return [target(expr, legend, ref=chr(65 + index)) for index, (expr, legend) in enumerate(pairs)]


def mapping(texts):
    options = {str(value): {"text": text, "color": color, "index": index} for index, (value, (text, color)) in enumerate(texts.items())}
    return {"type": "value", "options": options}


def missing(unit):
    """A measured value that is absent has no source; a count that is absent is none."""
    text = "none" if unit in ("short", "none", HOURS) else "no source"
    return {"type": "special", "options": {"match": "null+nan", "result": {"text": text, "color": "text", "index": 99}}}


def panel(kind, title, description, unit, queries, width, height, *, empty="no source", defaults=None, overrides=(), options=None, **rest):
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "noValue": empty, **(defaults or {})}, "overrides": list(overrides)},
        "options": options or {},
        "targets": queries,
        "gridPos": {"w": width, "h": height},
        **rest,
    }


def lines(title, description, unit, pairs, width=12, height=8, *, stack=False, limit=None, least=0, overrides=(), step=False, **rest):
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stack else 5, "showPoints": "never", "spanNulls": False}
    custom |= {"stacking": {"mode": "normal" if stack else "none", "group": "A"}, "lineInterpolation": "stepAfter" if step else "linear"}
    defaults = {"custom": custom, "min": least} | ({} if limit is None else {"max": limit})
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel(
        "timeseries", title, description, unit, targets(pairs), width, height, defaults=defaults, options=options, overrides=overrides, **rest
    )


def ratio(title, description, pairs, width=12, height=8, **rest):
    return lines(title, description, "percentunit", pairs, width, height, limit=1, **rest)


def stat(title, description, unit, expr, *, red=None, width=3, height=4, maps=(), empty="no source"):
    steps = [{"color": "text", "value": None}] + ([{"color": "red", "value": red}] if red is not None else [])
    defaults = {"thresholds": {"mode": "absolute", "steps": steps}, "mappings": list(maps), "color": {"mode": "thresholds"}}
    options = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "value",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return panel("stat", title, description, unit, [target(expr)], width, height, defaults=defaults, options=options, empty=empty)


def timeline(title, description, pairs, texts, width=24, height=8, empty="no source"):
    custom = {"fillOpacity": 70, "lineWidth": 0}
    defaults = {"custom": custom, "mappings": [mapping(texts)], "color": {"mode": "thresholds"}}
    defaults["thresholds"] = {"mode": "absolute", "steps": [{"color": "text", "value": None}]}
    options = {
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
    }
    return panel("state-timeline", title, description, "none", targets(pairs), width, height, defaults=defaults, options=options, empty=empty)


LINKS = {
    "tenant": ("tenant", "/d/gputenancy-tenant?${datasource:queryparam}&var-tenant=${__value.raw}"),
    "uuid": ("GPU", "/d/gputenancy-gpu?${datasource:queryparam}&var-uuid=${__value.raw}"),
    "pool": ("pool", "/d/gputenancy-pool?${datasource:queryparam}&var-pool=${__value.raw}"),
}


def table(title, description, columns, width=24, height=9, *, labels=(), hide=(), empty="no source", sort=None):
    """`columns`: (expression, heading, unit, mappings). `labels`: those of the first expression, in order, as (label, heading)."""
    queries, overrides, renamed = [], [], dict(labels)
    for index, (expr, heading, unit, *maps) in enumerate(columns):
        ref = chr(65 + index)
        queries.append(target(expr, table=True, ref=ref))
        renamed["Value" if len(columns) == 1 else f"Value #{ref}"] = heading
        properties = [{"id": "unit", "value": unit}, {"id": "mappings", "value": [*maps, missing(unit)]}]
        if maps:
            properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        overrides.append({"matcher": {"id": "byName", "options": heading}, "properties": properties})
    for label, heading in labels:
        if label in LINKS:
            name, url = LINKS[label]
            link = {"title": f"Dashboard of the {name}", "url": url, "targetBlank": False}
            overrides.append({"matcher": {"id": "byName", "options": heading}, "properties": [{"id": "links", "value": [link]}]})
    order = {name: index for index, name in enumerate(renamed)}
    organize = {"excludeByName": {name: True for name in ("Time", *hide)}, "indexByName": order, "renameByName": renamed}
    return panel(
        "table",
        title,
        description,
        "short",
        queries,
        width,
        height,
        empty=empty,
        defaults={"custom": {"align": "auto", "filterable": True}},
        overrides=overrides,
        options={"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": sort, "desc": True}] if sort else []},
        transformations=[{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
    )


# --- boards ---------------------------------------------------------------------------------------------------------------------------------------


def query_variable(name, label, query, *, multiple=True, description=""):
    everything = {"text": "All", "value": "$__all"}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": multiple,
        "includeAll": multiple,
        "description": description,
        "hide": 0,
    } | ({"allValue": ".*", "current": everything} if multiple else {"current": {}})


def choice(name, label, values, description):
    options = [{"text": value, "value": value, "selected": index == 0} for index, value in enumerate(values)]
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": ",".join(values),
        "options": options,
        "current": options[0],
        "multi": False,
        "includeAll": False,
        "description": description,
        "hide": 0,
    }


POOL = query_variable("pool", "Pool", "label_values(gputenancy_pool_gpus, pool)", description="GpuPool")
BUSY = choice("busy_above", "Busy above", ["0.85", "0.5", "0.7", "0.95"], "Utilization above which a device counts as busy")
LOW = choice("sm_below", "SM activity below", ["0.02", "0.05", "0.1", "0.2"], "SM activity below which a busy device counts as idle")
IN_POOL = 'pool=~"$pool"'


def board(name, title, description, variables, rows):
    """`rows`: (heading, panels); panels flow from left to right."""
    placed, number, y = [], 1, 0
    for heading, panels in rows:
        grid = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        placed.append({"type": "row", "id": number, "title": heading, "collapsed": False, "gridPos": grid, "panels": []})
        number, y, x, tallest = number + 1, y + 1, 0, 0
        for one in panels:
            grid = one["gridPos"]
            if x + grid["w"] > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            placed.append(one | {"id": number, "gridPos": {"x": x, "y": y, **grid}})
            number, x, tallest = number + 1, x + grid["w"], max(tallest, grid["h"])
        y += tallest
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "regex": "/.*/", "hide": 0}
    datasource |= {"refresh": 1, "multi": False, "includeAll": False, "current": {}}
    link = {"title": "GPU tenancy", "type": "dashboards", "tags": ["gputenancy"], "asDropdown": True, "includeVars": False, "keepTime": True}
    return {
        "uid": f"gputenancy-{name}",
        "title": f"GPU tenancy: {title}",
        "description": description,
        "tags": ["gputenancy"],
        "timezone": "utc",
        "refresh": "30s",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": []},
        "links": [link],
        "templating": {"list": [datasource, *variables]},
        "panels": placed,
    }


def by_mode(make):
    return [make(mode, name) for mode, name in MODES.items()]


ABSENT = "A device without a source has no series, and is not counted as idle."


def activity_of_mode(mode, name, matchers, width=12):
    among = ("mode=" + json.dumps(mode), *matchers)
    mean = lambda metric: f"avg by (pool) ({of_device(metric, *among, labels='pool')})"
    shared = "" if mode in ("exclusive", "mig") else " The values are of the whole device, not of one pod on it."
    return ratio(
        f"Activity of {name} devices",
        f"Mean over the devices of mode {mode} that have a source, allocated or not. Utilization: part of the time in which at least one kernel ran. "
        f"SM activity: part of the multiprocessors with work. Not an efficiency: it does not measure useful results.{shared} {ABSENT}",
        [(mean("gputenancy_device_utilization_ratio"), "{{pool}} utilization"), (mean("gputenancy_device_sm_active_ratio"), "{{pool}} SM activity")],
        width,
    )


def events(counter, window):
    """A counter with labels begins with its first event, which increase() does not see."""
    return f"({counter} unless {counter} offset {window}) or increase({counter}[{window}])"


EXCLUSIVE = 'mode=~"exclusive|mig"'
STATES = ["allocated", "active", "useful", "unknown"]


def hours(state, by, *matchers, metric="gputenancy_gpu_seconds_total"):
    return f"sum by ({by}) (increase({selector(metric, 'state=' + json.dumps(state), *matchers)}[$__range])) / 3600"


def share_of_known(state, by, *matchers):
    """Active or useful time over allocated time with a source."""
    known = f"({hours('allocated', by, *matchers)} - ({hours('unknown', by, *matchers)} or 0 * ({hours('allocated', by, *matchers)})))"
    return f"({hours(state, by, *matchers)}) / ({known} > 0)"


HOURS_TEXT = (
    "GPU-hours of the selected time range. Allocated: a container had the device. Active: times utilization. Useful: times SM activity, which has a"
    " source only on whole GPUs and instances from Hopper on, or by DCGM; elsewhere 0 useful hours are unknown, not waste. Unknown: allocated without a source of"
    " utilization, so neither active nor idle. An instance counts by its memory slices, a share by its part of the GPU. Not a bill: what falls"
    " between the last scrape of an agent and its restart is missing."
)


def held_and_idle(*matchers):
    idle = f"max by ({HOLDER}) (max_over_time(gputenancy_container_utilization_ratio[1h])) < 0.01"
    old = f"max by ({HOLDER}) (gputenancy_container_utilization_ratio offset 1h)"
    return f"({idle} and {old}) * on ({HOLDER}) group_left (tenant, mode, resource) {allocations(*matchers)}"


def busy_but_idle(metrics, by):
    utilization, activity = (f"max by ({by}) (avg_over_time({metric}[10m]))" for metric in metrics)
    return f"{utilization} > $busy_above and on ({by}) {activity} < $sm_below", activity


def device_busy_but_idle(*matchers):
    busy, activity = busy_but_idle(["gputenancy_device_utilization_ratio", "gputenancy_device_sm_active_ratio"], PLACE)
    labelled = f"({busy}) * on ({PLACE}) group_left ({DEVICE}) {devices(DEVICE, *matchers)}"
    return table(
        "Busy but idle",
        "Devices with a utilization of the last 10 minutes above the first threshold and an SM activity below the second: a kernel runs"
        " nearly always and uses few multiprocessors. Typical causes are small batches, a program that polls, and many tiny kernels. A device without"
        " SM activity (before Hopper without DCGM) cannot appear here.",
        [
            (f'label_join({labelled}, "place", "/", "uuid", "gpu_instance")', "utilization", "percentunit"),
            (place(f"{activity} and on ({PLACE}) ({busy})"), "SM activity", "percentunit"),
        ],
        labels=[
            ("node", "node"),
            ("pool", "pool"),
            ("gpu", "GPU"),
            ("gpu_instance", "instance"),
            ("profile", "profile"),
            ("mode", "mode"),
            ("uuid", "UUID"),
        ],
        hide=["place"],
        empty="",
        sort="utilization",
    )


def without_source(*matchers):
    info = devices(DEVICE, 'mode!="none"', *matchers)
    return f"count by (mode) ({info} unless on ({PLACE}) max by ({PLACE}) (gputenancy_device_utilization_ratio))"


def with_source(*matchers):
    info = devices(DEVICE, 'mode!="none"', *matchers)
    metric = f"max by ({PLACE}, source) (gputenancy_device_utilization_ratio)"
    return f"count by (mode, source) ({metric} * on ({PLACE}) group_left (mode) {info})"


def sources_panel(*matchers, width=12):
    return lines(
        "Devices by source of activity",
        "Devices with a measured utilization, by mode and source, and devices without a source. MIG instances before Hopper have none but DCGM."
        " A device without a source may be busy: nothing is known about it.",
        "short",
        [(with_source(*matchers), "{{mode}}: {{source}}"), (without_source(*matchers), "{{mode}}: no source")],
        width,
        stack=True,
        step=True,
    )
