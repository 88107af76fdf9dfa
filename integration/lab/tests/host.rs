//! A lab leaves nothing on the host, in whatever way it ends.

use lab::place::Folders;
use lab::process::Process;
use lab::{Lab, LabSpec};
use std::fs;
use std::path::Path;
use std::process::Command;

fn small(name: &str) -> LabSpec {
    LabSpec { gpu_nodes: 1, cpu_nodes: 0, ..LabSpec::named(name) }
}

fn print(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Possible remains of a lab without its name.
fn host() -> Vec<(String, String)> {
    let settings =
        ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/hostname"];
    let network = ["net/ipv4/ip_forward", "net/netfilter/nf_conntrack_max"];
    let folders = [
        "/run/netns",
        "/run/containerd",
        "/run/lab",
        "/var/lib/containerd",
        "/var/lib/kubelet",
        "/var/lib/cni",
        "/etc/cni",
        "/etc/cdi",
        "/etc/containerd",
        "/var/log/pods",
    ];
    let mut seen = vec![
        ("mounts".to_owned(), fs::read_to_string("/proc/self/mounts").unwrap()),
        ("links".to_owned(), print("ip", &["-br", "link"])),
        ("routes".to_owned(), print("ip", &["route"])),
        ("rules".to_owned(), print("nft", &["list", "ruleset"])),
    ];
    for name in settings.iter().chain(&network) {
        seen.push(((*name).to_owned(), fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default()));
    }
    seen.extend(folders.iter().map(|folder| ((*folder).to_owned(), print("ls", &["-R", folder]))));
    seen
}

/// Everything with the lab's name, or in its network.
fn traces(name: &str, namespace: &str) -> Vec<String> {
    let groups = print("find", &["/sys/fs/cgroup", "-type", "d", "-name", &format!("gputenancy-{name}")]);
    let mut found: Vec<String> = groups.lines().map(str::to_owned).collect();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(link) = fs::read_link(entry.path().join("ns/net")) else { continue };
        if link.to_string_lossy() == namespace {
            found.push(format!("process {}", entry.path().display()));
        }
    }
    let folder = Folders::find().unwrap().lab(name);
    found.extend(folder.exists().then(|| folder.display().to_string()));
    found
}

fn network_of(lab: &Lab) -> String {
    fs::read_link(format!("/proc/{}/ns/net", lab.init_pid())).unwrap().to_string_lossy().into_owned()
}

/// Waits until nothing is left: the keeper cleans up after a killed lab.
async fn gone(name: &str, namespace: &str) {
    let waited = tokio::time::timeout(lab::PATIENCE, async {
        while !traces(name, namespace).is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    assert!(waited.await.is_ok(), "{:?}", traces(name, namespace));
}

fn keeper_of(lab: &Lab) -> Process {
    lab::keeper::State::read(lab.folder()).unwrap().unwrap().keeper
}

#[tokio::test]
async fn labs_run_concurrently_and_clean_up() {
    let folders = Folders::find().unwrap();
    for name in ["test-one", "test-two"] {
        lab::lab::down(&folders, name).unwrap();
    }
    let before = host();
    let (one, two) = tokio::join!(Lab::start(small("test-one")), Lab::start(small("test-two")));
    let (one, two) = (one.unwrap(), two.unwrap());
    one.kubectl(&["create", "namespace", "only-here"]).await.unwrap();
    assert!(two.kubectl(&["get", "namespace", "only-here"]).await.is_err(), "labs share objects");
    let (network_one, network_two) = (network_of(&one), network_of(&two));
    assert!(traces("test-one", &network_one).len() > 10, "a running lab is not detected");

    // the first is stopped regularly, the first process of the second is killed
    one.down().await.unwrap();
    assert_eq!(traces("test-one", &network_one), Vec::<String>::new());
    Process::find(two.init_pid()).unwrap().kill();
    gone("test-two", &network_two).await;

    // a lab whose keeper was killed
    let three = Lab::start(small("test-one")).await.unwrap();
    let network = network_of(&three);
    let init = Process::find(three.init_pid()).unwrap();
    keeper_of(&three).kill();
    while init.alive() {
        tokio::task::yield_now().await;
    }
    lab::lab::down(&folders, "test-one").unwrap();
    gone("test-one", &network).await;

    for (was, is) in before.into_iter().zip(host()) {
        assert_eq!(was, is);
    }
    assert!(!Path::new("/run/lab").exists());
}
