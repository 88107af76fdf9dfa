//! Metrics of budgets, queues and capacity: what the statuses of tenants, profiles and pools show, read from the caches at each scrape.
//!
//! A tenant has several series for each profile. Above [`MOST_TENANTS`] tenants only those have series of their own that need attention, or that the administrator's labels select; the
//! sums of each profile are of all tenants.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use gputenancy_cluster::service::endpoints;
use gputenancy_crds::{GpuPool, GpuProfile, GpuTenant, GpuUse, condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

use crate::cache::Caches;

/// Tenants with series of their own: with four states of three profiles 12,000 series, a megabyte of text. Devices that are borrowed or lent add to it.
pub const MOST_TENANTS: usize = 1000;

/// Labels that select tenants for series of their own in a large cluster; empty: they select none.
pub type TenantLabels = BTreeMap<String, String>;

/// Reads the caches at each scrape, once this replica leads: two replicas would report every object twice.
#[derive(Clone, Default)]
pub struct StatusMetrics(Arc<OnceLock<(Caches, TenantLabels)>>);

impl StatusMetrics {
    /// This replica leads.
    pub fn leads(&self, caches: &Caches, selected: TenantLabels) {
        drop(self.0.set((caches.clone(), selected)));
    }
}

impl fmt::Debug for StatusMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusMetrics")
    }
}

/// The series of one tenant as text, also of one that has none of its own in a large cluster.
pub fn of_tenant(tenant: Arc<GpuTenant>) -> String {
    let mut registry = Registry::default();
    registry.sub_registry_with_prefix("gputenancy").register_collector(Box::new(OneTenant(tenant)));
    // fails only when a collector does
    endpoints::text(&registry).unwrap_or_default()
}

#[derive(Debug)]
struct OneTenant(Arc<GpuTenant>);

impl Collector for OneTenant {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = families(std::slice::from_ref(&self.0), &[], &[], &TenantLabels::new());
        encode(encoder, all.into_iter().filter(|family| family.name.starts_with("tenant_")))
    }
}

