//! Is an object as it should be? Pure.
//!
//! An [`OwnedObject`] has the hash of all that its writer sets, in a normal form: for objects that one program writes and does not keep. [`includes`]
//! compares whole objects, which may have defaults and fields of others in addition. Both take quantities as amounts and empty fields as absent.

mod hash;
mod includes;

use gputenancy_crds::quantity::Amount;
pub use hash::{Owned, OwnedObject, SpecHash, version};
pub use includes::includes;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The amount that a text is: the API server writes quantities in a form of its own, such as `1Gi` for `1024Mi`.
fn amount(text: &str) -> Option<Amount> {
    Amount::parse(&Quantity(text.to_owned()))
}
