use std::{fs, os::unix::fs::symlink, path::Path};

use gputenancy_crds::SharingMode;
use proptest::prelude::*;

use super::*;
use crate::{
    device::{Device, DeviceView, MigIds, Share},
    enforcement::Library,
    kubelet::{config::Config, device_list::device_lists},
};

fn whole(n: u32) -> Device {
    let gpu = format!("GPU-{n:08}-0000-0000-0000-000000000000");
    Device {
        id: DeviceId::new(&gpu),
        resource: "nvidia.com/gpu".to_owned(),
        gpu_uuid: gpu,
        gpu_minor: n,
        mig: None,
        share: None,
        numa: Some(-1),
        cordoned: false,
        healthy: true,
    }
}

fn slice(n: u32, start: u32, profile: &str) -> Device {
    let gpu = whole(n);
    Device {
        id: DeviceId::new(format!("MIG-{n:08}-0000-0000-0000-{start:012}")),
        resource: format!("nvidia.com/mig-{}", profile.replace('+', ".")),
        mig: Some(MigIds { gi: 7 + start, ci: 0, start, profile: profile.to_owned() }),
        share: None,
        ..gpu
    }
}

fn driver_root(root: &Path) {
    let folder = root.join("run/nvidia/driver/usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&folder).unwrap();
    for library in ["libnvidia-ml.so", "libcuda.so"] {
        fs::write(folder.join(format!("{library}.580.95.05")), "").unwrap();
        symlink(format!("{library}.580.95.05"), folder.join(format!("{library}.1"))).unwrap();
    }
    symlink("/usr/lib/x86_64-linux-gnu/libcuda.so.1", folder.join("libcuda.so")).unwrap();
    fs::write(folder.join("libcudart.so.13"), "not the driver's").unwrap();
    fs::write(folder.join("libnvidia-mlx.so.1"), "not the driver's").unwrap();
    let bin = root.join("run/nvidia/driver/usr/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("nvidia-smi"), "").unwrap();
    let proc = root.join("run/nvidia/driver/proc/driver/nvidia-caps");
    fs::create_dir_all(&proc).unwrap();
    fs::write(proc.join("mig-minors"), "config 1\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\n").unwrap();
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::write(root.join("usr/bin/nvidia-cdi-hook"), "\0update-ldcache\0enable-cuda-compat\0").unwrap();
    fs::write(root.join("run/nvidia/driver/proc/devices"), "Character devices:\n195 nvidia\n511 nvidia-caps\n")
        .unwrap();
}

fn config(root: &Path) -> Config {
    Config { host_root: root.to_owned(), dev_root: root.join("dev"), ..Config::default() }
}

#[test]
fn specification_of_mig_and_whole_gpus() {
    let root = tempfile::tempdir().unwrap();
    driver_root(root.path());
    let driver = Driver::find(&config(root.path()), "/run/nvidia/driver".as_ref());
    let spec = render(&[slice(0, 0, "1g.10gb"), slice(0, 2, "1g.10gb+me"), whole(1)], &driver);
    insta::assert_json_snapshot!(spec);
}

#[test]
fn mps_share_gets_its_limits_and_the_folders_of_its_server() {
    let share = Share {
        number: 3,
        mode: SharingMode::Mps,
        memory_mib: Some(10_240),
        compute: Some(25),
        limit_mib: None,
        pace: None,
        resize: gputenancy_crds::ResizePolicy::default(),
    };
    let gpu = whole(0);
    let device = Device { id: DeviceId::share(&gpu.gpu_uuid, 3), share: Some(share), ..gpu };
    let driver = Driver { mps: "/run/m".into(), ..Driver::default() };
    let edits = render(std::slice::from_ref(&device), &driver).unwrap()["devices"][0]["containerEdits"].clone();
    let env = [
        "CUDA_MPS_PIPE_DIRECTORY=/run/gputenancy/mps/pipe",
        "CUDA_MPS_LOG_DIRECTORY=/run/gputenancy/mps/log",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
    ];
    assert_eq!(edits["env"], serde_json::json!(env));
    let folder = format!("/run/m/{}/3", device.gpu_uuid);
    let mounts = edits["mounts"].as_array().unwrap();
    let paths: Vec<_> = mounts.iter().map(|m| (m["hostPath"].as_str().unwrap(), &m["options"][0])).collect();
    assert_eq!(paths, [(&*format!("{folder}/pipe"), &"ro".into()), (&*format!("{folder}/log"), &"ro".into())]);
    let other = render(&[whole(0)], &driver).unwrap()["devices"][0]["containerEdits"].clone();
    assert!(other.get("env").is_none() && other.get("mounts").is_none());
}

#[test]
fn limited_share_gets_the_libraries_under_the_names_of_cuda_and_nvml_and_an_exclusive_gpu_keeps_the_drivers() {
    let root = tempfile::tempdir().unwrap();
    driver_root(root.path());
    let library = Library {
        cuda: "/run/e/shim/libcuda-0123.so".into(),
        nvml: "/run/e/shim/libnvidia-ml-4567.so".into(),
        shares: "/run/e/shares".into(),
    };
    let driver = Driver::find(&config(root.path()), "/run/nvidia/driver".as_ref());
    let gpu = whole(0);
    let share = Share {
        number: 2,
        mode: SharingMode::TimeSlice,
        memory_mib: None,
        compute: None,
        limit_mib: Some(19_840),
        pace: None,
        resize: gputenancy_crds::ResizePolicy::default(),
    };
    let device = Device { id: DeviceId::share(&gpu.gpu_uuid, 2), share: Some(share), ..gpu };
    let both = [device.clone(), whole(1)];
    let limited = render(&both, &driver.clone().with_shim(Some(library))).unwrap();
    let mounts = |spec: &serde_json::Value, device: usize| -> Vec<(String, String, String)> {
        let mounts = spec["devices"][device]["containerEdits"]["mounts"].as_array().cloned().unwrap_or_default();
        let text = |mount: &serde_json::Value, field: &str| mount[field].as_str().unwrap().to_owned();
        let of = |mount: &serde_json::Value| {
            let mode = mount["options"][0].as_str().unwrap().to_owned();
            (text(mount, "containerPath"), text(mount, "hostPath"), mode)
        };
        mounts.iter().map(of).collect()
    };
    let (cuda, shim) = ("/usr/lib/x86_64-linux-gnu/libcuda.so", "/run/e/shim/libcuda-0123.so");
    let (nvml, view) = ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so", "/run/e/shim/libnvidia-ml-4567.so");
    let files = format!("/run/e/shares/{}/2", device.gpu_uuid);
    let expected = [
        (cuda.to_owned(), shim.to_owned(), "ro"),
        (format!("{cuda}.1"), shim.to_owned(), "ro"),
        (format!("{cuda}.580.95.05"), shim.to_owned(), "ro"),
        (format!("{nvml}.1"), view.to_owned(), "ro"),
        (format!("{nvml}.580.95.05"), view.to_owned(), "ro"),
        ("/run/gputenancy/driver/libcuda.so.1".to_owned(), format!("/run/nvidia/driver{cuda}.580.95.05"), "ro"),
        ("/run/gputenancy/driver/libnvidia-ml.so.1".to_owned(), format!("/run/nvidia/driver{nvml}.580.95.05"), "ro"),
        ("/run/gputenancy/share/limits".to_owned(), format!("{files}/limits"), "ro"),
        ("/run/gputenancy/share/usage".to_owned(), format!("{files}/usage"), "rw"),
    ];
    assert_eq!(mounts(&limited, 0), expected.map(|(to, from, mode)| (to, from, mode.to_owned())));
    assert_eq!(mounts(&limited, 1), []);
    let hooks = |spec: &serde_json::Value| spec["containerEdits"]["hooks"].to_string();
    assert!(!hooks(&limited).contains("enable-cuda-compat"), "a newer CUDA of an image would be in front of the shim");
    let unlimited = render(&both, &driver).unwrap();
    assert_eq!(mounts(&unlimited, 0), []);
    assert!(hooks(&unlimited).contains("enable-cuda-compat"));
}

#[test]
fn specification_without_driver_has_the_device_nodes() {
    let root = tempfile::tempdir().unwrap();
    let driver = Driver::find(&config(root.path()), "/run/nvidia/driver".as_ref());
    assert!(driver.mounts.is_empty());
    assert_eq!(names(&[whole(0)], &driver), [name(&whole(0).id)]);
}

#[test]
fn file_is_written_atomically_and_removed_with_the_last_device() {
    let root = tempfile::tempdir().unwrap();
    let mut file = SpecFile::in_folder(&root.path().join("cdi"));
    let path = root.path().join("cdi/gputenancy.io-gpu.json");
    file.write(render(&[whole(0)], &Driver::default()).as_ref()).unwrap();
    let first = fs::metadata(&path).unwrap().modified().unwrap();
    file.write(render(&[whole(0)], &Driver::default()).as_ref()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), first, "unchanged content is not written");
    assert_eq!(fs::read_dir(root.path().join("cdi")).unwrap().count(), 1);
    file.write(render(&[], &Driver::default()).as_ref()).unwrap();
    assert!(!path.exists());
}

#[test]
fn removed_file_is_written_again() {
    let root = tempfile::tempdir().unwrap();
    let mut file = SpecFile::in_folder(root.path());
    let spec = render(&[whole(0)], &Driver::default());
    file.write(spec.as_ref()).unwrap();
    assert!(!file.is_changed());
    fs::remove_file(root.path().join("gputenancy.io-gpu.json")).unwrap();
    assert!(file.is_changed(), "the agent looks at each pass");
    file.write(spec.as_ref()).unwrap();
    assert!(!file.is_changed());
    assert!(root.path().join("gputenancy.io-gpu.json").exists());
}

/// Names of the devices in the specification.
fn names(devices: &[Device], driver: &Driver) -> Vec<String> {
    let spec = render(devices, driver);
    let devices = spec.iter().flat_map(|spec| spec["devices"].as_array().unwrap());
    devices.map(|device| device["name"].as_str().unwrap().to_owned()).collect()
}

fn devices() -> impl Strategy<Value = Vec<Device>> {
    let profile = prop_oneof![Just("1g.10gb"), Just("1g.10gb+me"), Just("1g.24gb-me"), Just("3g.40gb")];
    let one = (0..8_u32, 0..8_u32, profile, any::<bool>(), any::<bool>());
    let device = one.prop_map(|(gpu, start, profile, cordoned, mig)| {
        let device = if mig { slice(gpu, start, profile) } else { whole(gpu) };
        Device { cordoned, ..device }
    });
    proptest::collection::vec(device, 0..20)
}

proptest! {
    #[test]
    fn advertised_devices_have_valid_names_in_the_specification(devices in devices()) {
        let names = names(&devices, &Driver::default());
        let view = DeviceView { generation: 1, devices, ..DeviceView::default() };
        for id in device_lists(&view).values().flat_map(|list| list.keys()) {
            prop_assert!(names.contains(&name(id)));
            let name = name(id);
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c)), "{}", name);
            prop_assert!(name.ends_with(|c: char| c.is_ascii_alphanumeric()));
            prop_assert!(id.as_str().len() <= 63, "kubelet's limit for ids");
        }
    }
}
