//! The program as a CI job runs it: files in, text and exit code out, no cluster.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that panics says what it found")]

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::Value;

/// What a run of the program leaves behind.
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
        // no cluster, whatever the machine of the test knows
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

fn json(words: &str) -> Value {
    serde_json::from_str(&kubectl_gpu(words).out).unwrap()
}

#[test]
fn a_grown_guarantee_evicts_only_whom_it_must() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f grow.yaml");
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    insta::assert_snapshot!(run.out);
}

#[test]
fn a_busy_gpu_gives_up_three_slots_and_says_what_each_waits_for() {
    let run = kubectl_gpu("plan --snapshot busy.yaml -f big.yaml");
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    insta::assert_snapshot!(run.out);
    let preview = json("plan --snapshot busy.yaml -f big.yaml -o json");
    assert_eq!(preview["changes"].as_array().unwrap().len(), 1);
    assert_eq!(preview["changes"][0]["destroy"].as_array().unwrap().len(), 3);
}

#[test]
fn where_nvidias_mig_manager_carves_everybody_on_the_gpu_is_named() {
    let pool = "profiles: [mig-1g, mig-3g]";
    let snapshot = include_str!("fixtures/busy.yaml").replace(pool, &format!("{pool}\n      partitioner: MigManager"));
    let snapshot =
        snapshot.replace("    spec:\n      gpus:\n", "    spec:\n      partitioner: MigManager\n      gpus:\n");
    assert_eq!(snapshot.matches("partitioner: MigManager").count(), 2);
    let run = with_input("plan --snapshot - -f big.yaml", &snapshot);
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    insta::assert_snapshot!(run.out);
    let preview: Value =
        serde_json::from_str(&with_input("plan --snapshot - -f big.yaml -o json", &snapshot).out).unwrap();
    let change = &preview["changes"][0];
    assert_eq!((change["evicts"].as_array().unwrap().len(), preview["evictions"].as_array().unwrap().len()), (6, 6));
    assert!(change["waitsFor"][0].as_str().unwrap().contains("4711"), "{change}");
}

#[test]
fn changes_that_move_nobody_have_an_exit_code_of_their_own() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f grow-a-little.yaml");
    assert_eq!((run.code, run.err.as_str()), (2, ""));
    insta::assert_snapshot!(run.out);
}

#[test]
fn a_closed_window_is_told_with_the_next_opening() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f windows.yaml grow.yaml");
    assert_eq!((run.code, run.err.as_str()), (3, ""));
    insta::assert_snapshot!(run.out);
    let preview = json("plan --snapshot two-teams.yaml -f windows.yaml grow.yaml -o json");
    assert_eq!(preview["pools"][0]["windowOpen"], false);
    assert_eq!(preview["pools"][0]["nextWindow"]["start"], "2026-11-28T01:00:00Z");
}

#[test]
fn a_window_that_cannot_be_read_is_refused() {
    let manifest = include_str!("fixtures/windows.yaml").replace("Europe/Berlin", "Europe/Utopia");
    let run = with_input("plan --snapshot two-teams.yaml -f -", &manifest);
    assert_eq!(run.code, 4);
    assert!(run.out.contains("WindowUnreadable"), "{}", run.out);
}

#[test]
fn a_snapshot_without_a_time_leaves_windows_open_to_the_reader() {
    let snapshot = include_str!("fixtures/two-teams.yaml").replace("takenAt: 2026-11-21T08:00:00Z\n", "");
    let run = with_input("plan --snapshot - -f windows.yaml -o json", &snapshot);
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
fn manifests_as_the_cluster_has_them_leave_nothing_to_do() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f same.yaml");
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    insta::assert_snapshot!(run.out);
    assert_eq!(kubectl_gpu("plan --snapshot two-teams.yaml").code, 0);
}

#[test]
fn a_guarantee_that_cannot_be_met_is_said() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f too-much.yaml");
    assert_eq!(run.code, 4);
    insta::assert_snapshot!(run.out);
}

#[test]
fn an_unknown_profile_is_refused_with_the_remedy() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f unknown-profile.yaml");
    assert_eq!(run.code, 4);
    assert!(run.out.contains("create GpuProfile mig-5g"), "{}", run.out);
}

