//! The CDI file.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::Path,
};

use fuzz::{Choices, check_slow, damaged, prop_assert, prop_assert_eq};
use gputenancy_agent::{
    device::{Device, DeviceId, MigIds},
    kubelet::{
        cdi::{self, Driver, SpecFile},
        config::Config,
    },
};
use serde_json::Value;

use super::{resource, some};

fn device(choices: &mut Choices) -> Device {
    let minor = u32::try_from(choices.below(16)).unwrap_or_default();
    let mig = choices.once_in(2).then(|| {
        let small = |choices: &mut Choices| u32::try_from(choices.below(8)).unwrap_or_default();
        MigIds { gi: small(choices), ci: 0, start: small(choices), profile: choices.text() }
    });
    let gpu = format!("GPU-{minor}");
    let id =
        mig.as_ref().map_or_else(|| DeviceId::new(&gpu), |mig| DeviceId::new(format!("MIG-{minor}-{}", mig.start)));
    let (share, numa) = (None, None);
    Device {
        id,
        resource: resource(choices),
        gpu_uuid: gpu,
        gpu_minor: minor,
        mig,
        share,
        numa,
        cordoned: false,
        healthy: true,
    }
}

#[test]
fn cdi_file_has_every_device_whatever_was_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gputenancy.io-gpu.json");
    check_slow("CDI files", |choices, times| {
        let devices: BTreeMap<DeviceId, Device> =
            some(choices, 6, device).into_iter().map(|d| (d.id.clone(), d)).collect();
        let driver = Driver { mps: choices.text().into(), version: Some(choices.text()), ..Driver::default() };
        let Some(spec) = cdi::render(devices.values(), &driver) else {
            prop_assert!(devices.is_empty());
            return Ok(());
        };
        let mut file = SpecFile::in_folder(folder.path());
        if choices.once_in(2) {
            file.write(Some(&spec)).unwrap();
        }
        // another program has written it, or only a part of it has reached the disk
        let before = damaged(serde_json::to_vec_pretty(&spec).unwrap(), choices);
        fs::write(&path, before).unwrap();
        file.write(Some(&spec)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let read = times.decoder(|| serde_json::from_str::<Value>(&text));
        prop_assert_eq!(read.as_ref().ok(), Some(&spec));
        let names: Vec<&str> =
            spec["devices"].as_array().into_iter().flatten().filter_map(|d| d["name"].as_str()).collect();
        for id in devices.keys() {
            prop_assert!(names.contains(&&*cdi::name(id)), "{id} of {names:?}");
        }
        let valid =
            |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c));
        prop_assert!(names.iter().all(valid), "{names:?}");
        Ok(())
    });
}

#[test]
fn file_of_the_driver_whose_path_is_no_text_is_left_out_of_the_specification() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&folder).unwrap();
    for library in ["libnvidia-ml.so.1", "libcuda.so.1"] {
        fs::write(folder.join(library), "").unwrap();
    }
    let odd = OsStr::from_bytes(b"libcuda.so.1-\xff");
    fs::write(folder.join(odd), "").unwrap();
    symlink(odd, folder.join("libcuda.so")).unwrap();
    let config = Config { host_root: root.path().to_owned(), dev_root: root.path().join("dev"), ..Config::default() };
    let driver = Driver::find(&config, Path::new("/"));
    let mut choices = Choices::new(0, 0);
    let spec = cdi::render(&[device(&mut choices)], &driver).unwrap();
    let mounts = spec["containerEdits"]["mounts"].as_array().unwrap();
    let paths: Vec<&str> = mounts.iter().filter_map(|mount| mount["containerPath"].as_str()).collect();
    assert_eq!(paths, ["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"]);
}
