//! `status`: a row for each device of a fleet with every mode of sharing.

use std::{collections::BTreeSet, process::Command, sync::Arc};

use gputenancy_crds::GpuPool;
use kubectl_gpu::{
    input::{Object, Text, documents},
    render, snapshot,
    status::{DeviceCounts, DeviceState, Filter, FleetStatus, GpuStatus, report},
    world::World,
};
use serde_json::json;

const SHARING: &str = include_str!("fixtures/sharing.yaml");

fn world(text: &str) -> World {
    World::of(documents(&[Text { name: "sharing.yaml".into(), text: text.into() }]).unwrap())
}

fn all(world: &World) -> FleetStatus {
    report(world, &Filter::default()).unwrap()
}

fn plain(report: &FleetStatus) -> String {
    anstream::adapter::strip_str(&render::status(report, false)).to_string()
}

fn gpu<'a>(report: &'a FleetStatus, node: &str, index: i32) -> &'a GpuStatus {
    let node = report.nodes.iter().find(|n| n.node == node).unwrap();
    node.gpus.iter().find(|g| g.gpu == index).unwrap()
}

fn states(gpu: &GpuStatus) -> Vec<(i32, DeviceState)> {
    gpu.devices.iter().map(|d| (d.start, d.state)).collect()
}

#[test]
fn status_shows_every_device_with_its_pod() {
    let report = all(&world(SHARING));
    insta::assert_snapshot!(plain(&report));
    insta::assert_json_snapshot!("status_as_json", report);
}

#[test]
fn status_lists_processes_by_container_with_tenant_and_memory_and_ghosts() {
    let mut world = world(SHARING);
    let node = std::sync::Arc::make_mut(world.fleet.gpu_nodes.get_mut("gpu-1").unwrap());
    let gpu = node.status.as_mut().unwrap().gpus.first_mut().unwrap();
    let device = gpu.devices_mut().find(|device| device.owner.is_some()).unwrap();
    let processes = json!([
        {"container": device.owner, "count": 2, "memory": "16896Mi"},
        {"container": {"namespace": "other", "pod": "spy", "container": "main"}, "tenant": "t", "count": 1},
        {"count": 1, "memory": "256Mi"},
    ]);
    device.processes = serde_json::from_value(processes).unwrap();
    device.more_containers = 3;
    gpu.ghost_memory = serde_json::from_value(json!([{"start": 4, "pids": [41, 42], "memory": "768Mi"}])).unwrap();
    let text = anstream::adapter::strip_str(&render::status(&all(&world), true)).to_string();
    let from = text.find("Processes by container").unwrap();
    insta::assert_snapshot!(&text[from..].split("\n\n").next().unwrap());
    assert!(text.contains("768Mi of the instance at 4 in use by no living process"), "{text}");
    assert!(!plain(&all(&world)).contains("Processes by container"));
}

#[test]
fn status_counts_each_device_once() {
    let report = all(&world(SHARING));
    let DeviceCounts { total, used, free, withdrawn } = report.devices;
    assert_eq!(total, used + free + withdrawn);
    let rows = report.nodes.iter().flat_map(|n| &n.gpus).flat_map(|g| &g.devices);
    assert_eq!(rows.filter(|d| d.state != DeviceState::Unmanaged).count(), total);
    let sum = |number: fn(&DeviceCounts) -> usize| report.pools.iter().map(|p| number(&p.devices)).sum::<usize>();
    assert_eq!((sum(|c| c.used), sum(|c| c.free), sum(|c| c.withdrawn)), (used, free, withdrawn));
}

#[test]
fn status_of_a_silent_agent_offers_nothing() {
    let report = all(&world(SHARING));
    let devices = [gpu(&report, "gpu-2", 0), gpu(&report, "gpu-2", 1)].map(states);
    assert_eq!(devices, [[(0, DeviceState::Used)], [(0, DeviceState::Withdrawn)]]);
    assert_eq!(report.silent_agents, 2, "gpu-2, and gpu-3 without an agent");
}

