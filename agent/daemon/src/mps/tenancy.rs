//! Who may use the MPS server of a GPU, with which limits, and how many clients it has. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::device::{DeviceOwner, Share};

/// Most clients of one server before Volta.
const CLIENTS_BEFORE_VOLTA: usize = 16;
/// Most clients since Volta.
const CLIENTS: usize = 48;
/// Most clients with newer drivers.
const CLIENTS_OF_NEW_DRIVERS: usize = 60;
/// The first driver with more clients: that of CUDA 13.1.
const NEW_DRIVER: u32 = 590;

/// The tenant whose pods a GPU's daemon serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenancy {
    /// Whose daemon it is: `tenant-<name>`, or `namespace-<name>` for a namespace of no tenant.
    pub key: String,
    /// Namespaces of the pods that it has served.
    pub namespaces: BTreeSet<String>,
}

/// Most bytes of a folder's name: the path of the socket `control_privileged` in it, which is below `/run/gputenancy/mps/GPU-<36>/`, must
/// fit in the 107 bytes that a path of a Unix socket has.
const FOLDER: usize = 22;

/// Folder of the daemon with this key: the key, or what identifies a longer one.
pub fn folder(key: &str) -> String {
    if key.len() <= FOLDER {
        return key.to_owned();
    }
    let hash = Sha256::digest(key.as_bytes());
    hash.iter().take(FOLDER / 2).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// How a container may start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The daemon that runs serves its tenant.
    Join(Tenancy),
    /// A new daemon is needed; one of another tenant has no pods left and is ended.
    Start(Tenancy),
}

/// A pod of another tenant uses the GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "GPU {gpu} serves MPS clients of another tenant than that of namespace {namespace}: tenants do not share an MPS server. Delete this pod so that it can get another GPU, wait until the other tenant's pods on this GPU have ended, or use a MIG or whole-GPU profile"
)]
pub struct OtherTenant {
    /// The GPU.
    pub gpu: String,
    /// Namespace of the refused pod.
    pub namespace: String,
}

/// Whether a container may start. `owners` are the containers with MPS shares of this GPU.
pub fn admit<'o>(
    gpu: &str,
    current: Option<&Tenancy>,
    pod: &DeviceOwner,
    key: &str,
    owners: impl IntoIterator<Item = &'o DeviceOwner>,
) -> Result<Admission, OtherTenant> {
    let own = || Tenancy { key: key.to_owned(), namespaces: [pod.namespace.clone()].into() };
    let Some(current) = current else { return Ok(Admission::Start(own())) };
    if current.key == key {
        let mut joined = current.clone();
        joined.namespaces.insert(pod.namespace.clone());
        return Ok(Admission::Join(joined));
    }
    // the second tenant's pod is among the owners, too
    let mut others = owners.into_iter().filter(|o| (&o.namespace, &o.pod) != (&pod.namespace, &pod.pod));
    match others.find(|owner| current.namespaces.contains(&owner.namespace)) {
        None => Ok(Admission::Start(own())),
        Some(_) => Err(OtherTenant { gpu: gpu.to_owned(), namespace: pod.namespace.clone() }),
    }
}

/// Limits of a daemon for clients that have none in their environment: a tenant's program can remove its own variables, and gets no more
/// than the largest share then. Memory in MiB and threads in percent.
pub fn defaults<'s>(shares: impl IntoIterator<Item = &'s Share>) -> (Option<i64>, Option<i32>) {
    let (mut memory, mut compute) = (None, None);
    for share in shares {
        (memory, compute) = (memory.max(share.memory_mib), compute.max(share.compute));
    }
    (memory, compute)
}

/// Most clients of one server, by architecture and driver version.
pub fn max_clients(before_volta: bool, driver_version: &str) -> usize {
    let major = driver_version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match (before_volta, major) {
        (true, _) => CLIENTS_BEFORE_VOLTA,
        (false, Some(NEW_DRIVER..)) => CLIENTS_OF_NEW_DRIVERS,
        (false, _) => CLIENTS,
    }
}

