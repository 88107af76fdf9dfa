//! Namespaces, budgets, isolation and what a team sees.

mod budget;
mod conditions;
mod deletion;
mod isolation;
mod namespace_blockers;
mod resource_names;
mod tenant_view;
mod unreadable_times;
