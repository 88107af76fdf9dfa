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
