//! The program as a CI job runs it: files, text and exit codes, without a cluster.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::Value;

/// Result of a run.
struct Run {
    code: i32,
    out: String,
    err: String,
}

/// Runs the program in the folder of fixtures, so that messages name files and not folders.
fn kubectl_gpu(words: &str) -> Run {
    with_input(words, "")
}

fn with_input(words: &str, input: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-gpu"))
        .args(words.split_whitespace())
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"))
        // no cluster, also where the machine has a kubeconfig
        .env("KUBECONFIG", "/nonexistent")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// `plan` with the exit code that names the outcome.
fn plan(words: &str) -> Run {
    plan_with_input(words, "")
}

fn plan_with_input(words: &str, input: &str) -> Run {
    with_input(&format!("plan --exit-code {words}"), input)
}

fn json(words: &str) -> Value {
    serde_json::from_str(&kubectl_gpu(words).out).unwrap()
}

#[test]
fn plan_of_a_grown_guarantee_evicts_only_owners_of_removed_instances() {
    let run = plan("--snapshot two-teams.yaml -f grow.yaml");
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    insta::assert_snapshot!(run.out);
}

#[test]
fn plan_on_a_busy_gpu_names_what_evictions_wait_for() {
    let run = plan("--snapshot busy.yaml -f big.yaml");
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    insta::assert_snapshot!(run.out);
    let preview = json("plan --snapshot busy.yaml -f big.yaml -o json");
    assert_eq!(preview["changes"].as_array().unwrap().len(), 1);
    assert_eq!(preview["changes"][0]["destroy"].as_array().unwrap().len(), 3);
}

#[test]
fn plan_with_nvidias_mig_manager_evicts_all_pods_of_the_gpu() {
    let pool = "profiles: [mig-1g, mig-3g]";
    let snapshot = include_str!("fixtures/busy.yaml").replace(pool, &format!("{pool}\n      partitioner: MigManager"));
    let snapshot =
        snapshot.replace("    spec:\n      gpus:\n", "    spec:\n      partitioner: MigManager\n      gpus:\n");
    assert_eq!(snapshot.matches("partitioner: MigManager").count(), 2);
    let run = plan_with_input("--snapshot - -f big.yaml", &snapshot);
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    insta::assert_snapshot!(run.out);
    let preview: Value =
        serde_json::from_str(&with_input("plan --snapshot - -f big.yaml -o json", &snapshot).out).unwrap();
    let change = &preview["changes"][0];
    assert_eq!((change["evicts"].as_array().unwrap().len(), preview["evictions"].as_array().unwrap().len()), (6, 6));
    assert!(change["waitsFor"][0].as_str().unwrap().contains("4711"), "{change}");
}

#[test]
fn plan_without_evictions_exits_with_2() {
    let run = plan("--snapshot two-teams.yaml -f grow-a-little.yaml");
    assert_eq!((run.code, run.err.as_str()), (2, ""));
    insta::assert_snapshot!(run.out);
}

#[test]
fn plan_with_a_closed_window_shows_the_next_opening() {
    let run = plan("--snapshot two-teams.yaml -f windows.yaml grow.yaml");
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    insta::assert_snapshot!(run.out);
    let preview = json("plan --snapshot two-teams.yaml -f windows.yaml grow.yaml -o json");
    assert_eq!(preview["pools"][0]["windowOpen"], false);
    assert_eq!(preview["pools"][0]["nextWindow"]["start"], "2026-11-28T01:00:00Z");
}

#[test]
fn plan_with_an_unreadable_window_exits_with_4() {
    let manifest = include_str!("fixtures/windows.yaml").replace("Europe/Berlin", "Europe/Utopia");
    let run = plan_with_input("--snapshot two-teams.yaml -f -", &manifest);
    assert_eq!(run.code, 4);
    assert!(run.out.contains("InvalidWindow"), "{}", run.out);
}

#[test]
fn plan_from_a_snapshot_without_time_does_not_evaluate_windows() {
    let snapshot = include_str!("fixtures/two-teams.yaml").replace("takenAt: 2026-11-21T08:00:00Z\n", "");
    let run = plan_with_input("--snapshot - -f windows.yaml -o json", &snapshot);
    let preview: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(preview["pools"][0].get("windowOpen"), None);
    let wrong =
        with_input("plan --snapshot -", "apiVersion: gputenancy.io/v1alpha1\nkind: PlanSnapshot\ntakenAt: noon\n");
    assert!(
        wrong.code == 1 && wrong.err.contains("(standard input):3: ") && wrong.err.contains("takenAt"),
        "{}",
        wrong.err
    );
}

#[test]
fn plan_of_unchanged_manifests_has_nothing_to_do() {
    let run = plan("--snapshot two-teams.yaml -f same.yaml");
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    insta::assert_snapshot!(run.out);
    assert_eq!(plan("--snapshot two-teams.yaml").code, 0);
}

#[test]
fn plan_with_an_unmet_guarantee_exits_with_4() {
    let run = plan("--snapshot two-teams.yaml -f too-much.yaml");
    assert_eq!(run.code, 4);
    insta::assert_snapshot!(run.out);
}

#[test]
fn plan_with_an_unknown_profile_names_the_remedy() {
    let run = plan("--snapshot two-teams.yaml -f unknown-profile.yaml");
    assert_eq!(run.code, 4);
    assert!(run.out.contains("create GpuProfile mig-5g"), "{}", run.out);
}

#[test]
fn plan_refuses_to_delete_a_protected_tenant() {
    let run = plan("--snapshot two-teams.yaml --delete gputenant/team-a");
    assert_eq!(run.code, 4);
    assert!(run.out.contains("set spec.deletionProtection to false"), "{}", run.out);
    let run = plan("--snapshot two-teams.yaml --delete gputenant/team-x");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("there is no GpuTenant team-x"), "{}", run.err);
}

