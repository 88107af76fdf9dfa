//! Which devices a process sees, by the nodes it can open. Plain files replace the device nodes.

use std::fs;
use std::path::Path;

use silicon::board::Variant;
use silicon::machine::Devices;
use silicon::visible::View;
use silicon::{Machine, boards, ids, nodes};

fn machine() -> Machine {
    let mut machine = Machine::power_on("n", boards::load("a100-80gb").unwrap(), Variant::Normal, 2, &[]);
    machine.devices = Some(Devices { caps_major: 511 });
    machine.gpus[1].mig = true;
    for _ in 0..2 {
        let gi = machine.create_gi(1, 9, None).unwrap().id;
        machine.create_ci(1, gi, 2, None).unwrap();
    }
    machine
}

fn touch(dev: &Path, name: &str) {
    fs::create_dir_all(dev.join(nodes::CAPS)).unwrap();
    fs::write(dev.join(name), "").unwrap();
}

#[test]
fn gpu_is_visible_with_its_device_node() {
    let dev = tempfile::tempdir().unwrap();
    touch(dev.path(), "nvidia1");
    let view = View::of(&machine(), Some(dev.path().into()));
    assert_eq!((view.gpu(0), view.gpu(1), view.configure()), (false, true, false));
}

#[test]
fn mig_device_is_visible_with_both_capabilities() {
    let dev = tempfile::tempdir().unwrap();
    let machine = machine();
    let devices = machine.mig_devices();
    let view = View::of(&machine, Some(dev.path().into()));
    let (gi, ci) = (devices[0].gi.id, devices[0].ci.id);
    touch(dev.path(), &format!("nvidia-caps/nvidia-cap{}", ids::gi_minor(1, gi)));
    assert!(!view.mig(&devices[0]));
    touch(dev.path(), &format!("nvidia-caps/nvidia-cap{}", ids::ci_minor(1, gi, ci)));
    assert!(view.mig(&devices[0]));
    assert!(!view.mig(&devices[1]));
}

#[test]
fn config_capability_shows_every_mig_device() {
    let dev = tempfile::tempdir().unwrap();
    touch(dev.path(), "nvidia-caps/nvidia-cap1");
    let machine = machine();
    let view = View::of(&machine, Some(dev.path().into()));
    assert!(machine.mig_devices().iter().all(|d| view.mig(d)));
}

#[test]
fn everything_is_visible_without_device_nodes() {
    let mut machine = machine();
    machine.devices = None;
    assert_eq!(View::of(&machine, Some("/nonexistent".into())), View::All);
}

#[test]
fn capability_minors_follow_the_drivers_formula() {
    // From a real mig-minors file: gpu0/gi9/access is 84, gpu0/gi9/ci0/access 85.
    assert_eq!((ids::gi_minor(0, 9), ids::ci_minor(0, 9, 0)), (84, 85));
    assert_eq!(ids::gi_minor(1, 0), 138);
    let minors: Vec<u32> = nodes::cap_minors(&machine()).into_iter().collect();
    assert_eq!(minors, [1, 2, 147, 148, 156, 157]);
}

#[test]
fn device_majors_avoid_real_drivers() {
    let devices = "Character devices:\n  1 mem\n510 nvme\n511 drm\n\nBlock devices:\n509 virtblk\n";
    assert_eq!(nodes::free_majors(devices)[..2], [509, 508]);
}

#[test]
fn existing_device_nodes_are_not_changed() {
    let dev = tempfile::tempdir().unwrap();
    touch(dev.path(), "nvidia-caps/nvidia-cap84");
    nodes::sync_caps(dev.path(), &machine()).unwrap();
    assert!(dev.path().join("nvidia-caps/nvidia-cap84").exists());
    assert!(!dev.path().join("nvidia-caps/nvidia-cap1").exists());
}
