//! The state on disk: installation, sharing between processes, power cycles.

use std::fs;
use std::path::{Path, PathBuf};

use silicon::attach::{self, attach};
use silicon::board::Variant;
use silicon::clients::Client;
use silicon::history::Event;
use silicon::install::{self, Options, install};
use silicon::{Code, Store, boards, history, operations, store};

fn options(root: &Path, boards: &str) -> Options {
    let library = root.join("library");
    fs::write(&library, "not loaded here").unwrap();
    Options {
        root: root.into(),
        driver_root: "/run/nvidia/driver".into(),
        persistent: "/var/lib/nvsim".into(),
        library,
        cuda: None,
        tool: None,
        node: "n".into(),
        boards: boards::load_list(boards).unwrap(),
        variant: Variant::Normal,
        gpus: 2,
        latency_permille: 0,
        devices: false,
    }
}

fn client(memory_mib: u64, owner: &str) -> Client {
    Client {
        pid: 0,
        gpu: 0,
        instance: None,
        memory: memory_mib << 20,
        name: "test".into(),
        owner: owner.into(),
        cgroups: Vec::new(),
    }
}

#[test]
fn second_install_keeps_the_state() {
    let root = tempfile::tempdir().unwrap();
    let options = options(root.path(), "a100-80gb");
    let store = install(&options).unwrap();
    store.change(|m, _| m.raise_xid(0, None, 79)).unwrap();
    let again = install(&options).unwrap();
    assert_eq!(again.read().unwrap().events.len(), 1);
}

#[test]
fn second_board_is_refused_until_uninstall() {
    let root = tempfile::tempdir().unwrap();
    install(&options(root.path(), "a100-80gb")).unwrap();
    let other = options(root.path(), "h100-80gb");
    assert!(matches!(install(&other), Err(install::Error::Different(_))));
    install::uninstall(root.path(), &other.driver_root, false).unwrap();
    install(&other).unwrap();
}

#[test]
fn second_list_of_boards_is_refused_and_the_same_one_keeps_the_state() {
    let root = tempfile::tempdir().unwrap();
    install(&options(root.path(), "a100-80gb+h100-80gb")).unwrap();
    install(&options(root.path(), "a100-80gb+h100-80gb")).unwrap();
    let refused = install(&options(root.path(), "h100-80gb")).unwrap_err().to_string();
    assert!(refused.contains("a simulator with 1 x a100-80gb, 1 x h100-80gb is installed already"), "{refused}");
    let information = |address: &str| {
        let file = format!("run/nvidia/driver/proc/driver/nvidia/gpus/{address}/information");
        fs::read_to_string(root.path().join(file)).unwrap()
    };
    assert!(information("0000:07:00.0").contains("NVIDIA A100-SXM4-80GB"));
    assert!(information("0000:0f:00.0").contains("NVIDIA H100 80GB HBM3"));
}

#[test]
fn state_of_another_version_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let options = options(root.path(), "a100-80gb");
    let store = install(&options).unwrap();
    fs::write(store.dir().join("state.json"), "{\"node\": \"n\"}").unwrap();
    assert!(matches!(store.read(), Err(store::Error::Broken(..))));
    assert_eq!(install(&options).unwrap().read().unwrap().gpus.len(), 2);
}

#[test]
fn uninstall_keeps_the_inforom_only() {
    let root = tempfile::tempdir().unwrap();
    let options = options(root.path(), "a100-80gb");
    install(&options).unwrap();
    fs::remove_file(&options.library).unwrap();
    install::uninstall(root.path(), &options.driver_root, false).unwrap();
    assert!(!root.path().join("run/nvidia/driver").exists());
    assert!(root.path().join("var/lib/nvsim").exists());
    assert!(!root.path().join("var/run/cdi/gputenancy-simulator.json").exists());
}

#[test]
fn ampere_mode_survives_power_cycle_in_inforom() {
    let root = tempfile::tempdir().unwrap();
    let options = options(root.path(), "a100-80gb");
    let store = install(&options).unwrap();
    store.change(|m, _| m.set_mig_mode(1, true, &[])).unwrap().unwrap_err();
    install::follow(&options, &store.read().unwrap()).unwrap();
    fs::remove_dir_all(root.path().join("run")).unwrap();
    let after = install(&options).unwrap().read().unwrap();
    assert_eq!((after.gpus[0].mig, after.gpus[1].mig), (false, true));
}

