//! NVIDIA's CUDA runtimes on the simulated driver, with the shim in between: they ask `cuGetProcAddress` for all that they use.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::{GIB, Node, built};

/// Version, library, and whether it asks by the `cuGetProcAddress` of CUDA 11.
const RUNTIMES: [(&str, &str, bool); 3] =
    [("11.8", "libcudart.so.11.0", true), ("12.9", "libcudart.so.12", false), ("13.5", "libcudart.so.13", false)];
/// A version that no runtime is newer than.
const NEWEST: &str = "13990";
/// The newest version that the simulated driver has.
const DRIVER: u32 = 13000;

/// The requests of a runtime as recorded: lines with name, version and flags.
fn recorded(version: &str) -> PathBuf {
    built::checkout().join(format!("integration/tests/gpu/data/cudart-{version}.txt"))
}

#[test]
fn real_runtimes_ask_for_what_is_recorded() {
    let node = Node::new();
    for (version, library, _) in RUNTIMES {
        let library = built::checkout().join("target/toolset/cudart").join(library);
        assert!(library.exists(), "{} is missing: `make runtimes` fetches it", library.display());
        let share = node.share(version, GIB);
        let transcript = node.root.path().join("transcript");
        let mut program = node.program(&share.folder, &["runtime", library.to_str().unwrap()]);
        let output = program.env("NVSIM_TRANSCRIPT", &transcript).env("NVSIM_CUDA_VERSION", NEWEST).output().unwrap();
        // it has asked for everything when it misses the driver's private tables, and ends no program
        assert_eq!(String::from_utf8_lossy(&output.stdout), "devices=none code=500\n", "{version}: {output:?}");
        let asked = fs::read_to_string(&transcript).unwrap();
        fs::remove_file(&transcript).unwrap();
        if std::env::var_os("RECORD").is_some() {
            fs::write(recorded(version), &asked).unwrap();
        }
        let known = fs::read_to_string(recorded(version)).unwrap();
        assert!(
            asked == known,
            "cudart {version} asks for something else: run this test with RECORD=1 and look at the changes"
        );
    }
}

/// Answers of `cuGetProcAddress`, in the order of the requests: file and symbol, or `none`.
fn answers(mut program: Command, asked: &str) -> Vec<String> {
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, asked) = (child.stdin.take().unwrap(), asked.to_owned());
    let writer = std::thread::spawn(move || input.write_all(asked.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split(" -> ").nth(1).unwrap().to_owned()).collect()
}

#[test]
fn request_of_a_real_runtime_gets_the_replacement_if_and_only_if_the_function_is_replaced() {
    let table = include_str!("../src/table.rs");
    let names = table.lines().filter_map(|line| line.strip_prefix("    fn ")?.split_once('('));
    let replaced: BTreeSet<&str> = names.map(|(name, _)| name).collect();
    let node = Node::new();
    for (version, _, v1) in RUNTIMES {
        let asked = fs::read_to_string(recorded(version)).unwrap();
        let arguments: &[&str] = if v1 { &["routes", "--v1"] } else { &["routes"] };
        let share = node.share(version, GIB);
        let limited = answers(node.program(&share.folder, arguments), &asked);
        let mut plain = Command::new(built::binary("cuda-work"));
        plain.arg("--library").arg(built::shared("libcuda_sim.so")).args(arguments);
        plain.env("NVSIM_STATE", node.store.dir()).env("NVSIM_DEV", "all");
        let plain = answers(plain, &asked);
        assert_eq!((plain.len(), limited.len()), (asked.lines().count(), asked.lines().count()), "{version}");
        let mut count = 0;
        for (request, (plain, limited)) in asked.lines().zip(plain.iter().zip(&limited)) {
            let words: Vec<&str> = plain.split(' ').collect();
            if words[0] == "none" {
                let since: u32 = request.split(' ').nth(1).unwrap().parse().unwrap();
                assert!(since > DRIVER && plain == limited, "{version}: {request}: {plain} / {limited}");
                continue;
            }
            let of_shim = replaced.contains(words[1]);
            let library = if of_shim { "/run/shim" } else { "/run/gputenancy/driver" };
            let expected = format!("{library}/libcuda.so.1 {} {}", words[1], words[2]);
            assert_eq!(limited, &expected, "{version}: {request}");
            assert!(words[0].ends_with("libcuda_sim.so") && Path::new(words[0]).exists(), "{plain}");
            count += usize::from(of_shim);
        }
        assert!(count > 40, "{version}: {count} replaced");
    }
}
