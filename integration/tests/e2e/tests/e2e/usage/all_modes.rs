//! A node with a GPU in each mode under work, and what a Prometheus with the chart's rules finds there: the parts of each device are the whole, the
//! simulator's own record is the same, and every expression of dashboards, rules and documentation has data or a reason to have none. The node of one
//! test has A100s and H100s, that of the other one H100s alone.

use std::{collections::BTreeMap, time::Duration};

use e2e::{
    Error, Result, World,
    fixtures::{deployment, merged, mig_profile, pool, restricted_spec, tenant},
    objects::ensure,
    product,
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::{
    IMAGE, NODE, busy,
    prometheus::{Prometheus, value},
    whole,
};

/// Expressions without data on an A100: board, panel, a part of the expression or `*`, and the reason.
const WITHOUT_DATA: &str = include_str!("without_data.tsv");
/// The reason of those that have data on an H100.
const HOPPER: &str = "Hopper";
/// Profiles with their resources: MIG of an H100 NVL, and then one of each mode: exclusive, MIG of an A100 or H100 with 80 GB, time-slice, MPS, fraction.
static RESOURCES: [(&str, &str); 6] = [
    ("mig-nvl", "nvidia.com/mig-1g.12gb"),
    ("gpu", "nvidia.com/gpu"),
    ("mig-1g", "nvidia.com/mig-1g.10gb"),
    ("quarter", "nvidia.com/gpu.shared"),
    ("half", "gputenancy.io/half"),
    ("part", "gputenancy.io/part"),
];
/// Modes of these resources.
const MODES: usize = 5;

/// A node, and what a test expects of it.
struct Setup {
    name: &'static str,
    gpus: u32,
    boards: &'static str,
    /// What its GPUs serve.
    resources: &'static [(&'static str, &'static str)],
    /// The expressions that must have data, by the reason why they have none on an A100.
    wanted: fn(Option<&str>) -> bool,
}

#[tokio::test]
async fn parts_are_the_whole_in_every_mode_on_a_node_with_two_boards_and_every_expression_has_data_or_a_reason() {
    // each board has a MIG profile that the other one lacks
    on_node(Setup {
        name: "usage-two-boards",
        gpus: 7,
        boards: "a100-80gb+a100-80gb+a100-80gb+a100-80gb+h100-94gb",
        resources: &RESOURCES,
        wanted: |reason| reason.is_none(),
    })
    .await;
}

#[tokio::test]
async fn parts_are_the_whole_and_expressions_of_activity_have_data_on_hopper() {
    on_node(Setup {
        name: "usage-all-modes-hopper",
        gpus: 6,
        boards: "h100-80gb",
        resources: &RESOURCES[1..],
        wanted: |reason| reason == Some(HOPPER),
    })
    .await;
}

async fn on_node(Setup { name, gpus, boards, resources, wanted }: Setup) {
    let world = World::enter().await.unwrap();
    let body = async {
        world.reinstall(&["simulator.uninstallOnExit=true"]).await?;
        let [gpus, boards] = [format!("simulator.gpus={gpus}"), format!("simulator.nodeBoards.{NODE}={boards}")];
        let values = ["simulator.uninstallOnExit=true", &gpus, &boards, "agent.usageInterval=2s"];
        world.reinstall(&values).await?;
        scene(&world, resources).await?;
        let prometheus = Prometheus::start(&world).await?;
        parts(&world, &prometheus, resources).await?;
        if resources.len() == RESOURCES.len() {
            activity_of_instances(&prometheus).await?;
        }
        expressions(&prometheus, wanted).await?;
        no_failures_of_nvml(&prometheus).await
    };
    world.keeping_evidence(name, body).await;
    world.reinstall(&["simulator.uninstallOnExit=true"]).await.unwrap();
}

fn profile(name: &str, device: Value) -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
        "spec": {"device": device, "support": {"expected": "neighbours", "incident": "less than the part"}},
    })
}

