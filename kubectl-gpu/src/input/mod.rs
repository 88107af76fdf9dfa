//! Files as documents with places, so that every mistake has its file, line and field.

mod document;
mod error;
mod files;
mod schema;
mod tree;

pub use document::{Document, Object, Other, Reading, Sifted, documents, sift, values};
pub use error::{InputError, InputErrors};
pub use files::{Text, read};
pub use tree::{Step, Tree, written};