#[test]
fn missing_state_means_driver_not_loaded() {
    let nowhere = Store::new(PathBuf::from("/nonexistent"));
    assert_eq!(nowhere.read().unwrap_err().code(), Code::DRIVER_NOT_LOADED);
}

#[test]
fn refused_change_leaves_state_unchanged() {
    let root = tempfile::tempdir().unwrap();
    let store = install(&options(root.path(), "a100-80gb")).unwrap();
    let before = store.read().unwrap();
    let refused = store.change(|m, _| {
        m.gpus.clear();
        Err::<(), _>(Code::IN_USE)
    });
    assert!(matches!(refused, Err(store::Error::Refused(Code::IN_USE))));
    assert_eq!(store.read().unwrap(), before);
}

#[test]
fn concurrent_reader_sees_consistent_state() {
    let root = tempfile::tempdir().unwrap();
    let store = install(&options(root.path(), "a100-80gb")).unwrap();
    let dir = store.dir().to_owned();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let own = Store::new(&dir);
                (0..50).for_each(|code| own.change(|m, _| m.raise_xid(0, None, code)).unwrap());
            });
        }
        scope.spawn(|| (0..500).for_each(|_| drop(Store::new(&dir).read().unwrap())));
    });
    assert_eq!(store.read().unwrap().next_event, 151);
}

#[test]
fn process_cannot_exceed_free_memory() {
    let root = tempfile::tempdir().unwrap();
    let store = install(&options(root.path(), "t4-16gb")).unwrap();
    let refused = attach(&store, &client(16 << 10, "pod"), &[]).unwrap_err();
    assert!(matches!(refused, attach::Error::OutOfMemory { .. }));
}

#[test]
fn gpu_in_mig_mode_is_used_through_mig_devices_only() {
    let root = tempfile::tempdir().unwrap();
    let store = install(&options(root.path(), "h100-80gb")).unwrap();
    store.change(|m, _| m.set_mig_mode(0, true, &[])).unwrap().unwrap();
    assert!(matches!(attach(&store, &client(1, "pod"), &[]), Err(attach::Error::MigMode(0))));
}

#[test]
fn history_records_attach_and_detach() {
    let root = tempfile::tempdir().unwrap();
    let store = install(&options(root.path(), "h100-80gb")).unwrap();
    let held = attach(&store, &client(1, "ns/pod"), &[]).unwrap();
    held.detach(&store).unwrap();
    let events: Vec<Event> = history::read(store.dir()).unwrap().into_iter().map(|line| line.event).collect();
    let uuid = store.read().unwrap().gpus[0].uuid.clone();
    let owner = "ns/pod".to_owned();
    assert_eq!(
        events,
        [Event::Attach { uuid: uuid.clone(), owner: owner.clone(), others: vec![] }, Event::Detach { uuid, owner }]
    );
}

#[test]
fn too_long_owner_name_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let store = install(&options(root.path(), "h100-80gb")).unwrap();
    assert!(matches!(attach(&store, &client(1, &"x".repeat(600)), &[]), Err(attach::Error::Io(_))));
}

#[test]
fn partition_by_names_is_all_or_nothing() {
    let root = tempfile::tempdir().unwrap();
    let store = install(&options(root.path(), "a100-80gb")).unwrap();
    let partition =
        |names: &[&str]| operations::partition(&store, 0, &names.iter().map(|n| (*n).into()).collect::<Vec<_>>());
    partition(&["3g.40gb", "19", "1g.10gb"]).unwrap();
    assert!(partition(&["7g.80gb", "1g.10gb"]).is_err());
    let machine = store.read().unwrap();
    let names: Vec<String> = machine.mig_devices().iter().map(silicon::machine::MigDevice::profile_name).collect();
    assert_eq!(names, ["3g.40gb", "1g.10gb", "1g.10gb"]);
}

#[test]
fn gpu_is_found_by_index_uuid_and_address() {
    let root = tempfile::tempdir().unwrap();
    let store = install(&options(root.path(), "h100-80gb")).unwrap();
    let uuid = store.read().unwrap().gpus[1].uuid.clone();
    for name in ["1", uuid.as_str(), "00000000:0F:00.0", "0000:0f:00.0"] {
        assert_eq!(operations::find_gpu(&store, name).unwrap(), 1, "{name}");
    }
    assert!(operations::find_gpu(&store, "7").is_err());
}