/// A GPU in each mode, work on each, a pod that waits, and an Xid error.
async fn scene(world: &World, resources: &[(&str, &str)]) -> Result<()> {
    let served = |profile: &str| resources.iter().any(|(name, _)| *name == profile);
    let mut profiles = vec![
        mig_profile("mig-nvl", "1g.12gb"),
        whole("gpu"),
        mig_profile("mig-1g", "1g.10gb"),
        profile("quarter", json!({"timeSlice": {"replicas": 4}})),
        profile("half", json!({"mps": {"replicas": 2}})),
        profile("part", json!({"fraction": {"memory": "10Gi", "compute": 30}})),
    ];
    profiles.retain(|profile| profile["metadata"]["name"].as_str().is_some_and(served));
    world.set(&profiles).await?;
    let names: Vec<&str> = resources.iter().map(|(profile, _)| *profile).collect();
    world.set(&[pool("p", NODE, &names)]).await?;
    let mut guarantees = vec![("mig-nvl", 1), ("gpu", 2), ("mig-1g", 1), ("quarter", 4), ("half", 2), ("part", 3)];
    guarantees.retain(|(profile, _)| served(profile));
    let mut team = tenant("team", &guarantees);
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(team["spec"].take(), sharing);
    world.set(&[team, tenant("late", &[("mig-1g", 1)])]).await?;
    tenant_ready(world, "team").await?;
    tenant_ready(world, "late").await?;
    pool_ready(world, "p").await?;
    let mut work: Vec<Value> =
        resources.iter().map(|(profile, resource)| busy("team", &format!("work-{profile}"), resource, 1080)).collect();
    let holds = restricted_spec(json!({
        "name": "work", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["/usr/bin/gpu-work", "hold", "--memory", "1Gi"],
        "resources": {"limits": {"nvidia.com/gpu.shared": "1"}},
    }));
    work.push(deployment("team", "neighbour", 1, &merged(holds, json!({"terminationGracePeriodSeconds": 2}))));
    work.push(busy("team", "tiny", "nvidia.com/gpu", 1));
    // the second pod is above the guarantee, so that a quota refuses it and the tenant waits
    let mut waits = busy("late", "late", "nvidia.com/mig-1g.10gb", 1080);
    waits["spec"]["replicas"] = json!(2);
    work.push(waits);
    world.set(&work).await?;
    world.pods_ready("team", resources.len() + 2).await?;
    world.pods_ready("late", 1).await?;
    world.nvsim(NODE, &["xid", "0", "31"]).await.map(drop)
}

