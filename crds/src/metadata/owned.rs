//! Whether managed fields contain a path. They may have any form and depth: what is not on the path is skipped.

use std::fmt;

use serde::{
    Deserialize as _, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// Where a tenant's guarantees are.
const GUARANTEES: &[&str] = &["f:spec", "f:gpus"];

/// Do these managed fields contain guarantees?
///
/// # Errors
/// The text is no JSON.
pub(super) fn guarantees<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Has(GUARANTEES).deserialize(from)
}

/// Whether a value has this path of keys.
struct Has(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Has {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        if self.0.is_empty() {
            return IgnoredAny::deserialize(from).map(|_| true);
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Has {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let (mut found, path) = (false, self.0.split_first());
        while let Some(key) = map.next_key::<String>()? {
            match path {
                Some((first, rest)) if key == *first => found |= map.next_value_seed(Has(rest))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }
}
