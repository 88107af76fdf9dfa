//! `catalog`: every mode with its contract, and pods to copy that tenants may create.

use std::process::Command;

use gputenancy_crds::GpuProfile;
use kubectl_gpu::{
    catalog::{Catalog, catalog},
    input::{Object, Text, documents},
    lint::{self, DEFAULT_POLICIES, Options, Policies},
    render,
    status::DeviceCounts,
    world::World,
};
use serde_json::json;

const SHARING: &str = include_str!("fixtures/sharing.yaml");

fn text(name: &str, text: &str) -> Text {
    Text { name: name.into(), text: text.into() }
}

fn world(yaml: &str) -> World {
    World::of(documents(&[text("sharing.yaml", yaml)]).unwrap())
}

fn all(world: &World) -> Catalog {
    catalog(world, &[], Vec::new()).unwrap()
}

fn plain(catalog: &Catalog) -> String {
    anstream::adapter::strip_str(&render::catalog(catalog)).to_string()
}

#[test]
fn catalog_describes_every_mode() {
    let catalog = all(&world(SHARING));
    insta::assert_snapshot!(plain(&catalog));
    insta::assert_snapshot!("catalog_as_markdown", render::catalog_page(&catalog));
    insta::assert_json_snapshot!("catalog_as_json", catalog);
}

#[test]
fn catalog_is_sorted_by_isolation() {
    let catalog = all(&world(SHARING));
    let modes: Vec<&str> = catalog.entries.iter().map(|e| e.mode.as_str()).collect();
    assert_eq!(modes, ["whole", "mig", "mig", "mps", "fraction", "timeSlice"]);
    let levels: Vec<usize> = catalog.trust.iter().map(|level| level.profiles.len()).collect();
    assert_eq!(levels, [3, 5, 6], "shares need trust, and mps-20g the most");
}

#[test]
fn catalog_never_calls_an_unenforced_limit_isolation() {
    let catalog = all(&world(SHARING));
    let entry = |mode: &str| catalog.entries.iter().find(|e| e.mode == mode).unwrap();
    assert_eq!((entry("fraction").isolation.as_str(), entry("timeSlice").isolation.as_str()), ("None", "None"));
    assert!(entry("fraction").not_isolated.iter().any(|s| s.contains("avoids it is not held")));
    for mode in ["fraction", "timeSlice", "mps"] {
        assert!(entry(mode).not_isolated.iter().any(|s| s.to_lowercase().contains("fault of one pod")), "{mode}");
        assert!(entry(mode).needs_acknowledgement, "{mode}");
        assert_eq!(entry(mode).isolated.is_empty(), mode != "mps", "{mode}");
    }
}

#[test]
fn catalog_says_what_a_pilot_has_shown_and_what_time_slices_of_an_instance_isolate() {
    let slices = "
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: slices}
spec:
  device: {timeSlice: {replicas: 4, of: {mig: {profile: 3g.40gb}}}}
  support: {expected: e, incident: i}
  sharing:
    production: true
    evidence:
      p99Milliseconds: 40
      memoryHeadroomPercent: 20
      latencies: [{pods: 1, p99Milliseconds: 11}, {pods: 4, p99Milliseconds: 40}]
      throughputPercent: 180
      failure: the others ended with it
      measuredAt: 2026-11-24
";
    let catalog = all(&world(&format!("{SHARING}---{slices}")));
    let of = |name: &str| catalog.entries.iter().find(|e| e.profile == name).unwrap();
    let (one, other) = (of("slices"), of("shared-4"));
    assert_eq!(
        (one.device.as_str(), one.mode.as_str()),
        ("one of 4 time-slices of a MIG instance 3g.40gb", "timeSlice")
    );
    assert_eq!(one.resource_name, "nvidia.com/mig-3g.40gb.shared");
    assert!(one.isolated[0].contains("from the other instances") && one.needs_acknowledgement);
    let shown = "production, measured on 2026-11-24: p99 40 ms, 20 % of the memory free, p99 with 1 pod 11 ms, p99 with 4 pods 40 ms, \
                 180 % of the throughput of one pod alone; when a program failed: the others ended with it";
    assert_eq!(one.maturity.as_deref(), Some(shown));
    assert_eq!(other.maturity.as_deref(), Some("trial: no measurement is recorded"));
    assert_eq!(of("gpu").maturity, None);
}

