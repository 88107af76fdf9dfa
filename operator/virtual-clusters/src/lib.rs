//! Virtual clusters of tenants (`GpuTenant.spec.virtualCluster`): a program of its own, because it needs rights in the namespaces of these
//! tenants that the operator must not have.
//!
//! [`reconcile`] has the steps: observe the tenant's namespace and the virtual cluster inside it, decide once and purely what to write, write, and
//! report. [`teardown`] removes a virtual cluster in steps of its own.
//!
//! [`host`] reads and writes objects of the tenant's namespace, [`inside`] those of the virtual cluster, [`access`] the team's kubeconfig, and
//! [`tenant`] the tenant's own object. [`render`] turns a tenant into the objects of vCluster's chart, with the real `helm template`.
//! [`decide`] has the pure parts of a decision, [`memory`] what is remembered, and [`watches`] start a reconcile after a change in a namespace; [`run`] wires all to the command line.

pub mod access;
pub mod args;
pub mod context;
pub mod decide;
pub mod hex;
pub mod host;
pub mod host_api;
pub mod inside;
pub mod kubeconfig;
pub mod memory;
pub mod metrics;
pub mod names;
pub mod reconcile;
pub mod render;
pub mod run;
pub mod teardown;
pub mod tenant;
pub mod watches;