fn encode(mut encoder: DescriptorEncoder<'_>, families: impl Iterator<Item = Family>) -> fmt::Result {
    for Family { name, help, rows } in families {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

type Row = (Vec<(&'static str, String)>, i64);

/// A family of series.
struct Family {
    name: &'static str,
    help: &'static str,
    rows: Vec<Row>,
}

impl Collector for StatusMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some((caches, selected)) = self.0.get() else { return Ok(()) };
        let tenants = caches.tenants.state();
        let (profiles, pools) = (caches.profiles.state(), caches.pools.state());
        encode(encoder, families(&tenants, &profiles, &pools, selected).into_iter())
    }
}

fn families(
    tenants: &[Arc<GpuTenant>],
    profiles: &[Arc<GpuProfile>],
    pools: &[Arc<GpuPool>],
    selected: &TenantLabels,
) -> Vec<Family> {
    let family = |name, help, rows| Family { name, help, rows };
    let shown = shown(tenants, selected);
    let omitted = tenants.len() - shown.len();
    let of_tenants = |rows: &dyn Fn(&str, &GpuUse) -> Vec<Row>| -> Vec<Row> {
        let of = |tenant: &&Arc<GpuTenant>| {
            let name = tenant.name_any();
            uses(tenant).iter().flat_map(|of| rows(&name, of)).collect::<Vec<_>>()
        };
        shown.iter().flat_map(of).collect()
    };
    let pool = |value: &dyn Fn(&GpuPool) -> Option<i32>| -> Vec<Row> {
        let row = |pool: &Arc<GpuPool>| Some((vec![("pool", pool.name_any())], value(pool)?.into()));
        pools.iter().filter_map(row).collect()
    };
    let not_ready = |kind: &'static str, name: String, conditions: &[Condition]| -> Option<Row> {
        let ready = conditions.iter().find(|c| c.type_ == condition::READY && c.status != "True")?;
        Some((vec![(kind, name), ("reason", ready.reason.clone())], 1))
    };
    let conditions = |tenant: &GpuTenant| tenant.status.clone().unwrap_or_default().conditions;
    vec![
        family(
            "tenant_devices",
            "Devices of a tenant by profile: budget, used, available, unmet, borrowed, lent",
            of_tenants(&states),
        ),
        family("tenant_waiting", "Pods of a tenant that wait for a device, and controllers that a quota refuses", {
            of_tenants(&|tenant, of| vec![(of_profile(tenant, &of.profile), of.waiting.into())])
        }),
        family("tenant_queued_jobs", "Jobs that wait for admission in the queue of a tenant", {
            shown.iter().filter_map(|tenant| queued_jobs(tenant)).collect()
        }),
        family("tenant_not_ready", "1 for each tenant whose condition Ready is not True, by reason", {
            shown.iter().filter_map(|t| not_ready("tenant", t.name_any(), &conditions(t))).collect()
        }),
        family("tenants_omitted", "Tenants without series of their own", {
            vec![(Vec::new(), i64::try_from(omitted).unwrap_or(i64::MAX))]
        }),
        family("profile_devices", "Devices of all pools by profile", {
            profiles.iter().flat_map(|profile| of_catalog(profile)).collect()
        }),
        family("profile_budget_devices", "Guaranteed devices of all tenants", sums(profiles, tenants, |of| of.budget)),
        family(
            "profile_waiting",
            "Waiting pods and controllers of all tenants",
            sums(profiles, tenants, |of| of.waiting),
        ),
        family("pool_profile_devices", "Devices of a pool by profile", pools.iter().flat_map(|p| of_pool(p)).collect()),
        family("pool_gpus", "GPUs of a pool", pool(&|p| p.status.as_ref()?.gpus)),
        family("pool_nodes", "Nodes of a pool", pool(&|p| p.status.as_ref()?.nodes)),
        family(
            "pool_changing_gpus",
            "GPUs of a pool whose change is in progress",
            pool(&|p| p.status.as_ref()?.changing),
        ),
        family(
            "pool_unmet_devices",
            "Guaranteed devices that a pool cannot provide",
            pool(&|p| p.status.as_ref()?.unmet),
        ),
        family("pool_not_ready", "1 for each pool whose condition Ready is not True, by reason", {
            let of = |p: &Arc<GpuPool>| not_ready("pool", p.name_any(), &p.status.as_ref()?.conditions);
            pools.iter().filter_map(of).collect()
        }),
    ]
}

fn uses(tenant: &GpuTenant) -> &[GpuUse] {
    tenant.status.as_ref().map_or(&[], |status| &status.gpus)
}

/// The tenants with series of their own, by name.
fn shown<'t>(tenants: &'t [Arc<GpuTenant>], selected: &TenantLabels) -> Vec<&'t Arc<GpuTenant>> {
    let mut all: Vec<&Arc<GpuTenant>> = tenants.iter().collect();
    all.sort_by_cached_key(|tenant| tenant.name_any());
    if all.len() <= MOST_TENANTS {
        return all;
    }
    let is_selected = |tenant: &GpuTenant| {
        !selected.is_empty() && selected.iter().all(|(key, value)| tenant.labels().get(key) == Some(value))
    };
    // those that are asked for come first
    let (first, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|tenant| is_selected(tenant));
    let needy = rest.into_iter().filter(|tenant| needs_attention(tenant));
    first.into_iter().chain(needy).take(MOST_TENANTS).collect()
}

fn needs_attention(tenant: &GpuTenant) -> bool {
    let Some(status) = &tenant.status else { return false };
    let lacks = |of: &GpuUse| of.waiting > 0 || unmet(of) > 0;
    let ready = status.conditions.iter().find(|c| c.type_ == condition::READY);
    ready.is_some_and(|ready| ready.status != "True") || status.gpus.iter().any(lacks)
}

fn unmet(of: &GpuUse) -> i32 {
    (of.budget - of.available).max(0)
}

