//! A planner that keeps its last plan has the plan of the present fleet after any history.

use std::collections::BTreeSet;

use gputenancy_crds::ids::{GpuKey, NodeName};
use gputenancy_plan::{Plan, Planned, Planner, membership, plan};
use proptest::{prelude::*, sample::Index as Pick};

use crate::{
    config,
    properties::{Case, cases, instances, kinds, name},
    support::fleet::Fleet,
};

/// Something that happens to a fleet.
#[derive(Clone, Debug)]
enum Step {
    /// A tenant wants so much of one profile, at this priority.
    Want(usize, usize, i32, i32),
    /// A tenant has another's namespace too.
    Join(usize, bool),
    /// A pod of this namespace starts somewhere.
    Start(usize, Pick),
    /// A pod ends.
    Stop(Pick),
    /// A node answers, or does not.
    Ready(Pick, bool),
    /// A tenant goes.
    Leave(usize),
    /// A node goes.
    Gone(Pick),
    /// What is planned is carried out.
    Settle,
    /// The pool leaves spare GPUs, or does not.
    Spare(bool),
    /// Pods named like this one have a priority, or none.
    Priority(usize, usize, i32),
    /// A node leaves the pool, or returns.
    Member(Pick, bool),
    /// The pool's GPUs are observed only, or partitioned.
    Observed(bool),
    /// The agent of a node reports what limits shares.
    Limits(Pick, bool),
}

const TENANTS: [&str; 3] = ["t", "u", "v"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..2_usize, 0..3_usize, 0..7_i32, -1..=1_i32).prop_map(|(t, p, n, r)| Step::Want(t, p, n, r)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(t, on)| Step::Join(t, on)),
        3 => (0..3_usize, any::<Pick>()).prop_map(|(t, at)| Step::Start(t, at)),
        2 => any::<Pick>().prop_map(Step::Stop),
        1 => (any::<Pick>(), any::<bool>()).prop_map(|(n, on)| Step::Ready(n, on)),
        1 => (0..2_usize).prop_map(Step::Leave),
        1 => any::<Pick>().prop_map(Step::Gone),
        2 => Just(Step::Settle),
        1 => any::<bool>().prop_map(Step::Spare),
        1 => (0..3_usize, 0..8_usize, 0..2_i32).prop_map(|(t, n, p)| Step::Priority(t, n, p)),
        1 => (any::<Pick>(), any::<bool>()).prop_map(|(n, on)| Step::Member(n, on)),
        1 => any::<bool>().prop_map(Step::Observed),
        1 => (any::<Pick>(), any::<bool>()).prop_map(|(n, on)| Step::Limits(n, on)),
    ];
    proptest::collection::vec(step, 1..8)
}

