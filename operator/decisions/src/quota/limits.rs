//! Limits of quotas and their units.

use std::collections::BTreeMap;

use gputenancy_crds::{names::is_gpu_resource, quantity::Amount, quota::Devices};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Limits by quota key.
pub type Limits = BTreeMap<String, Quantity>;

/// Does a quota limit a GPU resource under this key?
pub fn is_gpu_key(key: &str) -> bool {
    matches!(Devices::under(key), Some(Devices::Resource(resource)) if is_gpu_resource(resource))
}

/// The amount under a key, if it is a quantity.
pub fn amount(limits: &Limits, key: &str) -> Option<Amount> {
    limits.get(key).and_then(Amount::parse)
}

/// The smallest amount that is moved, in thousandths: MiB of bytes, thousandths of a CPU, whole numbers of everything else.
pub fn unit(key: &str) -> i128 {
    if is_bytes(key) {
        1000 << 20
    } else if key.ends_with("cpu") {
        1
    } else {
        1000
    }
}

fn is_bytes(key: &str) -> bool {
    key.ends_with("memory") || key.ends_with("storage") || key.contains("hugepages-")
}

/// The amount in the notation of the resource.
pub fn quantity(key: &str, amount: Amount) -> Quantity {
    if is_bytes(key) { amount.binary() } else { amount.quantity() }
}

/// Are these quantities equal, in any notation?
pub fn is_equal(a: &Quantity, b: &Quantity) -> bool {
    a == b || Amount::parse(a).is_some_and(|amount| Amount::parse(b) == Some(amount))
}

/// Are these limits equal, in any notation?
pub fn are_equal(a: &Limits, b: &Limits) -> bool {
    a.len() == b.len() && a.iter().all(|(key, x)| b.get(key).is_some_and(|y| is_equal(x, y)))
}