#[test]
fn plan_refuses_to_delete_a_profile_in_use_and_names_its_users() {
    // sentences are wrapped
    let out = |words: &str| plan(words).out.split_whitespace().collect::<Vec<_>>().join(" ");
    let run = out("--snapshot two-teams.yaml --delete gpuprofile/mig-1g");
    let refusal = "GpuProfile mig-1g is in use by GpuPool inference, GpuTenant team-a: remove it from their spec.gpus and spec.profiles first";
    assert!(run.contains(refusal), "{}", run);
    // its users are deleted in the same plan
    let run = out(
        "--snapshot two-teams.yaml --delete gpuprofile/mig-3g --delete gpupool/inference --delete gputenant/team-b",
    );
    assert!(run.contains("GpuTenant team-b is protected"), "{}", run);
    assert!(run.contains("GpuProfile mig-3g is in use by GpuTenant team-b: "), "{}", run);
}

#[test]
fn plan_with_prune_deletes_objects_without_manifest() {
    let preview = json("plan --snapshot two-teams.yaml -f grow-a-little.yaml --prune -o json");
    let deleted: Vec<&Value> = preview["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["action"] == "Delete")
        .map(|m| &m["name"])
        .collect();
    assert_eq!(deleted, ["team-a"], "only of the kinds that the manifests have");
}

#[test]
fn plan_marks_known_problems_and_can_ignore_them() {
    let mended = plan("--snapshot two-teams.yaml too-much.yaml -f same.yaml");
    assert_eq!(mended.code, 0, "the manifests mend it: {}", mended.out);
    let known = plan("--snapshot two-teams.yaml too-much.yaml --ignore-known");
    assert_eq!(known.code, 3, "{}", known.out);
    assert!(known.out.contains("also without these manifests"), "{}", known.out);
    assert_eq!(plan("--snapshot two-teams.yaml too-much.yaml").code, 4);
}

#[test]
fn plan_reports_every_mistake_with_file_line_and_field() {
    let run = plan("--snapshot two-teams.yaml -f wrong.yaml");
    assert_eq!((run.code, run.out.as_str()), (1, ""));
    insta::assert_snapshot!(run.err);
    let run = plan("--snapshot two-teams.yaml -f broken.yaml missing.yaml");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("missing.yaml: No such file"), "{}", run.err);
    let run = plan("--snapshot two-teams.yaml -f broken.yaml");
    assert!(run.err.contains("broken.yaml:2: "), "{}", run.err);
}

