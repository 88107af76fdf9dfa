//! What limits the memory of a tenant's pods, for its status.

use gputenancy_crds::{Isolation, condition::ConditionUpdate, reasons};
use gputenancy_decisions::fleet_view::MemoryLimit;

use crate::tenant::{decide::roles::Roles, observe::Observed};

const MEMORY_LIMITED: &str = "MemoryLimited";
/// Most GPUs that a message names.
const MOST_NAMED: usize = 4;

/// The weakest means in use by the tenant's pods; `None`: no pod has a device.
pub fn limit(seen: &Observed, roles: &Roles) -> Option<MemoryLimit> {
    seen.view.limit_of(roles.own())
}

/// The condition `MemoryLimited`.
pub fn condition(limit: &MemoryLimit) -> ConditionUpdate {
    let MemoryLimit { means, unlimited } = limit;
    if *means != Isolation::None {
        let message = format!("the memory of every pod with a device is limited; weakest means: {means}");
        return ConditionUpdate::yes(MEMORY_LIMITED, reasons::LIMITED, message);
    }
    let named: Vec<&str> = unlimited.keys().take(MOST_NAMED).map(String::as_str).collect();
    let more = unlimited.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let why = unlimited.values().find(|why| !why.is_empty()).map(|why| format!(": {why}")).unwrap_or_default();
    let message = format!(
        "nothing limits the memory of pods with shares of {}{more}, and of their neighbours there{why}; or use profiles with device.mig or device.whole; afterwards restart the pods",
        named.join(", ")
    );
    ConditionUpdate::no(MEMORY_LIMITED, reasons::NOT_LIMITED, message)
}
