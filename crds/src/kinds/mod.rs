//! What people write: profiles, pools and tenants with their virtual clusters; and what the operator grants.

mod gpu_grant;
mod gpu_pool;
mod gpu_pool_status;
mod gpu_profile;
mod gpu_tenant;
mod isolation;
pub(crate) mod patterns;
mod rollout;
mod sharing;
pub(crate) mod tolerant;
mod virtual_cluster;

pub use gpu_grant::*;
pub use gpu_pool::*;
pub use gpu_pool_status::*;
pub use gpu_profile::*;
pub use gpu_tenant::*;
pub use isolation::*;
pub use rollout::*;
pub use sharing::*;
pub use virtual_cluster::*;
