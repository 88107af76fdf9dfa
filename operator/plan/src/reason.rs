//! Why a GPU becomes what it becomes, in one sentence: made when somebody asks, because a plan of a large fleet is made often and
//! read seldom.

use gputenancy_crds::{InstanceSpec, Layout};

use super::{
    menu::resources,
    name::GpuKey,
    outcome::{GpuPlan, Plan, Why},
};

impl Plan {
    /// What is done to a GPU, for whom, and who has to move; or why nothing is. `None`: it keeps its layout, and there is nothing to
    /// say.
    pub fn reason(&self, key: &GpuKey) -> Option<String> {
        self.reason_of(key, self.gpus.get(key)?)
    }

    /// The same for a GPU of which something else is to be said than the plan has.
    pub fn reason_of(&self, key: &GpuKey, gpu: &GpuPlan) -> Option<String> {
        let because = match &gpu.why {
            Why::Kept => return None,
            Why::LeftAlone(why) => return Some(format!("{} GPU {}: left alone, {why}", key.node, gpu.index)),
            Why::CarvedAlong(why) => return Some(format!("{} GPU {}: {why}{}", key.node, gpu.index, moves(gpu))),
            Why::Needed(profiles) => {
                let one = |profile| {
                    let supply = self.profiles.get(profile).copied().unwrap_or_default();
                    format!("{} of {profile} are guaranteed and {} exist", supply.guaranteed, supply.usable)
                };
                format!(", because {}", profiles.iter().map(one).collect::<Vec<_>>().join(" and "))
            }
            Why::Written => format!(", as pool {} has it in spec.layout.fixed", gpu.pool),
            Why::Spare => format!(", as a spare of pool {}", gpu.pool),
            Why::Policy => String::new(),
        };
        let deeds = deeds(gpu.from.as_deref(), gpu.target.as_deref());
        Some(format!("{} GPU {}: {}{because}{}", key.node, gpu.index, deeds.join(", "), moves(gpu)))
    }
}

fn deeds(base: Option<&Layout>, target: Option<&Layout>) -> Vec<String> {
    let instances = |l: Option<&Layout>| l.map(|l| l.instances.clone()).unwrap_or_default();
    let (old, new) = (instances(base), instances(target));
    let created: Vec<String> = new.iter().filter(|i| !old.contains(i)).map(at).collect();
    let removed: Vec<String> = old.iter().filter(|i| !new.contains(i)).map(at).collect();
    let mut deeds = Vec::new();
    match (base.is_some_and(|l| l.mig), target.is_some_and(|l| l.mig)) {
        (false, true) => deeds.push("turn MIG on".to_owned()),
        (true, false) => deeds.push("make it one whole device".to_owned()),
        (false, false) => deeds.extend(target.map(|l| format!("offer it whole as {}", resources(l).concat()))),
        (true, true) => {}
    }
    if !removed.is_empty() {
        deeds.push(format!("remove {}", removed.join(", ")));
    }
    if !created.is_empty() {
        deeds.push(format!("create {}", created.join(", ")));
    }
    deeds
}

fn moves(gpu: &GpuPlan) -> String {
    if gpu.evicts.is_empty() {
        return "; nobody is evicted".to_owned();
    }
    let pods: Vec<String> = gpu.evicts.iter().map(|e| format!("{} (has {} at {})", e.pod, e.device, e.start)).collect();
    format!("; must move: {}", pods.join(", "))
}

fn at(instance: &InstanceSpec) -> String {
    format!("{} at {}", instance.profile, instance.start)
}