fn of_profile(tenant: &str, profile: &str) -> Vec<(&'static str, String)> {
    vec![("tenant", tenant.to_owned()), ("profile", profile.to_owned())]
}

fn with_state(mut labels: Vec<(&'static str, String)>, state: &str) -> Vec<(&'static str, String)> {
    labels.push(("state", state.to_owned()));
    labels
}

fn states(tenant: &str, of: &GpuUse) -> Vec<Row> {
    let all = [("budget", of.budget), ("used", of.used), ("available", of.available), ("unmet", unmet(of))];
    // no series of 0: most tenants have no queue
    let of_queue = [("borrowed", of.borrowed), ("lent", of.lent)].into_iter().filter(|(_, value)| *value > 0);
    let row = |(state, value): (&str, i32)| (with_state(of_profile(tenant, &of.profile), state), i64::from(value));
    all.into_iter().chain(of_queue).map(row).collect()
}

/// `None`: the tenant has no queue.
fn queued_jobs(tenant: &GpuTenant) -> Option<Row> {
    let queue = tenant.status.as_ref()?.queue.as_ref()?;
    Some((vec![("tenant", tenant.name_any())], queue.waiting.into()))
}

fn of_catalog(profile: &GpuProfile) -> Vec<Row> {
    let Some(capacity) = profile.status.as_ref().and_then(|status| status.capacity) else { return Vec::new() };
    let gputenancy_crds::Capacity { total, allocated, free, unschedulable } = capacity;
    let all = [("total", total), ("allocated", allocated), ("free", free), ("unschedulable", unschedulable)];
    let labels = || vec![("profile", profile.name_any())];
    all.map(|(state, value)| (with_state(labels(), state), value.into())).into()
}

fn of_pool(pool: &GpuPool) -> Vec<Row> {
    let profiles = pool.status.iter().flat_map(|status| &status.profiles);
    let of = |profile: &gputenancy_crds::PoolProfile| {
        let all = [("total", profile.total), ("allocated", profile.allocated), ("free", profile.free)];
        let labels = || vec![("pool", pool.name_any()), ("profile", profile.name.clone())];
        all.map(|(state, value)| (with_state(labels(), state), i64::from(value)))
    };
    profiles.flat_map(of).collect()
}

/// A sum over all tenants for each profile of the catalog, and of those that a tenant alone names.
fn sums(profiles: &[Arc<GpuProfile>], tenants: &[Arc<GpuTenant>], value: fn(&GpuUse) -> i32) -> Vec<Row> {
    let mut all: BTreeMap<String, i64> = profiles.iter().map(|profile| (profile.name_any(), 0)).collect();
    for of in tenants.iter().flat_map(|tenant| uses(tenant)) {
        *all.entry(of.profile.clone()).or_default() += i64::from(value(of));
    }
    all.into_iter().map(|(profile, sum)| (vec![("profile", profile)], sum)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tenant(name: &str, ready: &str, used: i32, waiting: i32, available: i32) -> Arc<GpuTenant> {
        let tenant = json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant",
            "metadata": {"name": name, "labels": {"tier": if name == "t0777" { "gold" } else { "none" }}},
            "spec": {"namespaces": [{"name": name}], "gpus": [{"profile": "mig-1g", "count": 4}]},
            "status": {
                "conditions": [{"type": "Ready", "status": ready, "reason": "CapacityUnmet", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "gpus": [{
                    "profile": "mig-1g", "resourceName": "nvidia.com/mig-1g.10gb", "budget": 4, "used": used, "available": available,
                    "waiting": waiting,
                }],
            },
        });
        Arc::new(serde_json::from_value(tenant).unwrap())
    }

    fn text(tenants: &[Arc<GpuTenant>], selected: &TenantLabels) -> String {
        let mut lines = String::new();
        for Family { name, rows, .. } in families(tenants, &[], &[], selected) {
            for (labels, value) in rows {
                let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                lines += &format!("{name}{{{}}} {value}\n", labels.join(","));
            }
        }
        lines
    }

    #[test]
    fn every_metric_is_in_the_reference() {
        let reference = include_str!("../../../docs/reference/metrics.md");
        for Family { name, .. } in families(&[], &[], &[], &TenantLabels::new()) {
            assert!(reference.contains(&format!("`gputenancy_{name}`")), "{name} is not in docs/reference/metrics.md");
        }
    }

    #[test]
    fn budget_use_and_unmet_guarantees_of_a_tenant_are_series() {
        let tenants = [tenant("team-a", "True", 2, 0, 4), tenant("team-b", "False", 1, 3, 1)];
        insta::assert_snapshot!(text(&tenants, &TenantLabels::new()), @r"
        tenant_devices{tenant=team-a,profile=mig-1g,state=budget} 4
        tenant_devices{tenant=team-a,profile=mig-1g,state=used} 2
        tenant_devices{tenant=team-a,profile=mig-1g,state=available} 4
        tenant_devices{tenant=team-a,profile=mig-1g,state=unmet} 0
        tenant_devices{tenant=team-b,profile=mig-1g,state=budget} 4
        tenant_devices{tenant=team-b,profile=mig-1g,state=used} 1
        tenant_devices{tenant=team-b,profile=mig-1g,state=available} 1
        tenant_devices{tenant=team-b,profile=mig-1g,state=unmet} 3
        tenant_waiting{tenant=team-a,profile=mig-1g} 0
        tenant_waiting{tenant=team-b,profile=mig-1g} 3
        tenant_not_ready{tenant=team-b,reason=CapacityUnmet} 1
        tenants_omitted{} 0
        profile_budget_devices{profile=mig-1g} 8
        profile_waiting{profile=mig-1g} 3
        ");
    }

    #[test]
    fn borrowed_and_lent_devices_and_waiting_jobs_are_series_of_tenants_with_a_queue() {
        let queued = |name: &str, borrowed: i32, lent: i32, waiting: i32| {
            let mut tenant = Arc::unwrap_or_clone(tenant(name, "True", 4, 0, 4));
            let status = tenant.status.as_mut().unwrap();
            status.queue = Some(gputenancy_crds::QueueUse { waiting, admitted: 1 });
            for of in &mut status.gpus {
                (of.borrowed, of.lent) = (borrowed, lent);
            }
            Arc::new(tenant)
        };
        let tenants = [queued("team-a", 2, 0, 3), queued("team-b", 0, 1, 0), tenant("team-c", "True", 4, 0, 4)];
        let lines = text(&tenants, &TenantLabels::new());
        let of_queues = |line: &&str| ["=borrowed}", "=lent}", "queued_jobs"].iter().any(|part| line.contains(part));
        let lines: Vec<&str> = lines.lines().filter(of_queues).collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        tenant_devices{tenant=team-a,profile=mig-1g,state=borrowed} 2
        tenant_devices{tenant=team-b,profile=mig-1g,state=lent} 1
        tenant_queued_jobs{tenant=team-a} 3
        tenant_queued_jobs{tenant=team-b} 0
        ");
    }

    #[test]
    fn large_cluster_shows_tenants_that_need_attention_or_are_selected_and_sums_of_all() {
        let waiting = |number: usize| i32::from(number.is_multiple_of(5));
        let name = |number: usize| format!("t{number:04}");
        let tenants: Vec<_> = (0..10_000).map(|n| tenant(&name(n), "True", 0, waiting(n), 4)).collect();
        let lines = text(&tenants, &[("tier".to_owned(), "gold".to_owned())].into());
        let own = lines.lines().filter(|line| line.starts_with("tenant_waiting")).count();
        assert_eq!(own, MOST_TENANTS);
        assert!(lines.contains("tenant_waiting{tenant=t0777,"), "selected, although it needs nothing");
        assert!(lines.contains("tenants_omitted{} 9000\n") && lines.contains("profile_waiting{profile=mig-1g} 2000\n"));
        let bytes = lines.len() * 2;
        assert!(bytes < 1 << 20, "{bytes} bytes with prefixes and quotes");
    }
}
