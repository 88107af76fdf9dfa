//! Which variables of a container may not be there: the same that the admission policy `gputenancy-tenant-pods` refuses where they are
//! written in a manifest. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// Variables that name devices.
const DEVICES: &[&str] =
    &["NVIDIA_VISIBLE_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_IMEX_CHANNELS"];
/// Variables that limit memory or lead to somebody's MPS daemon, by how they begin.
const LIMITS: &[&str] = &["NVIDIA_GPU_MEMORY_", "CUDA_MPS_"];
/// Variables that load libraries before the driver's.
const PRELOADS: &[&str] = &["LD_PRELOAD", "LD_AUDIT"];
/// What of the driver a container gets.
const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
/// Words for no device.
const NO_DEVICE: &[&str] = &["void", "none"];
/// Where NVIDIA's plugin mounts a file for each device with its strategy `volume-mounts`, and says so in the variable.
const VOLUME_MOUNTS: &str = "/var/run/nvidia-container-devices";

/// A container's variables by name; of two with one name the last one holds.
pub type Environment = BTreeMap<String, String>;

/// What a container was rightly given.
#[derive(Clone, Debug, Default)]
pub struct Rightly {
    /// Its pod asks for a GPU.
    pub gpu: bool,
    /// UUIDs of the devices that kubelet gave it.
    pub held: BTreeSet<String>,
    /// Another device plugin gave them, and set variables of its own.
    pub elsewhere: bool,
    /// What its image sets.
    pub image: Environment,
    /// Names that its manifest writes.
    pub written: BTreeSet<String>,
}

/// Reads variables as a runtime's specification has them: `NAME=VALUE`.
pub fn environment(list: &[String]) -> Environment {
    let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    list.iter().filter_map(pair).collect()
}

/// Names of the variables that may not be there, in order. `allowed` is what [`CAPABILITIES`] may name.
pub fn hidden<'a>(env: &'a Environment, rightly: &Rightly, allowed: &[String]) -> Vec<&'a str> {
    let Rightly { gpu, held: _, elsewhere: _, image, written } = rightly;
    let wrong = |(name, value): &(&'a String, &'a String)| {
        let own = written.contains(*name) || image.get(*name) == Some(*value);
        !own && !value.is_empty()
            && match family(name) {
                Some(Family::Devices) => !devices_are_right(name, value, rightly),
                Some(Family::Limits) => !pipe_is_right(name, value, rightly),
                Some(Family::Preloads) => *gpu,
                Some(Family::Capabilities) => {
                    !value.split(',').all(|word| allowed.iter().any(|allowed| allowed == word.trim()))
                }
                None => false,
            }
    };
    env.iter().filter(wrong).map(|(name, _)| name.as_str()).collect()
}

/// Why a variable may not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// It names devices.
    Devices,
    /// It limits, or leads to a daemon.
    Limits,
    /// It loads libraries.
    Preloads,
    /// It names capabilities of the driver.
    Capabilities,
}

impl Family {
    /// What it is called in a metric.
    pub fn label(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Limits => "limits",
            Self::Preloads => "preloads",
            Self::Capabilities => "capabilities",
        }
    }
}

/// Which rule a variable falls under.
pub fn family(name: &str) -> Option<Family> {
    match name {
        CAPABILITIES => Some(Family::Capabilities),
        _ if DEVICES.contains(&name) => Some(Family::Devices),
        _ if PRELOADS.contains(&name) => Some(Family::Preloads),
        _ if LIMITS.iter().any(|begin| name.starts_with(begin)) => Some(Family::Limits),
        _ => None,
    }
}

/// Nothing is named, or nothing but what the container holds.
fn devices_are_right(name: &str, value: &str, rightly: &Rightly) -> bool {
    let Rightly { held, elsewhere, gpu: _, image: _, written: _ } = rightly;
    if name != "NVIDIA_VISIBLE_DEVICES" {
        return false;
    }
    // NVIDIA's plugin can be told to name devices by number, and nobody else knows how it counts
    let numbered = |word: &str| *elsewhere && !held.is_empty() && word.bytes().all(|b| b.is_ascii_digit() || b == b':');
    let mounted = *elsewhere && !held.is_empty() && value == VOLUME_MOUNTS;
    NO_DEVICE.contains(&value)
        || mounted
        || value.split(',').map(str::trim).all(|word| held.contains(word) || numbered(word))
}

