//! What the API server accepts of the kinds of this product.

mod validation;
mod virtual_cluster;
mod virtual_cluster_rules;
