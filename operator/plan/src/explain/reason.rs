//! Why a GPU has its target, in one sentence.

use gputenancy_crds::{InstanceSpec, Layout, ShareGroup, words::are};

use crate::result::{GpuPlan, Plan, Why};
use gputenancy_crds::ids::GpuKey;

/// One sentence for every change and every problem, in the order of the fleet.
pub fn explain(plan: &Plan) -> Vec<String> {
    let changes = plan.gpus.keys().filter_map(|key| plan.reason(key));
    changes.chain(plan.problems.iter().map(ToString::to_string)).collect()
}

impl Plan {
    /// The change of a GPU, its guarantees and the evicted pods; or why the GPU is no supply. `None`: it keeps its layout.
    pub fn reason(&self, key: &GpuKey) -> Option<String> {
        self.reason_of(key, self.gpus.get(key)?)
    }

    /// The same for a GPU whose plan differs from this one.
    pub fn reason_of(&self, key: &GpuKey, gpu: &GpuPlan) -> Option<String> {
        let because = match &gpu.why {
            Why::Kept => return None,
            Why::LeftAlone(why) => return Some(format!("{} GPU {}: unchanged, {why}", key.node, gpu.index)),
            Why::Repartitioned(why) => return Some(format!("{} GPU {}: {why}{}", key.node, gpu.index, evictions(gpu))),
            Why::Needed(profiles) => {
                let one = |profile| {
                    let supply = self.profiles.get(profile).copied().unwrap_or_default();
                    let exist = if supply.usable == 1 { "exists" } else { "exist" };
                    format!(
                        "{} of {profile} {} guaranteed and {} {exist}",
                        supply.guaranteed,
                        are(&supply.guaranteed),
                        supply.usable
                    )
                };
                format!(", because {}", profiles.iter().map(one).collect::<Vec<_>>().join(" and "))
            }
            Why::Fixed => format!(", as pool {} has it in spec.layout.fixed", gpu.pool),
            Why::Spare => format!(", as a spare of pool {}", gpu.pool),
            Why::Policy => String::new(),
        };
        let actions = actions(gpu.from.as_deref(), gpu.target.as_deref());
        Some(format!("{} GPU {}: {}{because}{}", key.node, gpu.index, actions.join(", "), evictions(gpu)))
    }
}

fn actions(base: Option<&Layout>, target: Option<&Layout>) -> Vec<String> {
    let instances = |l: Option<&Layout>| l.map(|l| l.instances.clone()).unwrap_or_default();
    let (old, new) = (instances(base), instances(target));
    let at = |i: &InstanceSpec| match i.replicas {
        Some(n) => format!("{} at {} in {n} time-slices", i.profile, i.start),
        None => format!("{} at {}", i.profile, i.start),
    };
    let created: Vec<String> = new.iter().filter(|i| !old.contains(i)).map(at).collect();
    let removed: Vec<String> = old.iter().filter(|i| !new.contains(i)).map(at).collect();
    let mut actions = Vec::new();
    match (base.is_some_and(|l| l.mig), target.is_some_and(|l| l.mig)) {
        (false, true) => actions.push("turn MIG on".to_owned()),
        (true, false) => match target.filter(|l| l.sharing.is_some()) {
            Some(shared) => actions.push(format!("turn MIG off and {}", offered(shared))),
            None => actions.push("make it one whole device".to_owned()),
        },
        (false, false) => actions.extend(target.map(offered)),
        (true, true) => {}
    }
    for (verb, instances) in [("remove", removed), ("create", created)] {
        if !instances.is_empty() {
            actions.push(format!("{verb} {}", instances.join(", ")));
        }
    }
    actions
}

/// The devices that a GPU without MIG has.
fn offered(layout: &Layout) -> String {
    let Some(sharing) = &layout.sharing else { return format!("offer it whole as {}", layout.resources().concat()) };
    let group = |g: &ShareGroup| format!("{} × {}", g.numbers.len(), g.resource);
    let shares: Vec<String> = sharing.shares.iter().map(group).collect();
    format!("share it ({}) as {}", sharing.mode.field(), shares.join(" + "))
}

fn evictions(gpu: &GpuPlan) -> String {
    if gpu.evicts.is_empty() {
        return "; no pod is evicted".to_owned();
    }
    let pods: Vec<String> = gpu.evicts.iter().map(|e| format!("{} (has {} at {})", e.pod, e.device, e.start)).collect();
    format!("; evicts {}", pods.join(", "))
}
