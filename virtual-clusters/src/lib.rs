//! Virtual clusters of tenants (`GpuTenant.spec.virtualCluster`): a program of its own, because it needs rights in the namespaces of these
//! tenants that the operator must not have.
//!
//! [`render`] turns a tenant into the objects of vCluster's chart, with the real `helm template`. [`host`] reads and writes objects of the
//! tenant's namespace, [`inside`] those of the virtual cluster; [`backend`] is what installs it.
//! [`decide`], [`upgrade`], [`conditions`] and [`report`] are pure: what to write, which version runs, and what to report.
//! [`reconcile`] and [`teardown`] execute, [`access`] gives the team its kubeconfig, [`tenant`] writes the tenant's own object; [`run`] wires all to the command line.

pub mod access;
pub mod args;
pub mod backend;
pub mod cluster;
pub mod context;
pub mod decide;
pub mod hex;
pub mod host;
pub mod inside;
pub mod kubeconfig;
pub mod metrics;
pub mod names;
pub mod reconcile;
pub mod render;
pub mod run;
pub mod teardown;
pub mod tenant;
