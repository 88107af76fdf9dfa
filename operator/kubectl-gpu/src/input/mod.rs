//! Files as documents with places, so that every mistake has its file, line and field.

mod document;
mod error;
mod files;
mod finding;
mod located;
pub mod rule;
mod schema;
mod structure;

pub use document::{Classified, Document, Object, Reading, classify, documents, values};
pub use error::{FileError, InputError};
pub use files::{Text, read};
pub use finding::Finding;
pub use located::{Located, field_path, token};
