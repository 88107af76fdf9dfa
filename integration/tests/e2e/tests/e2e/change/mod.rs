//! Layouts change under running work: planned, announced, within windows and budgets, tested, rolled back.

mod canary;
mod conflicting_owner;
mod disruption_budgets;
mod flapping;
mod maintenance_windows;
mod mig_manager;
mod plan_preview;
mod postponed_ends;
mod rollback;
mod rollout;
mod taint;
