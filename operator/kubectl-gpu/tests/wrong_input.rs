//! Each subcommand with input that cannot work: a sentence with object, cause and remedy, exit code 1, and no text of Rust.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    net::TcpListener,
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
};

use serde_json::json;

const SHARING: &str = "tests/fixtures/sharing.yaml";

/// What reads a cluster, with its arguments.
const READERS: [(&str, &[&str]); 8] = [
    ("plan", &["-f", "tests/fixtures/same.yaml"]),
    ("snapshot", &[]),
    ("changes", &[]),
    ("status", &[]),
    ("catalog", &[]),
    ("tenant", &["team-a"]),
    ("kubeconfig", &["team-a"]),
    ("connect", &["team-a"]),
];

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-gpu"));
    command.env_remove("COLUMNS").env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST");
    command.env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

/// Standard error of a run that fails as it should.
fn refused(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    for rust in ["panicked", "ApiError", "ServiceError", "client error", "Status {", "Some(", "(os error"] {
        assert!(!text.contains(rust), "{rust} in {text}");
    }
    assert!(text.starts_with("error: ") && text.lines().count() == 1, "{text}");
    text
}

/// A kubeconfig for a server at this address.
fn kubeconfig(folder: &tempfile::TempDir, server: &str) -> PathBuf {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
    });
    let file = folder.path().join("config");
    std::fs::write(&file, config.to_string()).unwrap();
    file
}

/// Each reader against a server.
fn against(server: &str) -> Vec<(&'static str, String)> {
    let folder = tempfile::tempdir().unwrap();
    let file = kubeconfig(&folder, server).display().to_string();
    let one = |(verb, args): &(&'static str, &[&str])| {
        let flags = [*verb, "--kubeconfig", &file, "--request-timeout", "1s"];
        (*verb, refused(&run(&[&flags, *args].concat())))
    };
    READERS.iter().map(one).collect()
}

/// A server that gives each request this answer. Its thread ends with the test program.
fn answering(code: &str, body: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!("HTTP/1.1 {code}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            thread::spawn(move || {
                let mut request = [0; 8192];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    address
}

#[test]
fn server_that_refuses_connections_is_named_with_the_remedy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for (verb, text) in against(&server) {
        let cause = format!("no answer from the API server at {server}: Connection refused; check that it runs");
        assert!(text.contains(&cause), "{verb}: {text}");
    }
}

#[test]
fn server_that_does_not_answer_is_named_with_the_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    for (verb, text) in against(&server) {
        let cause = format!("no answer from the API server at {server}: nothing within 1 s");
        assert!(text.contains(&cause), "{verb}: {text}");
    }
}

#[test]
fn missing_rights_are_named_by_the_api_server() {
    let message = "things is forbidden: User \"ann\" cannot list things";
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message});
    for (verb, text) in against(&answering("403 Forbidden", &status.to_string())) {
        let expected = match verb {
            "tenant" => "you may not read GpuTenant team-a, and none of the namespaces default, team-a is",
            "kubeconfig" | "connect" => {
                "you may not read GpuTenant team-a: those in its spec.owners and spec.viewers may"
            }
            "plan" | "snapshot" => {
                "listing gpuprofiles, gpupools, gputenants, gpunodes, nodes, resourceslices, pods, poddisruptionbudgets: things is forbidden: User \"ann\" cannot list things; have an administrator grant list in the whole cluster: ClusterRole gputenancy:viewer"
            }
            "status" => "listing gpuprofiles, gpupools, gputenants, gpunodes, nodes: things is forbidden: ",
            _ => message,
        };
        assert!(text.contains(expected), "{verb}: {text}");
    }
}

#[test]
fn credentials_that_are_not_accepted_are_called_so() {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": 401, "message": "Unauthorized"});
    for (verb, text) in against(&answering("401 Unauthorized", &status.to_string())) {
        assert!(text.contains("the API server does not accept the credentials: Unauthorized"), "{verb}: {text}");
    }
}

#[test]
fn page_of_a_proxy_is_not_taken_for_an_answer_of_kubernetes() {
    for (verb, text) in against(&answering("502 Bad Gateway", &"<html>\n<h1>Bad Gateway</h1>\n".repeat(40))) {
        assert!(text.contains("code 502, which is not from Kubernetes: <html>"), "{verb}: {text}");
        assert!(text.len() < 400, "{verb}: {text}");
    }
}

#[test]
fn missing_kubeconfig_and_unknown_context_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = kubeconfig(&folder, "http://127.0.0.1:1").display().to_string();
    for (verb, args) in READERS {
        let text = refused(&run(&[&[verb, "--kubeconfig", "/no/such/file"], args].concat()));
        assert!(text.contains("no cluster: reading /no/such/file: No such file"), "{verb}: {text}");
        let text = refused(&run(&[&[verb, "--kubeconfig", &file, "--context", "other"], args].concat()));
        assert!(text.contains("has no context other: kubectl config get-contexts lists them"), "{verb}: {text}");
        let text = refused(&run(&[&[verb], args].concat()));
        assert!(text.contains("name one with --kubeconfig and --context"), "{verb}: {text}");
    }
}

