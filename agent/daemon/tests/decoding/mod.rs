//! Messages of kubelet and the CDI file, with random content.

mod cdi;
mod messages;
mod newer;

use fuzz::Choices;

/// Some values, at most so many.
pub fn some<T>(choices: &mut Choices, most: usize, one: impl Fn(&mut Choices) -> T) -> Vec<T> {
    (0..choices.below(most + 1)).map(|_| one(choices)).collect()
}

/// An id of a device.
pub fn id(choices: &mut Choices) -> String {
    let ids = ["GPU-0", "GPU-1", "GPU-0::3", "GPU-0::0::1g.10gb", "MIG-0", "MIG-0::17"];
    let known = choices.once_in(2).then(|| choices.pick(&ids).copied().unwrap_or_default().to_owned());
    known.unwrap_or_else(|| choices.text())
}

/// A resource.
pub fn resource(choices: &mut Choices) -> String {
    let names = ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "gputenancy.io/fraction", "cpu"];
    choices.pick(&names).copied().unwrap_or_default().to_owned()
}
