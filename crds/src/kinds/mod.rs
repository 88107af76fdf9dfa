//! The kinds: what people write (profiles, pools, tenants with their virtual clusters), what the operator grants, and nodes with the layout of every GPU as
//! it should be and as it is.

mod enforcement;
mod gpu_fault;
mod gpu_grant;
mod gpu_node;
mod gpu_pool;
mod gpu_pool_status;
mod gpu_processes;
mod gpu_profile;
mod gpu_tenant;
mod layout;
mod node_enforcement;
mod virtual_cluster;

pub use enforcement::*;
pub use gpu_fault::*;
pub use gpu_grant::*;
pub use gpu_node::*;
pub use gpu_pool::*;
pub use gpu_pool_status::*;
pub use gpu_processes::*;
pub use gpu_profile::*;
pub use gpu_tenant::*;
pub use layout::*;
pub use node_enforcement::*;
pub use virtual_cluster::*;