/// The sum of containers and residue is the device's memory and utilization within 2 %, and the memory of processes is what the simulator has.
async fn parts(world: &World, prometheus: &Prometheus, resources: &[(&str, &str)]) -> Result<()> {
    let modes = "count by (mode) (gputenancy_allocation_info{tenant=\"team\"} and on (uuid, gpu_instance, pod) \
                 gputenancy_container_memory_used_bytes > 0)";
    eventually("memory of a container in each mode", PATIENCE, || async {
        let found = prometheus.query(modes).await?;
        Ok(if found.len() == MODES { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await?;
    let residue = "label_replace(label_replace(gputenancy_agent_device_memory_bytes{layer=\"unattributed\"}, \
                   \"uuid\", \"$1\", \"gpu\", \"(.+)\"), \"gpu_instance\", \"$1\", \"instance\", \"(.*)\")";
    for (what, whole, part, residue) in [
        ("memory", "device_memory_used_bytes", "container_memory_used_bytes", residue),
        (
            "utilization",
            "device_utilization_ratio",
            "container_utilization_ratio",
            "gputenancy_device_unattributed_utilization_ratio",
        ),
    ] {
        let [whole, part] =
            [whole, part].map(|metric| format!("sum by (uuid, gpu_instance) (gputenancy_{metric}{{node=\"{NODE}\"}})"));
        let residue = format!("sum by (uuid, gpu_instance) ({residue})");
        let off = format!("abs({part} + ({residue} or 0 * {part}) - {whole}) > 0.02 * {whole}");
        let both = format!("{whole} and {part}");
        eventually(&format!("parts of the {what}"), PATIENCE, || async {
            let (devices, off) = (prometheus.query(&both).await?, prometheus.query(&off).await?);
            Ok(if !devices.is_empty() && off.is_empty() { Ok(()) } else { Err(format!("{devices:?}, off: {off:?}")) })
        })
        .await?;
    }
    let measured = format!("sum by (uuid, gpu_instance) (gputenancy_container_memory_used_bytes{{node=\"{NODE}\"}})");
    eventually("the simulator's record of the memory of processes", PATIENCE, || async {
        let (recorded, found) = (recorded(world).await?, prometheus.query(&measured).await?);
        let found: BTreeMap<_, _> = found.iter().filter_map(of_device).collect();
        let same = recorded
            .iter()
            .all(|(device, bytes)| found.get(device).is_some_and(|measured| (measured - bytes).abs() <= 0.02 * bytes));
        let good = same && recorded.len() >= resources.len();
        Ok(if good { Ok(()) } else { Err(format!("recorded {recorded:?}, measured {found:?}")) })
    })
    .await
}

/// The MIG instance of the H100 NVL has utilization by performance monitoring (GPM), and that of the A100, which works as well, has none.
async fn activity_of_instances(prometheus: &Prometheus) -> Result<()> {
    let of = |series: &str, product: &str| {
        let instances = format!("gputenancy_device_info{{node=\"{NODE}\", mode=\"mig\", product=\"{product}\"}}");
        format!("{series} and on (uuid, gpu_instance) {instances}")
    };
    let (a100, nvl) = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 NVL");
    let works = of("gputenancy_device_utilization_ratio > 0.85", nvl);
    let unknown = of("gputenancy_device_utilization_ratio", a100);
    let held = of("gputenancy_container_memory_used_bytes > 0", a100);
    eventually("utilization of the MIG instance of one board alone", PATIENCE, || async {
        let (works, unknown) = (prometheus.query(&works).await?, prometheus.query(&unknown).await?);
        let held = prometheus.query(&held).await?;
        let by_gpm = works.len() == 1 && works.iter().all(|sample| sample["metric"]["source"] == "gpm");
        let good = by_gpm && unknown.is_empty() && !held.is_empty();
        Ok(if good { Ok(()) } else { Err(format!("H100: {works:?}, A100: {unknown:?}, held: {held:?}")) })
    })
    .await
}

/// UUID of a GPU and id of a GPU instance, empty for the whole GPU.
type Device = (String, String);

/// The device and the value of a sample.
fn of_device(sample: &Value) -> Option<(Device, f64)> {
    let label = |name: &str| sample["metric"][name].as_str().unwrap_or_default().to_owned();
    let bytes = sample.pointer("/value/1")?.as_str()?.parse().ok()?;
    Some(((label("uuid"), label("gpu_instance")), bytes))
}

/// Bytes that processes hold by device, as the simulator has them.
async fn recorded(world: &World) -> Result<BTreeMap<Device, f64>> {
    let text = world.nvsim(NODE, &["show", "-o", "json"]).await?;
    let state: Value =
        serde_json::from_str(&text).map_err(|e| Error::Text { what: text.clone(), why: e.to_string() })?;
    let list = |value: &Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
    let held = |clients: &[Value]| clients.iter().filter_map(|client| client["memory"].as_f64()).sum::<f64>();
    let mut devices = BTreeMap::new();
    for gpu in list(&state, "gpus") {
        let uuid = gpu["uuid"].as_str().unwrap_or_default().to_owned();
        devices.insert((uuid.clone(), String::new()), held(&list(&gpu, "clients")));
        for instance in list(&gpu, "instances") {
            let clients: Vec<Value> = list(&instance, "devices").iter().flat_map(|mig| list(mig, "clients")).collect();
            devices.insert((uuid.clone(), instance["gi"].to_string()), held(&clients));
        }
    }
    devices.retain(|_, bytes| *bytes > 0.0);
    Ok(devices)
}

/// The alert about failed calls of NVML has never been pending or firing, although its rules were evaluated.
async fn no_failures_of_nvml(prometheus: &Prometheus) -> Result<()> {
    let evaluated = prometheus.query("prometheus_rule_group_rules{rule_group=~\".*gputenancy.devices\"} > 0").await?;
    ensure(evaluated.len() == 1, format!("rules of devices: {evaluated:?}"))?;
    let alerts = prometheus.query("present_over_time(ALERTS{alertname=\"GpuTenancyNvmlFailures\"}[1h])").await?;
    let failures = prometheus.query("gputenancy_agent_nvml_failures_total").await?;
    ensure(alerts.is_empty(), format!("{alerts:?}, failures: {failures:?}"))
}

/// An expression of a board, a rule or a page.
struct Expression {
    of: String,
    panel: String,
    text: String,
}

fn read(output: &std::process::Output) -> Result<Vec<Expression>> {
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        Some(Expression { of: parts.next()?, panel: parts.next()?, text: parts.next()? })
    });
    Ok(all.collect())
}

/// The expressions that the repository has.
async fn all() -> Result<Vec<Expression>> {
    let mut found = Vec::new();
    let check = product::root().join("integration/tools/dashboards/check");
    let variables = ["--variable", "__rate_interval=30s", "--variable", "__range=2m"];
    for args in [&["--expressions"][..], &["--queries", "docs/usage-queries.md"], &["--rules"]] {
        let command =
            tokio::process::Command::new(&check).args(args).args(variables).current_dir(product::root()).output();
        let output = command.await.map_err(|source| Error::Io { what: "the expressions".into(), source })?;
        found.extend(read(&output)?);
    }
    Ok(found)
}

/// Why the expression has no data on an A100.
fn reason(of: &Expression) -> Option<&'static str> {
    WITHOUT_DATA.lines().find_map(|line| excuses(line, of))
}

/// The reason of this row, if it is of the expression.
fn excuses<'r>(row: &'r str, of: &Expression) -> Option<&'r str> {
    let [board, panel, part, reason] = row.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let same = board == of.of && panel == of.panel && (part == "*" || of.text.contains(part));
    same.then_some(reason)
}