#[test]
fn plan_reads_manifests_from_standard_input() {
    let manifest = include_str!("fixtures/grow.yaml");
    let run = plan_with_input("--snapshot two-teams.yaml -f - -o json", manifest);
    let preview: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, &preview["outcome"]), (3, &Value::from("Evictions")));
    assert_eq!(preview["manifests"][0]["source"], "(standard input):1");
}

#[test]
fn plan_without_exit_code_flag_exits_with_0() {
    for manifest in ["same.yaml", "grow-a-little.yaml", "grow.yaml", "too-much.yaml"] {
        assert_eq!(kubectl_gpu(&format!("plan --snapshot two-teams.yaml -f {manifest}")).code, 0, "{manifest}");
    }
}

#[test]
fn usage_and_input_errors_exit_with_1() {
    for words in [
        "",
        "plan --no-such-flag",
        "plan --prune",
        "plan -o toml",
        "plan --exit-code --snapshot missing.yaml",
        "plan --exit-code --snapshot two-teams.yaml -f wrong.yaml",
        "lint",
        "tenant",
        "no-such-command",
    ] {
        let run = kubectl_gpu(words);
        assert!(run.code == 1 && !run.err.is_empty(), "{words}: {} {}", run.code, run.err);
    }
    for words in ["--help", "--version", "plan --help"] {
        assert_eq!(kubectl_gpu(words).code, 0, "{words}");
    }
}

#[test]
fn plan_without_a_cluster_names_the_flags() {
    let run = kubectl_gpu("plan -f grow.yaml");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("--snapshot"), "{}", run.err);
}

#[test]
fn plan_as_json_and_yaml_is_the_same_document() {
    insta::assert_snapshot!(kubectl_gpu("plan --snapshot two-teams.yaml -f grow.yaml -o json").out);
    let yaml = plan("--snapshot two-teams.yaml -f grow.yaml -o yaml");
    let from_yaml: Value = serde_saphyr::from_str(&yaml.out).unwrap();
    assert_eq!((yaml.code, from_yaml), (3, json("plan --snapshot two-teams.yaml -f grow.yaml -o json")));
}

#[test]
fn plan_reads_the_samples() {
    let run = plan("--snapshot two-teams.yaml -f ../../../../samples -o json");
    assert_eq!((run.code, run.err.as_str()), (4, ""), "the fixture has no node for the samples' pool");
}

#[test]
fn output_to_a_pipe_has_no_colours() {
    for words in ["plan --snapshot two-teams.yaml -f grow.yaml", "plan -f wrong.yaml"] {
        let run = kubectl_gpu(words);
        assert!(!run.out.contains('\x1b') && !run.err.contains('\x1b'), "{words}: {}{}", run.out, run.err);
    }
}

#[test]
fn plan_lines_fit_a_hundred_columns() {
    for words in ["busy.yaml -f big.yaml", "two-teams.yaml -f grow.yaml", "two-teams.yaml -f windows.yaml grow.yaml"] {
        let run = kubectl_gpu(&format!("plan --snapshot {words}"));
        let long: Vec<&str> = run.out.lines().filter(|l| l.chars().count() > 100).collect();
        assert!(long.is_empty(), "{long:?}");
    }
}

#[test]
fn documented_output_is_current() {
    let page = include_str!("../../../docs/kubectl-gpu.md");
    let blocks: Vec<&str> = page.split("```").filter(|b| b.starts_with("\n$ kubectl gpu plan")).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let (command, printed) = block.trim_start().split_once('\n').unwrap();
        let run = kubectl_gpu(command.trim_start_matches("$ kubectl gpu "));
        assert_eq!(printed, run.out + &run.err, "{command}");
    }
}
