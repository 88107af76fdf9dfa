//! Variables that a container may not have: those that the admission policy `gputenancy-tenant-pods` refuses in a manifest. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::admission::{CAPABILITIES_VARIABLE, DEVICE_VARIABLES, LIMIT_VARIABLE_PREFIXES, PRELOAD_VARIABLES};

/// Values that select no device.
const NO_DEVICE: &[&str] = &["void", "none"];
/// Value of the device variable with the strategy `volume-mounts` of NVIDIA's plugin, which mounts a file there for each device.
const VOLUME_MOUNTS: &str = "/var/run/nvidia-container-devices";

/// A container's variables by name; the last of several with one name counts.
pub type Environment = BTreeMap<String, String>;

/// What a container may have.
#[derive(Clone, Debug, Default)]
pub struct AllowedEnvironment {
    /// Its pod requests a GPU.
    pub gpu: bool,
    /// UUIDs of the devices that kubelet allocated to it.
    pub devices: BTreeSet<String>,
    /// Another device plugin advertises the devices, and sets variables of its own.
    pub other_plugin: bool,
    /// Variables of its image.
    pub image: Environment,
    /// Names in its manifest's `env`.
    pub manifest: BTreeSet<String>,
}

/// Parses variables as a runtime's specification has them: `NAME=VALUE`.
pub fn parse(list: &[String]) -> Environment {
    let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    list.iter().filter_map(pair).collect()
}

/// Names of the forbidden variables, sorted. `capabilities` are the allowed values of [`CAPABILITIES_VARIABLE`].
pub fn violations<'a>(env: &'a Environment, allowed: &AllowedEnvironment, capabilities: &[String]) -> Vec<&'a str> {
    let forbidden = |(name, value): &(&'a String, &'a String)| {
        let visible = allowed.manifest.contains(*name) || allowed.image.get(*name) == Some(*value);
        !visible
            && !value.is_empty()
            && match group(name) {
                // the runtime reads it only in a container without these
                Some(VariableGroup::Devices) if *name == "CUDA_VERSION" => {
                    !env.contains_key("NVIDIA_VISIBLE_DEVICES")
                        && env.get("NVIDIA_REQUIRE_CUDA").is_none_or(String::is_empty)
                }
                Some(VariableGroup::Devices) => !allowed.has_devices(name, value),
                Some(VariableGroup::Limits) => !allowed.has_pipe(name, value),
                Some(VariableGroup::Preloads) => allowed.gpu,
                Some(VariableGroup::Capabilities) => {
                    !value.split(',').all(|item| capabilities.iter().any(|capability| capability == item.trim()))
                }
                None => false,
            }
    };
    env.iter().filter(forbidden).map(|(name, _)| name.as_str()).collect()
}

/// The rule that a variable falls under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VariableGroup {
    /// It selects devices.
    Devices,
    /// It limits memory, or selects an MPS daemon.
    Limits,
    /// It loads libraries.
    Preloads,
    /// It selects capabilities of the driver.
    Capabilities,
}

/// The group of a variable.
pub fn group(name: &str) -> Option<VariableGroup> {
    match name {
        CAPABILITIES_VARIABLE => Some(VariableGroup::Capabilities),
        _ if DEVICE_VARIABLES.contains(&name) => Some(VariableGroup::Devices),
        _ if PRELOAD_VARIABLES.contains(&name) => Some(VariableGroup::Preloads),
        _ if is_service_link(name) => None,
        _ if LIMIT_VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) => Some(VariableGroup::Limits),
        _ => None,
    }
}

