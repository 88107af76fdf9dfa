//! Which rights a program needs of the API server, and whether it has them.
//!
//! Operator and agent each have one [`Line`] for every rule of their roles. They ask the API server about each by
//! `SelfSubjectAccessReview`: a `SelfSubjectRulesReview` would be one request, but its list may be incomplete where another
//! authorizer than RBAC answers, and only says what RBAC would make of it. Asked is at the start, after a request was refused
//! ([`client`]), and again while something is missing; at rest never.

mod ask;
mod keep;
mod table;
mod text;
mod told;

pub use ask::{Answer, ask};
pub use keep::{Report, client, keep};
pub use table::{Line, Place, Right, Setting, rights};
pub use text::{lines, listed};
pub use told::print;
