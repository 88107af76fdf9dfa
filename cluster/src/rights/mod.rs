//! Which rights a program needs of the API server, and whether it has them.
//!
//! [`operator`] and [`agent`]: a [`Line`] for every rule of the program's roles. [`review`]: one `SelfSubjectAccessReview` for each right; the list of
//! a `SelfSubjectRulesReview` may be incomplete where another authorizer than RBAC answers. [`monitor`]: reviews at the start, after a
//! refused request ([`client`]) and while a right is missing; none at rest. [`report`]: readiness, log and the printed table.

pub mod agent;
mod locations;
mod monitor;
pub mod operator;
mod report;
mod review;
mod table;

pub use monitor::{client, monitor};
pub use report::{Report, print};
pub use table::{Line, Place, Right, Setting};
