//! A write, and which writes may be made at the same time. Pure.

use serde_json::Value;

use super::render::Key;
use crate::cache::kueue::Kind;

/// A write.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Server-side apply of an object whose limits are lowered, before any is raised.
    Lower(Key, Value),
    /// Server-side apply of an object.
    Apply(Key, Value),
    /// Deletion of an object that the operator wrote.
    Delete(Key),
    /// Server-side apply of fields of the status.
    Status(Key, Value),
}

impl Write {
    /// The object.
    pub fn key(&self) -> &Key {
        match self {
            Self::Lower(key, _) | Self::Apply(key, _) | Self::Status(key, _) | Self::Delete(key) => key,
        }
    }

    /// Writes of the same stage may be made at the same time; a stage begins when the one before it has ended.
    pub fn stage(&self) -> (std::mem::Discriminant<Self>, Kind) {
        (std::mem::discriminant(self), self.key().0)
    }
}