#[test]
fn server_without_a_scheme_and_groups_without_a_user_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for server in ["127.0.0.1", "127.0.0.1:6443", "localhost:6443"] {
        let file = kubeconfig(&folder, server).display().to_string();
        for (verb, args) in READERS {
            let text = refused(&run(&[&[verb, "--kubeconfig", &file], args].concat()));
            assert!(text.contains(&format!("has no scheme: write https://{server}")), "{verb}: {text}");
        }
    }
    let file = kubeconfig(&folder, "http://127.0.0.1:1").display().to_string();
    for (verb, args) in READERS {
        let text = refused(&run(&[&[verb, "--kubeconfig", &file, "--as-group", "team-a"], args].concat()));
        assert!(text.contains("--as-group needs a user: add --as"), "{verb}: {text}");
    }
}

#[test]
fn missing_file_and_empty_folder_are_refused() {
    let empty = tempfile::tempdir().unwrap();
    let folder = empty.path().display().to_string();
    let verbs: [&[&str]; 4] = [&["plan", "-f"], &["status", "--snapshot"], &["catalog", "--snapshot"], &["lint"]];
    for verb in verbs {
        let text = refused(&run(&[verb, &["/no/such/file"]].concat()));
        assert!(text.contains("/no/such/file: No such file"), "{verb:?}: {text}");
        let text = refused(&run(&[verb, &[&*folder]].concat()));
        assert!(text.contains(&format!("{folder}: no file with the ending .yaml, .yml or .json")), "{verb:?}: {text}");
    }
    let pruned = ["plan", "--snapshot", SHARING, "--prune", "--exit-code", "-f", &folder];
    assert!(refused(&run(&pruned)).contains("no file with the ending"), "nothing may be pruned for an empty folder");
}

#[test]
fn input_without_an_object_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let empty = [file("empty.yaml", ""), file("comments.yaml", "# nothing\n---\n"), "-".to_owned()];
    let verbs: [&[&str]; 3] = [&["plan", "--snapshot", SHARING, "-f"], &["status", "--snapshot"], &["lint"]];
    for (verb, input) in verbs.iter().flat_map(|verb| empty.iter().map(move |input| (verb, input))) {
        let output = run(&[*verb, &[input.as_str()]].concat());
        let text = [output.stdout, output.stderr].map(|part| String::from_utf8(part).unwrap()).concat();
        assert!(
            output.status.code() == Some(1) && text.contains("there is no object in the input"),
            "{verb:?}: {text}"
        );
    }
    let others = file("others.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n");
    let text = refused(&run(&["plan", "--snapshot", SHARING, "--prune", "--exit-code", "-f", &others]));
    assert!(text.contains("--prune deletes objects of the kinds that the manifests have"), "{text}");
}

/// A plugin for credentials is not run by this program alone: what it says is shown, and its variables are not.
#[test]
fn failing_credential_plugin_is_named_without_its_variables() {
    let folder = tempfile::tempdir().unwrap();
    let file = kubeconfig(&folder, "http://127.0.0.1:1");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let plugin = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "sh",
        "args": ["-c", "echo the login has expired >&2; exit 3"], "env": [{"name": "TOKEN", "value": "secret"}],
    });
    config["users"] = json!([{"name": "u", "user": {"exec": plugin}}]);
    std::fs::write(&file, config.to_string()).unwrap();
    let text = refused(&run(&["status", "--kubeconfig", &file.display().to_string()]));
    for words in
        ["the credential plugin sh of the kubeconfig failed (exit status: 3)", "the login has expired", "log in again"]
    {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(!text.contains("secret"), "{text}");
}

/// What prints without a cluster, with its arguments.
const PRINTERS: [&[&str]; 5] = [
    &["status", "--snapshot", SHARING],
    &["catalog", "--snapshot", SHARING],
    &["plan", "--snapshot", SHARING, "-f", "tests/fixtures/sharing.yaml"],
    &["catalog", "--snapshot", SHARING, "-o", "markdown"],
    &["lint", "tests/fixtures/sharing.yaml"],
];

#[test]
fn full_disk_is_reported_and_a_closed_pipe_is_not() {
    for args in PRINTERS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = program().args(args).stdout(full).output().unwrap();
        let text = refused(&output);
        assert!(text.contains("writing to standard output: No space left on device"), "{args:?}: {text}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program().args(args).stdout(writer).output().unwrap();
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = program().args(["status", "--snapshot", "/no/such/file"]).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(1), "standard error that is closed ends no run with a panic");
    }
}

#[test]
fn text_fits_a_narrow_terminal_and_has_no_codes_in_a_pipe() {
    // a finding of lint is one line, which editors read
    for args in PRINTERS.iter().filter(|args| !args.contains(&"markdown") && !args.contains(&"lint")) {
        let output = program().args(*args).env("COLUMNS", "60").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // what is to be copied, such as a pod template, keeps its lines
        for line in text.lines().filter(|line| !(args.contains(&"catalog") && line.starts_with("    "))) {
            assert!(line.chars().count() <= 60, "{args:?}: {line}");
        }
        assert!(!text.is_empty() && !text.contains('\u{1b}'), "{args:?}: {text}");
        // with codes wherever the output goes, unless NO_COLOR is set
        let forced = |name: &str| {
            let output = program().args(*args).env("CLICOLOR_FORCE", "1").env(name, "1").output().unwrap();
            String::from_utf8(output.stdout).unwrap().contains('\u{1b}')
        };
        assert_eq!((forced("CLICOLOR_FORCE"), forced("NO_COLOR")), (true, false), "{args:?}");
    }
}

#[test]
fn json_is_one_document_on_standard_output() {
    for args in PRINTERS.iter().filter(|args| !args.contains(&"markdown")) {
        let output = program().args(*args).args(["-o", "json"]).output().unwrap();
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(document["kind"].is_string(), "{args:?}");
    }
}