/// At least 90 % of the clients are used.
pub fn is_near_limit(clients: usize, max: usize) -> bool {
    clients * 10 >= max * 9
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::SharingMode;

    use super::*;

    fn pod(namespace: &str, pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: namespace.into(), pod: pod.into(), container: "c".into() }
    }

    #[test]
    fn path_of_a_socket_fits_for_tenants_with_long_names() {
        let long = format!("tenant-{}", "a".repeat(63));
        assert_eq!((folder("tenant-a"), folder(&long).len()), ("tenant-a".to_owned(), FOLDER));
        assert_ne!(folder(&long), folder(&format!("{long}b")));
        let gpu = "GPU-00000000-0000-0000-0000-000000000000";
        let socket = format!("/run/gputenancy/mps/{gpu}/{}/pipe/control_privileged", folder(&long));
        assert!(socket.len() <= 107, "{} bytes", socket.len());
    }

    proptest::proptest! {
        #[test]
        fn each_tenant_and_namespace_has_a_folder_of_its_own_whose_socket_can_be_bound(
            names in proptest::collection::btree_set("[a-z0-9]([-a-z0-9.]{0,48}[a-z0-9])?", 1..20),
        ) {
            let keys = names.iter().flat_map(|name| [format!("tenant-{name}"), format!("namespace-{name}")]);
            let folders: BTreeSet<String> = keys.map(|key| folder(&key)).collect();
            proptest::prop_assert_eq!(folders.len(), names.len() * 2);
            let gpu = "GPU-00000000-0000-0000-0000-000000000000";
            for folder in folders {
                let socket = format!("/run/gputenancy/mps/{gpu}/{folder}/pipe/control_privileged");
                proptest::prop_assert!(socket.len() <= 107, "{}", socket);
            }
        }
    }

    #[test]
    fn second_tenant_is_refused_while_pods_of_the_first_own_shares() {
        let (a, b) = (pod("a", "p"), pod("b", "q"));
        let Ok(Admission::Start(first)) = admit("GPU-x", None, &a, "tenant-a", [&a]) else {
            panic!("the first starts")
        };
        let refused = admit("GPU-x", Some(&first), &b, "tenant-b", [&a, &b]).unwrap_err();
        let message = refused.to_string();
        for part in ["GPU-x", "namespace b", "Delete this pod"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(!message.contains("namespace a") && !message.contains("pod p"), "another tenant's names: {message}");
        let Ok(Admission::Start(second)) = admit("GPU-x", Some(&first), &b, "tenant-b", [&b]) else {
            panic!("the GPU is free of the first tenant")
        };
        assert_eq!(second, Tenancy { key: "tenant-b".into(), namespaces: ["b".to_owned()].into() });
    }

    #[test]
    fn second_namespace_of_a_tenant_joins_and_is_remembered() {
        let (a, b, c) = (pod("a", "p"), pod("b", "q"), pod("c", "r"));
        let first = Tenancy { key: "tenant-t".into(), namespaces: ["a".to_owned()].into() };
        let Ok(Admission::Join(joined)) = admit("GPU-x", Some(&first), &b, "tenant-t", [&a, &b]) else {
            panic!("the same tenant")
        };
        assert!(admit("GPU-x", Some(&joined), &c, "tenant-u", [&b, &c]).is_err(), "b is the first tenant's");
    }

    #[test]
    fn largest_share_is_the_default_and_the_client_limit_follows_architecture_and_driver() {
        let share = |number, memory_mib, compute| Share {
            number,
            mode: SharingMode::Mps,
            memory_mib,
            compute,
            limit_mib: None,
            pace: None,
            resize: gputenancy_crds::ResizePolicy::default(),
        };
        let shares = [share(0, Some(10), None), share(1, Some(30), Some(20)), share(2, None, Some(50))];
        assert_eq!(defaults(&shares), (Some(30), Some(50)));
        assert_eq!(defaults(&shares[..0]), (None, None));
        let limits = [(true, "590.1"), (false, "580.95.05"), (false, "590.44"), (false, "")];
        assert_eq!(limits.map(|(old, driver)| max_clients(old, driver)), [16, 48, 60, 48]);
        assert_eq!([43, 44].map(|clients| is_near_limit(clients, 48)), [false, true]);
    }
}
