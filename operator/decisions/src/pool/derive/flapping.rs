//! Guarantees that flap, for the status of the pools that offer their profiles, and for tenants.

use gputenancy_crds::{
    FlappingGuarantee, GpuPool,
    condition::{self, ConditionUpdate},
    reasons,
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::ResourceExt as _;

use crate::{
    demand::{Demands, Flapping},
    event::EventMessage,
    fleet::Fleet,
};

/// Guarantees for profiles of the pool change up and down.
pub const DEMAND_FLAPPING: &str = "DemandFlapping";

/// Most guarantees in a status.
const MOST_LISTED: usize = 16;

/// Those for a pool's profiles.
fn of_pool<'a>(pool: &GpuPool, demands: &'a Demands, now: Timestamp) -> impl Iterator<Item = Flapping<'a>> {
    demands.flapping(now).filter(|flapping| pool.spec.profiles.iter().any(|profile| profile == flapping.profile))
}

/// The pool of each, as often as it has one.
pub fn pools(fleet: &Fleet, demands: &Demands, now: Timestamp) -> Vec<String> {
    fleet.active_pools().flat_map(|pool| of_pool(pool, demands, now).map(|_| pool.name_any())).collect()
}

/// The list in the status of a pool, and the condition `DemandFlapping`.
pub fn report(pool: &GpuPool, demands: &Demands, now: Timestamp) -> (Vec<FlappingGuarantee>, ConditionUpdate) {
    let listed: Vec<Flapping<'_>> = of_pool(pool, demands, now).collect();
    let named: Vec<String> = listed.iter().take(MOST_LISTED).map(sentence).collect();
    let update = if named.is_empty() {
        let message = "no guarantee for a profile of the pool changes up and down";
        ConditionUpdate::no(DEMAND_FLAPPING, reasons::DEMAND_SETTLED, message)
    } else {
        let more = listed.len().saturating_sub(MOST_LISTED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let remedy = "let one writer own spec.gpus of the GpuTenant";
        ConditionUpdate::yes(DEMAND_FLAPPING, reasons::FLAPPING, format!("{}{more}: {remedy}", named.join("; ")))
    };
    (listed.into_iter().take(MOST_LISTED).map(entry).collect(), update)
}

fn entry(flapping: Flapping<'_>) -> FlappingGuarantee {
    let Flapping { tenant, profile, wanted, planned, due, changes, writers } = flapping;
    FlappingGuarantee {
        tenant: tenant.to_owned(),
        profile: profile.to_owned(),
        writers: writers.iter().cloned().collect(),
        changes: i32::try_from(changes).unwrap_or(i32::MAX),
        wanted,
        planned,
        planned_at: due.map(Time),
    }
}

fn sentence(flapping: &Flapping<'_>) -> String {
    let Flapping { tenant, profile, changes, writers, .. } = flapping;
    let by = writers.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let by = if by.is_empty() { String::new() } else { format!(", written by {by}") };
    format!(
        "guarantee of tenant {tenant} for {profile} has changed {changes} times up and down{by}; {}",
        plans(flapping)
    )
}

fn plans(Flapping { wanted, planned, due, .. }: &Flapping<'_>) -> String {
    let devices =
        if *planned == 1 { "1 device is planned".to_owned() } else { format!("{planned} devices are planned") };
    match due {
        Some(due) => format!("{devices}, and {wanted} from {due} on if it stays"),
        None => devices,
    }
}

/// Why a tenant does not have all devices of its present guarantees yet, each with the tenant's name.
pub fn waiting(demands: &Demands, now: Timestamp) -> impl Iterator<Item = (&str, String)> {
    demands.flapping(now).filter(|f| f.due.is_some() && f.planned < f.wanted).map(|flapping| {
        let Flapping { tenant, profile, changes, .. } = flapping;
        (tenant, format!("{profile}: the guarantee has changed {changes} times up and down; {}", plans(&flapping)))
    })
}

/// The event about a condition that has changed, if any.
pub fn event(before: &[Condition], now: &[Condition]) -> Option<EventMessage> {
    let new = now.iter().find(|c| c.type_ == DEMAND_FLAPPING)?;
    match (condition::is_true(before, DEMAND_FLAPPING), new.status == "True") {
        (false, true) => Some(EventMessage::warning(reasons::FLAPPING, new.message.clone())),
        (true, false) => Some(EventMessage::normal(reasons::DEMAND_SETTLED, new.message.clone())),
        _ => None,
    }
}
