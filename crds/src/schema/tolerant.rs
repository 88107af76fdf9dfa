//! Values that a newer release has added to an enumeration.
//!
//! Operator, agent and `kubectl gpu` exchange `GpuNode`s and statuses, and are not upgraded in the same moment. A value that this release
//! does not know is read as the most cautious one that it knows: without that the whole object would be unreadable. What people write is
//! read strictly.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IntoDeserializer as _, value::StrDeserializer},
};

/// An enumeration in an object that programs exchange.
pub(crate) trait Extensible: DeserializeOwned {
    /// The value that replaces one which this release does not know.
    const UNKNOWN: Self;
}

/// Reads a value.
pub(crate) fn value<'de, D: Deserializer<'de>, T: Extensible>(from: D) -> Result<T, D::Error> {
    Ok(known(&String::deserialize(from)?).unwrap_or(T::UNKNOWN))
}

/// Reads a value that may be absent.
pub(crate) fn option<'de, D: Deserializer<'de>, T: Extensible>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(|name| known(&name).unwrap_or(T::UNKNOWN)))
}

/// The value with this name, if this release has it.
pub(crate) fn known<T: DeserializeOwned>(name: &str) -> Option<T> {
    let name: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    T::deserialize(name).ok()
}