/// The pods of the catalog in the namespace of a tenant with every profile and the highest trust.
#[test]
fn pod_templates_pass_the_admission_policies() {
    let everything = "
apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: t}
spec:
  namespaces: [{name: t}]
  trust: Trusted
  sharing: {acknowledgedBy: lead@example.com}
  gpus: [{profile: gpu, count: 1}, {profile: mig-1g, count: 1}, {profile: mig-3g, count: 1}, {profile: shared-4, count: 1},
    {profile: mps-20g, count: 1}, {profile: fraction-10g, count: 1}]
";
    let policies = Policies::read(&[text("policies", DEFAULT_POLICIES)]).unwrap();
    let teams = format!("{SHARING}---{everything}");
    let findings = |pod: &str| {
        let texts = [text("teams.yaml", &teams), text("pod.yaml", pod)];
        let report = lint::lint(&texts, Options { namespace: Some("t"), policies: &policies });
        report.findings.into_iter().filter(|f| f.file == "pod.yaml").collect::<Vec<_>>()
    };
    for entry in all(&world(SHARING)).entries {
        assert_eq!(findings(&entry.pod_template), [], "{}", entry.profile);
        let limit = format!("{}: 1\n", entry.resource_name);
        assert!(entry.pod_template.contains(&limit), "{}", entry.profile);
        // the check sees the pod: two of a profile with one device are refused
        assert_ne!(findings(&entry.pod_template.replace(&limit, &limit.replace('1', "2"))), [], "{}", entry.profile);
        assert!(entry.pod_template.contains("{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}"));
    }
}

#[test]
fn catalog_shows_what_the_operator_counted() {
    let mut world = world(SHARING);
    let before = all(&world).entries[0].devices;
    assert_eq!(
        before,
        Some(DeviceCounts { total: 3, used: 2, free: 0, withdrawn: 1 }),
        "from the GPU nodes of the file"
    );
    let mut gpu: GpuProfile = world.profile("gpu").unwrap().clone();
    gpu.status =
        serde_json::from_value(json!({"capacity": {"total": 9, "allocated": 4, "free": 3, "unschedulable": 2}}))
            .unwrap();
    world.fleet.profiles.retain(|p| p.metadata.name.as_deref() != Some("gpu"));
    world.put(Object::Profile(Box::new(gpu)));
    assert_eq!(all(&world).entries[0].devices, Some(DeviceCounts { total: 9, used: 4, free: 3, withdrawn: 2 }));
    world.fleet.gpu_nodes.clear();
    let unknown = all(&world);
    assert_eq!(unknown.entries[1].devices, None);
    assert!(plain(&unknown).contains("devices: not known"));
}

#[test]
fn catalog_without_the_right_to_read_pools_says_so() {
    let mut world = world(SHARING);
    world.fleet.pools.clear();
    let hidden = catalog(&world, &[], vec!["GpuPools".into()]).unwrap();
    assert_eq!(hidden.entries[0].pools, None);
    assert!(plain(&hidden).contains("pools: not visible to you"));
    assert!(render::catalog_page(&hidden).contains("without the right to read: GpuPools"));
    assert!(plain(&all(&world)).contains("pools: none: no pod gets it"));
}

#[test]
fn catalog_of_one_profile_shows_only_this() {
    let world = world(SHARING);
    let one = catalog(&world, &["mig-1g".into()], Vec::new()).unwrap();
    assert_eq!(one.entries.iter().map(|e| e.profile.as_str()).collect::<Vec<_>>(), ["mig-1g"]);
    let unknown = catalog(&world, &["mig-9g".into()], Vec::new()).unwrap_err().to_string();
    assert!(unknown.contains("mig-9g") && unknown.contains("kubectl get gpuprofiles"), "{unknown}");
}

#[test]
fn markdown_keeps_a_contract_in_its_line() {
    let text =
        SHARING.replacen("incident: Less memory than the data sheet says.", r#"incident: "<b>Less\n\n# memory""#, 1);
    assert_ne!(text, SHARING);
    let page = render::catalog_page(&all(&world(&text)));
    assert!(page.contains("- incident: &lt;b>Less # memory\n"), "{page}");
}

#[test]
fn catalog_as_a_program_reads_a_snapshot_in_every_format() {
    let run = |output: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_kubectl-gpu"));
        program.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures")).env("KUBECONFIG", "/nonexistent");
        let output = program.args(["catalog", "--snapshot", "sharing.yaml", "-o", output]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = all(&world(SHARING));
    assert_eq!(run("table"), plain(&expected));
    assert_eq!(run("markdown"), render::catalog_page(&expected));
    assert_eq!(serde_json::from_str::<Catalog>(&run("json")).unwrap(), expected);
    assert!(run("yaml").starts_with("apiVersion: gputenancy.io/v1alpha1\nkind: Catalog\n"));
}