/// Every expression is valid, and those wanted have had data at some time.
async fn expressions(prometheus: &Prometheus, wanted: fn(Option<&str>) -> bool) -> Result<()> {
    let all = all().await?;
    ensure(all.len() > 300, format!("{} expressions", all.len()))?;
    let used = |line: &&str| all.iter().any(|of| excuses(line, of).is_some());
    let stale: Vec<&str> = WITHOUT_DATA.lines().filter(|line| !used(line)).collect();
    ensure(stale.is_empty(), format!("no such expression: {stale:?}"))?;
    let (mut missing, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|of| wanted(reason(of)));
    ensure(missing.len() > 10, format!("{} expressions to look at", missing.len()))?;
    for of in &others {
        prometheus.query(&of.text).await?;
    }
    let until = std::time::Instant::now() + Duration::from_mins(3);
    while !missing.is_empty() {
        let mut still = Vec::new();
        for of in missing {
            if prometheus.query(&of.text).await?.is_empty() {
                still.push(of);
            }
        }
        missing = still;
        if std::time::Instant::now() > until {
            break;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let shown: Vec<String> = missing.iter().map(|of| format!("{}\t{}\t{}", of.of, of.panel, of.text)).collect();
    ensure(shown.is_empty(), format!("no data:\n{}", shown.join("\n")))?;
    let failed = value(&prometheus.query("sum(prometheus_rule_evaluation_failures_total) or vector(0)").await?);
    ensure(failed == Some(0.0), format!("{failed:?} evaluations of rules failed"))
}
