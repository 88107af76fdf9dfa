//! Crashes, upgrades, faults, silence, and the absence of writes at rest.

mod controller_wakeup;
mod crashes;
mod driver_upgrade;
mod fault_recovery;
mod helm;
mod idle_writes;
mod incidents;
mod lost_objects;
mod node_health;
mod nvsentinel;
mod slow_webhook;