#[test]
fn a_protected_tenant_is_not_deleted() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml --delete gputenant/team-a");
    assert_eq!(run.code, 4);
    assert!(run.out.contains("set spec.deletionProtection to false"), "{}", run.out);
    let run = kubectl_gpu("plan --snapshot two-teams.yaml --delete gputenant/team-x");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("there is no GpuTenant team-x"), "{}", run.err);
}

#[test]
fn pruning_deletes_what_no_manifest_has() {
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
fn what_was_unmet_before_is_marked_and_may_be_passed_over() {
    let mended = kubectl_gpu("plan --snapshot two-teams.yaml too-much.yaml -f same.yaml");
    assert_eq!(mended.code, 0, "the manifests mend it: {}", mended.out);
    let known = kubectl_gpu("plan --snapshot two-teams.yaml too-much.yaml --ignore-known");
    assert_eq!(known.code, 3, "{}", known.out);
    assert!(known.out.contains("also without these manifests"), "{}", known.out);
    assert_eq!(kubectl_gpu("plan --snapshot two-teams.yaml too-much.yaml").code, 4);
}

#[test]
fn every_mistake_is_told_with_file_line_and_field() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f wrong.yaml");
    assert_eq!((run.code, run.out.as_str()), (1, ""));
    insta::assert_snapshot!(run.err);
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f broken.yaml missing.yaml");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("missing.yaml: No such file"), "{}", run.err);
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f broken.yaml");
    assert!(run.err.contains("broken.yaml:2: "), "{}", run.err);
}

#[test]
fn manifests_are_read_from_standard_input_too() {
    let manifest = include_str!("fixtures/grow.yaml");
    let run = with_input("plan --snapshot two-teams.yaml -f - -o json", manifest);
    let preview: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, &preview["outcome"]), (3, &Value::from("Evictions")));
    assert_eq!(preview["manifests"][0]["source"], "(standard input):1");
}

#[test]
fn without_a_cluster_the_error_names_the_flags() {
    let run = kubectl_gpu("plan -f grow.yaml");
    assert_eq!(run.code, 1);
    assert!(run.err.contains("--snapshot"), "{}", run.err);
}

#[test]
fn json_and_yaml_say_the_same() {
    insta::assert_snapshot!(kubectl_gpu("plan --snapshot two-teams.yaml -f grow.yaml -o json").out);
    let yaml = kubectl_gpu("plan --snapshot two-teams.yaml -f grow.yaml -o yaml");
    let from_yaml: Value = serde_saphyr::from_str(&yaml.out).unwrap();
    assert_eq!((yaml.code, from_yaml), (3, json("plan --snapshot two-teams.yaml -f grow.yaml -o json")));
}

#[test]
fn the_samples_of_the_repository_are_right() {
    let run = kubectl_gpu("plan --snapshot two-teams.yaml -f ../../../samples -o json");
    assert_eq!((run.code, run.err.as_str()), (4, ""), "the fixture has no node for the samples' pool");
}

#[test]
fn a_pipe_gets_no_colours() {
    for words in ["plan --snapshot two-teams.yaml -f grow.yaml", "plan -f wrong.yaml"] {
        let run = kubectl_gpu(words);
        assert!(!run.out.contains('\x1b') && !run.err.contains('\x1b'), "{words}: {}{}", run.out, run.err);
    }
}

#[test]
fn lines_fit_a_hundred_columns() {
    for words in ["busy.yaml -f big.yaml", "two-teams.yaml -f grow.yaml", "two-teams.yaml -f windows.yaml grow.yaml"] {
        let run = kubectl_gpu(&format!("plan --snapshot {words}"));
        let long: Vec<&str> = run.out.lines().filter(|l| l.chars().count() > 100).collect();
        assert!(long.is_empty(), "{long:?}");
    }
}

#[test]
fn the_documented_output_is_real() {
    let page = include_str!("../../docs/kubectl-gpu.md");
    let blocks: Vec<&str> = page.split("```").filter(|b| b.starts_with("\n$ kubectl gpu plan")).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let (command, printed) = block.trim_start().split_once('\n').unwrap();
        let run = kubectl_gpu(command.trim_start_matches("$ kubectl gpu "));
        assert_eq!(printed, run.out + &run.err, "{command}");
    }
}