fn happen(fleet: &mut Fleet, case: &Case, step: &Step, number: usize) {
    let profiles = &kinds()[case.kind].1;
    match step {
        Step::Want(tenant, profile, count, priority) => {
            let name = name(profiles[profile % profiles.len()]);
            let namespaces = fleet.tenants.iter().find(|t| t.metadata.name.as_deref() == Some(TENANTS[*tenant]));
            let namespaces = namespaces.map(|t| t.spec.namespaces.clone());
            *fleet = std::mem::take(fleet).tenant(TENANTS[*tenant], &[(&name, *count)]);
            let spec = &mut fleet.tenants.last_mut().unwrap().spec;
            spec.priority = *priority;
            spec.namespaces = namespaces.unwrap_or_else(|| spec.namespaces.clone());
        }
        Step::Join(tenant, on) => {
            let tenant = fleet.tenants.iter_mut().find(|t| t.metadata.name.as_deref() == Some(TENANTS[*tenant]));
            if let Some(tenant) = tenant {
                tenant.spec.namespaces.truncate(1);
                if *on {
                    tenant.spec.namespaces.push(gputenancy_crds::TenantNamespace { name: "v".into(), adopt: false });
                }
            }
        }
        Step::Start(tenant, at) => {
            let free: Vec<(String, i32)> = fleet
                .nodes
                .iter()
                .zip(instances(fleet))
                .flat_map(|(n, all)| {
                    all.into_iter()
                        .filter(|i| i.device.as_ref().is_some_and(|d| d.owner.is_none()))
                        .map(|i| (n.name.clone(), i.start))
                })
                .collect();
            if !free.is_empty() {
                let (node, start) = at.get(&free);
                fleet.start_at(TENANTS[*tenant], &format!("late-{number}"), (node, 0, *start));
            }
        }
        Step::Stop(at) => {
            let gpus = fleet.nodes.iter_mut().flat_map(|n| &mut n.gpus.status.as_mut().unwrap().gpus);
            let mut busy: Vec<_> =
                gpus.flat_map(crate::support::fleet::devices).filter(|d| d.owner.is_some()).collect();
            if !busy.is_empty() {
                let at = at.index(busy.len());
                (busy[at].owner, busy[at].clients) = (None, 0);
            }
        }
        Step::Leave(tenant) => fleet.tenants.retain(|t| t.metadata.name.as_deref() != Some(TENANTS[*tenant])),
        Step::Ready(node, on) if !fleet.nodes.is_empty() => {
            let at = node.index(fleet.nodes.len());
            fleet.nodes[at].ready = *on;
        }
        Step::Gone(node) if fleet.nodes.len() > 1 => {
            let at = node.index(fleet.nodes.len());
            fleet.nodes.remove(at);
        }
        Step::Ready(..) | Step::Gone(_) => {}
        Step::Priority(tenant, pod, value) => {
            let name = (TENANTS[*tenant].to_owned(), format!("late-{pod}"));
            fleet.priorities.insert(name, *value);
            fleet.priorities.retain(|_, value| *value != 0);
        }
        Step::Member(node, on) => {
            let at = node.index(fleet.nodes.len());
            let pool = if *on { fleet.pools[0].metadata.name.clone().unwrap() } else { "none".to_owned() };
            fleet.nodes[at].labels.insert("pool".into(), pool);
        }
        Step::Observed(only) => {
            let partitioner = if *only { "None" } else { "Agent" };
            fleet.pools[0].spec.partitioner = serde_json::from_value(partitioner.into()).unwrap();
        }
        Step::Limits(node, on) => {
            let at = node.index(fleet.nodes.len());
            let means = serde_json::json!({"timeSlice": "Software", "mps": "Server", "fraction": "Software"});
            let means = on.then(|| serde_json::from_value(means).unwrap());
            fleet.nodes[at].gpus.status.as_mut().unwrap().enforcement = means;
            fleet.pools[0].spec.enforcement.minimum = gputenancy_crds::Isolation::Software;
        }
        Step::Settle => {
            let plan = fleet.plan();
            fleet.apply(&plan);
        }
        Step::Spare(whole) => {
            let policy = if *whole { "Whole" } else { "Keep" };
            fleet.pools[0].spec.layout.spare = serde_json::from_value(serde_json::json!({"policy": policy})).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn planner_after_any_history_has_the_plan_of_the_present_fleet(case in cases(4), steps in steps()) {
        let mut fleet = case.running();
        let (mut planner, mut before) = (Planner::default(), Plan::default());
        for (number, step) in steps.iter().enumerate() {
            happen(&mut fleet, &case, step, number);
            let (snapshot, problems) = fleet.snapshot();
            let cluster = fleet.cluster();
            let members = membership(&cluster.pools, cluster.nodes.iter().map(|n| (n.name, n.labels)));
            prop_assert_eq!(planner.read(&cluster, &members), problems, "after {:?}", step);
            let Planned { snapshot: read, plan: planned, changes, differing } = planner.planned();
            prop_assert_eq!(read, &snapshot, "after {:?}", step);
            prop_assert_eq!(planned, &plan(&snapshot), "after {:?}", step);
            let keys = planned.gpus.keys().chain(before.gpus.keys());
            let differs = |key: &&GpuKey| planned.gpus.get(*key) != before.gpus.get(*key);
            let expected: BTreeSet<NodeName> = keys.filter(differs).map(|key| key.node.clone()).collect();
            prop_assert_eq!(differing, &expected, "after {:?}", step);
            let changed = planned.gpus.iter().filter(|(_, gpu)| gpu.changed);
            prop_assert!(changed.map(|(key, _)| key).eq(changes), "after {:?}", step);
            before = planned.clone();
        }
    }
}