/// NVIDIA's plugin leads those that it gave a shared device to its own MPS daemon.
fn pipe_is_right(name: &str, value: &str, rightly: &Rightly) -> bool {
    rightly.elsewhere && !rightly.held.is_empty() && name == "CUDA_MPS_PIPE_DIRECTORY" && value.starts_with("/mps/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GPU: &str = "GPU-0a";
    const MIG: &str = "MIG-0b";

    fn found(env: &[(&str, &str)], rightly: &Rightly) -> Vec<String> {
        let env: Environment = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let allowed = ["compute", "utility"].map(str::to_owned);
        hidden(&env, rightly, &allowed).into_iter().map(str::to_owned).collect()
    }

    fn with_gpu() -> Rightly {
        Rightly { gpu: true, held: [GPU.to_owned(), MIG.to_owned()].into(), ..Rightly::default() }
    }

    #[test]
    fn what_the_policy_refuses_in_a_manifest_is_found_in_an_environment() {
        let names = ["CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_GPU_MEMORY_LIMIT_0"];
        let names = [&names[..], DEVICES].concat();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (*name, "all")).chain([("PATH", "/bin")]).collect();
        let mut names: Vec<&str> = names.clone();
        names.sort_unstable();
        assert_eq!(found(&all, &Rightly::default()), names);
        assert_eq!(found(&[("LD_PRELOAD", "/x.so"), ("LD_AUDIT", "/y.so")], &with_gpu()), ["LD_AUDIT", "LD_PRELOAD"]);
        assert!(found(&[("LD_PRELOAD", "/x.so")], &Rightly::default()).is_empty(), "without a GPU it harms nobody");
    }

    #[test]
    fn what_a_container_holds_it_may_see() {
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
    fn what_nvidias_plugin_sets_is_its_own() {
        let elsewhere = Rightly { elsewhere: true, ..with_gpu() };
        for value in ["0", "0:1,1:0", VOLUME_MOUNTS, MIG] {
            assert!(found(&[("NVIDIA_VISIBLE_DEVICES", value)], &elsewhere).is_empty(), "{value}");
        }
        assert!(found(&[("CUDA_MPS_PIPE_DIRECTORY", "/mps/nvidia.com/gpu/pipe")], &elsewhere).is_empty());
        assert_eq!(found(&[("NVIDIA_VISIBLE_DEVICES", "all")], &elsewhere).len(), 1);
        let without = Rightly { elsewhere: true, ..Rightly::default() };
        assert_eq!(found(&[("NVIDIA_VISIBLE_DEVICES", "0"), ("CUDA_MPS_PIPE_DIRECTORY", "/mps/x")], &without).len(), 2);
    }

    #[test]
    fn what_the_image_sets_or_the_manifest_writes_is_not_hidden() {
        let image =
            environment(&["NVIDIA_VISIBLE_DEVICES=all".to_owned(), "NVIDIA_DRIVER_CAPABILITIES=all".to_owned()]);
        let of_image = Rightly { image, ..with_gpu() };
        let env = [("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_DRIVER_CAPABILITIES", "all")];
        assert!(found(&env, &of_image).is_empty());
        assert_eq!(
            found(&[("NVIDIA_VISIBLE_DEVICES", "GPU-0c")], &of_image).len(),
            1,
            "another value than the image's"
        );
        let written = Rightly { written: ["LD_PRELOAD".to_owned()].into(), ..with_gpu() };
        assert!(found(&[("LD_PRELOAD", "/x.so")], &written).is_empty());
    }

    #[test]
    fn of_two_variables_with_one_name_the_last_one_holds() {
        let env = environment(&["A=1".to_owned(), "A=2=3".to_owned(), "nonsense".to_owned()]);
        assert_eq!(env, [("A".to_owned(), "2=3".to_owned())].into());
    }

    proptest! {
        #[test]
        fn more_that_is_right_never_finds_more(
            names in proptest::collection::btree_set("(NVIDIA_VISIBLE_DEVICES|CUDA_MPS_[A-C]|LD_PRELOAD|NVIDIA_DRIVER_CAPABILITIES|HOME)", 0..5),
            values in proptest::collection::vec("(all|void|GPU-0a|GPU-0a,MIG-0b|0|compute|)", 5),
            gpu: bool,
        ) {
            let env: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(values.iter().map(String::as_str)).collect();
            let bare = found(&env, &Rightly { gpu, ..Rightly::default() });
            let held = found(&env, &Rightly { gpu, ..with_gpu() });
            let image = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            prop_assert!(held.iter().all(|name| bare.contains(name)));
            prop_assert!(bare.iter().all(|name| family(name).is_some()));
            let of_image = Rightly { gpu, image, ..Rightly::default() };
            prop_assert_eq!(found(&env, &of_image), Vec::<String>::new());
        }
    }
}