#[test]
fn status_of_a_marked_node_and_of_a_withdrawn_gpu_offers_nothing() {
    let mut world = world(SHARING);
    let free = |report: &FleetStatus, index: i32| {
        gpu(report, "gpu-1", index).devices.iter().filter(|d| d.state == DeviceState::Free).count()
    };
    assert!(free(&all(&world), 5) > 0 && free(&all(&world), 1) > 0);
    let node = Arc::make_mut(world.fleet.gpu_nodes.get_mut("gpu-1").unwrap());
    let state = node.status.as_ref().unwrap().gpus.iter().find(|gpu| gpu.index == 5).unwrap().uuid.clone();
    node.spec.gpus.iter_mut().find(|gpu| gpu.uuid == state).unwrap().withdrawn = Some("row remapping failed".into());
    let report = all(&world);
    assert_eq!(free(&report, 5), 0);
    assert!(free(&report, 1) > 0, "another GPU of the node");
    Arc::make_mut(world.fleet.nodes.get_mut("gpu-1").unwrap()).spec.unschedulable = true;
    let report = all(&world);
    let notes: Vec<&str> =
        gpu(&report, "gpu-1", 1).devices.iter().filter_map(|device| device.note.as_deref()).collect();
    assert_eq!(free(&report, 1), 0);
    assert!(notes.contains(&"no supply: it is cordoned"), "{notes:?}");
}

#[test]
fn status_of_a_changing_gpu_shows_withdrawn_devices() {
    use DeviceState::{Free, Used, Withdrawn};
    let report = all(&world(SHARING));
    let expected = [(0, Free), (1, Free), (2, Free), (3, Free), (4, Used), (5, Withdrawn), (6, Withdrawn)];
    assert_eq!(states(gpu(&report, "gpu-1", 5)), expected);
}

#[test]
fn canary_device_is_withdrawn_although_the_canary_pod_owns_it() {
    let canary = "gputenancy.io/canary_1_1";
    let free = "gi: 8, ci: 0, device: {resource: nvidia.com/mig-1g.10gb, allocatable: true}";
    let owned = format!(
        "gi: 8, ci: 0, device: {{resource: {canary}, allocatable: true, owner: {{namespace: s, pod: canary, container: c}}}}"
    );
    let changed = SHARING.replacen(free, &owned, 1);
    assert_ne!(changed, SHARING);
    let report = all(&world(&changed));
    let device = &gpu(&report, "gpu-1", 1).devices[1];
    assert_eq!((device.state, device.resource.as_str()), (DeviceState::Withdrawn, "nvidia.com/mig-1g.10gb"));
}

#[test]
fn bypassed_memory_limit_needs_attention() {
    let share = "pod: experiment-0, container: work}}}";
    let bypass = "pod: experiment-0, container: work}}, bypass: {uid: u, used: 30300Mi, counted: 0Mi, limit: 20352Mi}}";
    let changed = SHARING.replacen(share, bypass, 1);
    assert_ne!(changed, SHARING);
    let expected = "node gpu-1 GPU 2: pod team-c/experiment-0 bypasses the memory limit of share 0: it uses 30300Mi; the share is limited to 20352Mi (with one CUDA context) and counts 0Mi: correct its image and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool";
    assert!(all(&world(&changed)).attention.contains(&expected.to_owned()));
    // below the limit, but not counted
    let below = changed.replacen("used: 30300Mi", "used: 9900Mi", 1);
    let uncounted = "node gpu-1 GPU 2: pod team-c/experiment-0 uses memory that the limit of share 0 does not count: it uses 9900Mi of 20352Mi (with one CUDA context), and 0Mi are counted: correct its image and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool";
    assert!(all(&world(&below)).attention.contains(&uncounted.to_owned()));
    let changed = changed.replacen("limit: 20352Mi}", "limit: 20352Mi, withoutCuda: true}", 1);
    let expected = "node gpu-1 GPU 2: pod team-c/experiment-0 uses 30300Mi on share 0, which has 20352Mi (with one CUDA context), without CUDA: memory of graphics or video is not limited; give the team a profile with MIG or a whole GPU and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool";
    let found = all(&world(&changed)).attention;
    assert!(found.contains(&expected.to_owned()), "{found:?}");
}

