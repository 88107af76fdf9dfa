//! Keys under which a `ResourceQuota` counts devices.
//!
//! | devices | requested as | key |
//! |---|---|---|
//! | extended resource of a device plugin | `limits: {nvidia.com/gpu: 1}` | `requests.nvidia.com/gpu` |
//! | device class of DRA | `limits: {deviceclass.resource.kubernetes.io/gpu.nvidia.com: 1}` | `requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com` |
//! | device class of DRA | a claim | `gpu.nvidia.com.deviceclass.resource.k8s.io/devices` |
//!
//! A device of a class counts under both keys of the class, and under that of the extended resource under which the class is offered, if
//! any (Kubernetes 1.35 and later). One of a device plugin counts under that of its resource alone.

/// Devices that a quota can limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Devices<'a> {
    /// An extended resource, such as `nvidia.com/gpu`.
    Resource(&'a str),
    /// A device class, such as `gpu.nvidia.com`.
    Class(&'a str),
}

/// Prefix of the resources that request a device class without a claim.
pub const CLASS_RESOURCES: &str = "deviceclass.resource.kubernetes.io/";

/// Text before and after the name of a resource.
const RESOURCE_KEYS: [(&str, &str); 1] = [("requests.", "")];
/// Text before and after the name of a class.
const CLASS_KEYS: [(&str, &str); 2] =
    [("requests.deviceclass.resource.kubernetes.io/", ""), ("", ".deviceclass.resource.k8s.io/devices")];

impl<'a> Devices<'a> {
    /// Devices that a key limits; `None` for other keys.
    ///
    /// ```
    /// use gputenancy_crds::quota::Devices;
    ///
    /// assert_eq!(Devices::under("requests.nvidia.com/gpu"), Some(Devices::Resource("nvidia.com/gpu")));
    /// let class = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices";
    /// assert_eq!(Devices::under(class), Some(Devices::Class("gpu.nvidia.com")));
    /// assert_eq!(Devices::under("requests.cpu"), None);
    /// ```
    pub fn under(key: &'a str) -> Option<Self> {
        let name = |(before, after): &(&str, &str)| {
            let name = key.strip_prefix(before)?.strip_suffix(after)?;
            (!name.is_empty()).then_some(name)
        };
        // a class key also has the form of a resource key
        let class = CLASS_KEYS.iter().find_map(name).map(Self::Class);
        let resource = || RESOURCE_KEYS.iter().find_map(name).filter(|name| name.contains('/')).map(Self::Resource);
        class.or_else(resource)
    }

    /// Keys under which the devices count.
    pub fn keys(self) -> Vec<String> {
        let (keys, name): (&[_], _) = match self {
            Self::Resource(name) => (&RESOURCE_KEYS, name),
            Self::Class(name) => (&CLASS_KEYS, name),
        };
        keys.iter().map(|(before, after)| format!("{before}{name}{after}")).collect()
    }
}

/// Keys of what Kubernetes itself has, which a quota counts.
pub const OWN_KEYS: [&str; 19] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];
/// Ends of keys for one class of storage or devices.
const OF_CLASS: [&str; 3] = [
    ".storageclass.storage.k8s.io/requests.storage",
    ".storageclass.storage.k8s.io/persistentvolumeclaims",
    ".deviceclass.resource.k8s.io/devices",
];

/// Does a quota count anything under this key? The API server refuses a quota with other keys, or never counts them. As the rule of
/// `GpuTenant.spec.resources`.
pub fn is_counted(key: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    let Some((domain, name)) = key.split_once('/') else {
        let pages = key.strip_prefix("requests.").unwrap_or(key).strip_prefix("hugepages-");
        let size = |size: &str| (1..=40).contains(&size.len()) && size.chars().all(alphanumeric);
        return OWN_KEYS.contains(&key) || pages.is_some_and(size);
    };
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    let inner = |c: char| alphanumeric(c) || matches!(c, '-' | '_' | '.');
    let well_formed = key.len() <= 253
        && domain.split('.').all(label)
        && (1..=63).contains(&name.len())
        && name.chars().all(inner)
        && name.starts_with(alphanumeric)
        && name.ends_with(alphanumeric);
    well_formed
        && (domain == "count" || domain.starts_with("requests.") || OF_CLASS.iter().any(|end| key.ends_with(end)))
}

/// The key of an extended resource.
pub fn resource_key(resource: &str) -> String {
    let [(before, after)] = RESOURCE_KEYS;
    format!("{before}{resource}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_again_under_each_of_their_keys() {
        let table = [
            (Devices::Resource("nvidia.com/mig-1g.10gb"), &["requests.nvidia.com/mig-1g.10gb"][..]),
            (Devices::Resource("gputenancy.io/small"), &["requests.gputenancy.io/small"]),
            (
                Devices::Class("gpu.nvidia.com"),
                &[
                    "requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com",
                    "gpu.nvidia.com.deviceclass.resource.k8s.io/devices",
                ],
            ),
        ];
        for (devices, keys) in table {
            assert_eq!(devices.keys(), keys);
            assert!(keys.iter().all(|key| Devices::under(key) == Some(devices)), "{keys:?}");
        }
        assert_eq!(vec![resource_key("nvidia.com/gpu")], Devices::Resource("nvidia.com/gpu").keys());
    }

    #[test]
    fn keys_that_limit_nothing_are_not_counted() {
        for key in [
            "requests.cpu",
            "limits.ephemeral-storage",
            "services.nodeports",
            "hugepages-2Mi",
            "requests.hugepages-1Gi",
            "count/jobs.batch",
            "count/pods",
            "requests.example.com/fpga",
            "gold.storageclass.storage.k8s.io/requests.storage",
            "gpu.nvidia.com.deviceclass.resource.k8s.io/devices",
        ] {
            assert!(is_counted(key), "{key}");
        }
        let long = format!("requests.example.com/{}", "x".repeat(64));
        for key in [
            "request.cpu",
            "limits.storage",
            "hugepages-",
            "example.com/fpga",
            "limits.example.com/fpga",
            "count/",
            "requests./fpga",
            "Requests.example.com/x",
            "requests.example.com/-x",
            "gold.storageclass.storage.k8s.io/limits.storage",
            &long,
        ] {
            assert!(!is_counted(key), "{key}");
        }
    }

    #[test]
    fn other_keys_limit_no_devices() {
        for key in ["requests.cpu", "limits.memory", "pods", "count/jobs.batch", "requests.", "nvidia.com/gpu"] {
            assert_eq!(Devices::under(key), None, "{key}");
        }
        let storage = "gold.storageclass.storage.k8s.io/requests.storage";
        assert_eq!(Devices::under(storage), None);
    }

    #[test]
    fn what_asks_for_a_class_is_limited_by_the_key_of_that_class() {
        let asked = format!("{CLASS_RESOURCES}mig.nvidia.com");
        assert_eq!(Devices::under(&resource_key(&asked)), Some(Devices::Class("mig.nvidia.com")));
    }
}