/// kubelet sets such variables for each Service of the namespace, and no program of NVIDIA's reads one: `NAME_SERVICE_HOST`,
/// `NAME_SERVICE_PORT[_PORTNAME]`, `NAME_PORT` and `NAME_PORT_80_TCP[_ADDR]`.
fn is_service_link(name: &str) -> bool {
    let of_port = |rest: &str| rest.bytes().next().is_some_and(|b| b.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.match_indices("_PORT_").any(|(at, port)| name.get(at + port.len()..).is_some_and(of_port))
}

impl AllowedEnvironment {
    /// Another device plugin allocated devices to the container.
    fn has_other_plugin(&self) -> bool {
        self.other_plugin && !self.devices.is_empty()
    }

    /// The value selects only devices of the container, or none.
    fn has_devices(&self, name: &str, value: &str) -> bool {
        // NVIDIA's plugin can be configured to number devices, and only it knows the order
        let numbered = |item: &str| self.has_other_plugin() && item.bytes().all(|b| b.is_ascii_digit() || b == b':');
        name == "NVIDIA_VISIBLE_DEVICES"
            && (NO_DEVICE.contains(&value)
                || self.has_other_plugin() && value == VOLUME_MOUNTS
                || value.split(',').map(str::trim).all(|item| self.devices.contains(item) || numbered(item)))
    }

    /// NVIDIA's plugin connects containers with a shared device to its own MPS daemon.
    fn has_pipe(&self, name: &str, value: &str) -> bool {
        self.has_other_plugin() && name == "CUDA_MPS_PIPE_DIRECTORY" && value.starts_with("/mps/")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GPU: &str = "GPU-0a";
    const MIG: &str = "MIG-0b";

    fn found(env: &[(&str, &str)], allowed: &AllowedEnvironment) -> Vec<String> {
        let env: Environment = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let capabilities = ["compute", "utility"].map(str::to_owned);
        violations(&env, allowed, &capabilities).into_iter().map(str::to_owned).collect()
    }

    fn with_gpu() -> AllowedEnvironment {
        AllowedEnvironment {
            gpu: true,
            devices: [GPU.to_owned(), MIG.to_owned()].into(),
            ..AllowedEnvironment::default()
        }
    }

    #[test]
    fn variables_that_the_policy_refuses_are_violations() {
        let names = ["CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_GPU_MEMORY_LIMIT_0"];
        let names = [&names[..], DEVICE_VARIABLES].concat();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (*name, "all")).chain([("PATH", "/bin")]).collect();
        // the runtime does not read it where NVIDIA_VISIBLE_DEVICES is set
        let mut expected: Vec<&str> = names.iter().copied().filter(|name| *name != "CUDA_VERSION").collect();
        expected.sort_unstable();
        assert_eq!(found(&all, &AllowedEnvironment::default()), expected);
        for (require, read) in [("", true), ("cuda>=12.4", false)] {
            let env = [("CUDA_VERSION", "12.4"), ("NVIDIA_REQUIRE_CUDA", require)];
            assert_eq!(found(&env, &with_gpu()).len(), usize::from(read), "NVIDIA_REQUIRE_CUDA={require}");
        }
        assert_eq!(found(&[("LD_PRELOAD", "/x.so"), ("LD_AUDIT", "/y.so")], &with_gpu()), ["LD_AUDIT", "LD_PRELOAD"]);
        assert!(found(&[("LD_PRELOAD", "/x.so")], &AllowedEnvironment::default()).is_empty(), "without a GPU");
    }

    #[test]
    fn devices_of_the_container_are_allowed() {
        for value in ["void", "none", "", GPU, "GPU-0a,MIG-0b", "GPU-0a, MIG-0b"] {
            assert!(found(&[("NVIDIA_VISIBLE_DEVICES", value)], &with_gpu()).is_empty(), "{value}");
        }
        for value in ["all", "GPU-0a,GPU-0c", "GPU-0a,", "0", VOLUME_MOUNTS] {
            assert_eq!(found(&[("NVIDIA_VISIBLE_DEVICES", value)], &with_gpu()), ["NVIDIA_VISIBLE_DEVICES"], "{value}");
        }
        assert!(found(&[("NVIDIA_DRIVER_CAPABILITIES", "compute, utility")], &with_gpu()).is_empty());
        assert_eq!(found(&[("NVIDIA_DRIVER_CAPABILITIES", "compute,graphics")], &with_gpu()).len(), 1);
    }

    #[test]
    fn variables_of_nvidias_plugin_are_allowed_with_its_devices() {
        let other_plugin = AllowedEnvironment { other_plugin: true, ..with_gpu() };
        for value in ["0", "0:1,1:0", VOLUME_MOUNTS, MIG] {
            assert!(found(&[("NVIDIA_VISIBLE_DEVICES", value)], &other_plugin).is_empty(), "{value}");
        }
        assert!(found(&[("CUDA_MPS_PIPE_DIRECTORY", "/mps/nvidia.com/gpu/pipe")], &other_plugin).is_empty());
        assert_eq!(found(&[("NVIDIA_VISIBLE_DEVICES", "all")], &other_plugin).len(), 1);
        let without = AllowedEnvironment { other_plugin: true, ..AllowedEnvironment::default() };
        assert_eq!(found(&[("NVIDIA_VISIBLE_DEVICES", "0"), ("CUDA_MPS_PIPE_DIRECTORY", "/mps/x")], &without).len(), 2);
    }

    #[test]
    fn variables_of_image_and_manifest_are_allowed() {
        let image = parse(&["NVIDIA_VISIBLE_DEVICES=all".to_owned(), "NVIDIA_DRIVER_CAPABILITIES=all".to_owned()]);
        let of_image = AllowedEnvironment { image, ..with_gpu() };
        let env = [("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_DRIVER_CAPABILITIES", "all")];
        assert!(found(&env, &of_image).is_empty());
        assert_eq!(
            found(&[("NVIDIA_VISIBLE_DEVICES", "GPU-0c")], &of_image).len(),
            1,
            "another value than the image's"
        );
        let in_manifest = AllowedEnvironment { manifest: ["LD_PRELOAD".to_owned()].into(), ..with_gpu() };
        assert!(found(&[("LD_PRELOAD", "/x.so")], &in_manifest).is_empty());
    }

    #[test]
    fn links_to_services_are_no_violation() {
        let links = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR"];
        for link in links {
            let name = format!("CUDA_MPS_CONTROL_{link}");
            assert!(found(&[(&name, "tcp://10.0.0.1:80")], &AllowedEnvironment::default()).is_empty(), "{name}");
        }
        for name in ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PORTAL", "CUDA_MPS_PORT_X"] {
            assert_eq!(found(&[(name, "x")], &AllowedEnvironment::default()), [name]);
        }
    }

    #[test]
    fn parse_keeps_the_last_variable_of_a_name() {
        let env = parse(&["A=1".to_owned(), "A=2=3".to_owned(), "nonsense".to_owned()]);
        assert_eq!(env, [("A".to_owned(), "2=3".to_owned())].into());
    }

    proptest! {
        #[test]
        fn violations_do_not_grow_with_the_allowed_environment(
            names in proptest::collection::btree_set("(NVIDIA_VISIBLE_DEVICES|CUDA_MPS_[A-C]|LD_PRELOAD|NVIDIA_DRIVER_CAPABILITIES|HOME)", 0..5),
            values in proptest::collection::vec("(all|void|GPU-0a|GPU-0a,MIG-0b|0|compute|)", 5),
            gpu: bool,
        ) {
            let env: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(values.iter().map(String::as_str)).collect();
            let bare = found(&env, &AllowedEnvironment { gpu, ..AllowedEnvironment::default() });
            let held = found(&env, &AllowedEnvironment { gpu, ..with_gpu() });
            let image = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            prop_assert!(held.iter().all(|name| bare.contains(name)));
            prop_assert!(bare.iter().all(|name| group(name).is_some()));
            let of_image = AllowedEnvironment { gpu, image, ..AllowedEnvironment::default() };
            prop_assert_eq!(found(&env, &of_image), Vec::<String>::new());
        }
    }
}