#[test]
fn limits_of_another_product_are_listed_with_the_index_of_their_gpu() {
    let status = "    status:\n      observedGeneration";
    let limits = "    status:\n      enforcement:\n        timeSlice: None\n        mps: Server\n        fraction: None\n        otherLimits:\n        - {namespace: team-x, pod: trainer, gpu: GPU-1-0, memory: 3000Mi, compute: 30, source: hami.io/vgpu-devices-allocated}\n        - {namespace: team-x, pod: server, container: work, device: 1, memory: 2048Mi, source: CUDA_DEVICE_*_LIMIT}\n      observedGeneration";
    let changed = SHARING.replacen(status, limits, 1);
    assert_ne!(changed, SHARING);
    let text = plain(&all(&world(&changed)));
    let row = |pod: &str| {
        let line = text.lines().find(|line| line.contains(pod)).unwrap_or_else(|| panic!("{pod}: {text}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("team-x/trainer"), "gpu-1 team-x/trainer - 0 3000Mi 30 % hami.io/vgpu-devices-allocated");
    assert_eq!(row("team-x/server"), "gpu-1 team-x/server work device 1 2048Mi - CUDA_DEVICE_*_LIMIT");
    assert!(!plain(&all(&world(SHARING))).contains("Limits of other products"));
}

#[test]
fn slices_that_no_profile_can_use_are_stranded() {
    let parts = |text: &str, gpu_index: i32| {
        let report = all(&world(text));
        let parts = &gpu(&report, "gpu-1", gpu_index).unallocated;
        parts.iter().map(|u| (u.memory_slices.clone(), u.stranded)).collect::<Vec<_>>()
    };
    // 2 × 1g and 3g leave two slices of compute and of memory
    assert_eq!(parts(SHARING, 1), [(vec![2, 3], false)]);
    assert_eq!(parts(SHARING, 5), [(vec![7], true)]);
    let without_1g = SHARING.replacen("profiles: [gpu, mig-1g, mig-3g,", "profiles: [gpu, mig-3g,", 1);
    assert_eq!(parts(&without_1g, 1), [(vec![2, 3], true)]);
    assert_eq!(all(&world(&without_1g)).pools[0].stranded_slices, 3);
}

#[test]
fn stranded_slices_are_those_that_instances_cannot_cover_together() {
    // 4g at 0 leaves three slices of compute and four of memory: with 2g only, one instance at 4 fits
    let one_4g = "instances: [{start: 0, profile: 4g.40gb, gi: 1, ci: 0, device: {}}]";
    let text = SHARING
        .replace("device: {mig: {profile: 1g.10gb}}", "device: {mig: {profile: 2g.20gb}}")
        .replace("profiles: [gpu, mig-1g, mig-3g,", "profiles: [gpu, mig-1g,")
        .replace("name: 3g.40gb, slices: 3,", "name: 4g.40gb, slices: 4,");
    let from = text.rfind("        - uuid: GPU-1-5\n          index").unwrap();
    let instances = text[from..].find("instances:").unwrap() + from;
    let end = text[from..].find("  - apiVersion").unwrap() + from;
    let text = format!("{}{one_4g}\n{}", &text[..instances], &text[end..]);
    let report = all(&world(&text));
    let parts = &gpu(&report, "gpu-1", 5).unallocated;
    let found: Vec<_> = parts.iter().map(|u| (u.part.as_str(), u.stranded)).collect();
    assert_eq!(found, [("memory slices 4-5", false), ("memory slices 6-7", true)]);
}

/// The bar of a GPU of node `gpu-1`, as printed.
fn bar(report: &FleetStatus, index: i32) -> String {
    let text = plain(report);
    let start = format!("  gpu-1 GPU {index}  ");
    text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn bar_shows_slices_that_no_profile_can_use_and_counts_compute_slices() {
    let report = all(&world(SHARING));
    assert_eq!(bar(&report, 1), "[1g:####|1g:....|...............|3g:............................]");
    let without_1g = all(&world(&SHARING.replacen("profiles: [gpu, mig-1g, mig-3g,", "profiles: [gpu, mig-3g,", 1)));
    let expected = "[1g:####|1g:....|---------------|3g:............................]  2 compute slices stranded";
    assert_eq!(bar(&without_1g, 1), expected);
    assert_eq!(gpu(&without_1g, "gpu-1", 1).slices.stranded_compute_slices, 2);
}

#[test]
fn bar_of_a_node_that_gets_no_new_pods_has_no_free_slices() {
    let mut world = world(SHARING);
    Arc::make_mut(world.fleet.nodes.get_mut("gpu-1").unwrap()).spec.unschedulable = true;
    let report = all(&world);
    assert_eq!(bar(&report, 1), "[1g:####|1g:xxxx|xxxxxxxxxxxxxxx|3g:xxxxxxxxxxxxxxxxxxxxxxxxxxxx]");
    assert_eq!(bar(&report, 2), "[time-slices:##########################xxxxxxxxxxxxxxxxxxxxxxxxx]");
}

#[test]
fn bar_of_every_gpu_has_the_same_width_and_parts_that_add_up() {
    let report = all(&world(SHARING));
    let text = plain(&report);
    let widths: BTreeSet<usize> = text.lines().filter_map(|line| Some(line.len() - line.find(" [")?)).collect();
    assert_eq!(widths.len(), 1, "{text}");
    for gpu in report.nodes.iter().flat_map(|node| &node.gpus) {
        assert_eq!(gpu.slices.parts.iter().map(|part| part.slices).sum::<i32>(), gpu.slices.total, "{gpu:?}");
    }
}

#[test]
fn parts_beside_shares_are_what_the_planner_can_still_place() {
    let report = all(&world(SHARING));
    let part = |index: i32| {
        let [part] = gpu(&report, "gpu-1", index).unallocated.as_slice() else { panic!("GPU {index}") };
        (part.memory_mib, part.compute_percent, part.stranded)
    };
    // 80 GiB - 700 MiB - 3 × (20 GiB + 640 MiB); a fourth share needs 30 %
    assert_eq!(part(3), (Some(81_920 - 700 - 3 * (20_480 + 640)), Some(10), true));
    assert_eq!(part(4), (Some(81_920 - 700 - 3 * (10_240 + 640)), Some(25), false));
    assert!(gpu(&report, "gpu-1", 2).unallocated.is_empty(), "time-slices have no parts");
    // enough memory is left, and 10 % where a share needs 25 %
    let text = SHARING.replacen("memory: 10Gi, compute: 25, numbers", "memory: 10Gi, compute: 30, numbers", 1);
    let report = all(&world(&text));
    let [part] = gpu(&report, "gpu-1", 4).unallocated.as_slice() else { panic!("GPU 4") };
    assert_eq!((part.compute_percent, part.stranded), (Some(10), true));
}

#[test]
fn memory_that_a_pod_keeps_beyond_a_smaller_size_is_allocated() {
    let rest = |memory: &str| {
        let (first, known) =
            ("{number: 0, ", "device: {resource: gputenancy.io/fraction-10g, allocatable: true, clients: 1");
        let reported = format!("{first}memory: {memory}, {known}");
        let text = SHARING.replacen(&format!("{first}{known}"), &reported, 1);
        assert!(text.contains(&reported));
        gpu(&all(&world(&text)), "gpu-1", 4).unallocated[0].memory_mib.unwrap()
    };
    assert_eq!(rest("10Gi") - rest("12Gi"), 2048);
}

#[test]
fn status_by_pool_and_node_shows_these_only() {
    let world = world(SHARING);
    let nodes = |pool: Option<&str>, node: Option<&str>| {
        let filter = Filter { pool: pool.map(Into::into), node: node.map(Into::into) };
        report(&world, &filter).map(|r| {
            let names = r.nodes.iter().map(|n| n.node.clone()).collect::<Vec<_>>().join(" ");
            (names, r.pools.len())
        })
    };
    assert_eq!(nodes(Some("inference"), None), Ok(("gpu-1 gpu-2".into(), 1)));
    assert_eq!(nodes(Some("research"), None), Ok(("gpu-3".into(), 1)));
    assert_eq!(nodes(None, Some("gpu-4")), Ok(("gpu-4".into(), 0)));
    assert_eq!(nodes(Some("research"), Some("gpu-1")), Ok((String::new(), 0)));
    assert!(nodes(Some("gone"), None).unwrap_err().to_string().contains("there is no GpuPool"));
    assert!(nodes(None, Some("gone")).unwrap_err().to_string().contains("kubectl get gpunodes"));
}

#[test]
fn status_names_a_node_of_two_pools_and_silent_agents_of_the_operator() {
    let both = SHARING.replacen(
        "metadata: {name: gpu-1, labels: {example.com/gpus: a100}}",
        "metadata: {name: gpu-1, labels: {example.com/gpus: a100, example.com/more: h100}}",
        1,
    );
    let both = both.replacen(
        "{example.com/gpus: h100}}\n      profiles: [gpu]",
        "{example.com/more: h100}}\n      profiles: [gpu]",
        1,
    );
    let mut world = world(&both);
    let message = "gpu-1: the agent has no pod there";
    let stopped = "slice: node gpu-1: a failed call; no other node begins";
    let weak = "pool research offers no shares of profile turns";
    let invalid = "node gpu-1: entries `all` are no UUID";
    let mut pool: GpuPool = world.pool("research").unwrap().clone();
    pool.status = serde_json::from_value(json!({"conditions": [{
        "type": "AgentSilent", "status": "True", "reason": "Silent", "message": message, "lastTransitionTime": "2026-11-25T08:00:00Z",
    }, {
        "type": "RolledOut", "status": "False", "reason": "RolloutStopped", "message": stopped, "lastTransitionTime": "2026-11-25T08:00:00Z",
    }, {
        "type": "EnforcementMet", "status": "False", "reason": "EnforcementTooWeak", "message": weak, "lastTransitionTime": "2026-11-25T08:00:00Z",
    }, {
        "type": "NodesMarked", "status": "False", "reason": "InvalidMark", "message": invalid, "lastTransitionTime": "2026-11-25T08:00:00Z",
    }]})).unwrap();
    world.fleet.pools.retain(|p| p.metadata.name.as_deref() != Some("research"));
    world.put(Object::Pool(Box::new(pool)));
    let report = all(&world);
    let found: BTreeSet<&str> = report.attention.iter().map(String::as_str).collect();
    for message in [message, stopped, weak, invalid] {
        let message = message.strip_prefix("pool research ").unwrap_or(message);
        assert!(found.contains(format!("pool research: {message}").as_str()), "{found:?}");
    }
    assert!(
        found.iter().any(|line| line.starts_with("node gpu-1: selected by the pools inference, research")),
        "{found:?}"
    );
    assert_eq!(report.nodes[0].pool, None);
}

#[test]
fn status_names_pools_that_are_not_ready_and_tenants_that_wait_for_a_person() {
    let condition = |type_: &str, status: &str, reason: &str, message: &str| json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-25T08:00:00Z"});
    let with_pool = |reason: &str| {
        let mut world = world(SHARING);
        let pool = world.fleet.pools.iter_mut().find(|p| p.metadata.name.as_deref() == Some("research")).unwrap();
        let conditions =
            [condition("Ready", "False", reason, "its message"), condition("Stalled", "True", reason, "its message")];
        pool.status = Some(serde_json::from_value(json!({"conditions": conditions})).unwrap());
        all(&world).attention.iter().filter(|line| *line == "pool research: its message").count()
    };
    for (reason, lines) in [
        ("InvalidWindow", 1),
        ("NoNodes", 1),
        ("ProfileNotFound", 1),
        ("ChangeStuck", 1),
        ("Deleting", 1),
        ("Changing", 0),
        ("ChangePlanned", 0),
        ("NodeNotReady", 0),
    ] {
        assert_eq!(with_pool(reason), lines, "{reason}");
    }
    let with_tenant = |type_: &str, filter: &Filter| {
        let mut world = world(SHARING);
        let tenant = world.tenants.iter_mut().find(|t| t.metadata.name.as_deref() == Some("team-a")).unwrap();
        let conditions = [condition(type_, "True", "Shortage", "is guaranteed 4 and gets 1")];
        tenant.status = Some(serde_json::from_value(json!({"conditions": conditions})).unwrap());
        report(&world, filter).unwrap().attention.contains(&"tenant team-a: is guaranteed 4 and gets 1".to_owned())
    };
    let all = Filter::default();
    assert!(with_tenant("Stalled", &all));
    assert!(!with_tenant("Reconciling", &all), "it needs no person");
    let of = |pool: Option<&str>, node: Option<&str>| Filter { pool: pool.map(Into::into), node: node.map(Into::into) };
    assert!(with_tenant("Stalled", &of(Some("research"), None)), "the pool lists a profile that is guaranteed");
    assert!(!with_tenant("Stalled", &of(None, Some("gpu-1"))), "about one node");
}

#[test]
fn status_of_a_snapshot_is_that_of_its_cluster() {
    let cluster = world(SHARING);
    let again = world(&snapshot::to_yaml(&cluster).unwrap());
    assert_eq!(all(&again), all(&cluster));
}

#[test]
fn status_as_a_program_reads_a_snapshot() {
    let run = |words: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_kubectl-gpu"));
        program.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures")).env("KUBECONFIG", "/nonexistent");
        program.arg("status").args(words).args(["--snapshot", "sharing.yaml"]).output().unwrap()
    };
    let table = run(&[]);
    assert_eq!(String::from_utf8(table.stdout).unwrap(), plain(&all(&world(SHARING))));
    let json: FleetStatus = serde_json::from_slice(&run(&["-o", "json"]).stdout).unwrap();
    assert_eq!(json, all(&world(SHARING)));
    let unknown = run(&["--pool", "gone"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("--pool gone"));
}
