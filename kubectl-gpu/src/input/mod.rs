//! Files into documents that know where they stand, so that every mistake is told with its file, line and field.

mod document;
mod error;
mod files;
mod schema;
mod tree;

pub use document::{Document, Object, Other, Reading, Sifted, documents, sift};
pub use error::{InputError, InputErrors};
pub use files::{Text, read};
pub use tree::{Step, Tree, written};
