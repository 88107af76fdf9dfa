//! A fleet of real custom resources, in which plans are applied at once.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use gputenancy_crds::{
    Board, Device, DeviceOwner, DeviceState, GpuNode, GpuNodeSpec, GpuNodeStatus, GpuPool, GpuProfile, GpuSpec,
    GpuState, GpuTenant, Layout, Mig, MigMode, Whole,
};
use gputenancy_plan::{Cluster, NodeFacts, Plan, Snapshot, plan};
use serde_json::json;

#[path = "../../support/carve.rs"]
mod silicon;

pub use silicon::{carve, devices};

#[derive(Clone, Default)]
pub struct Fleet {
    pub profiles: Vec<GpuProfile>,
    pub pools: Vec<GpuPool>,
    pub tenants: Vec<GpuTenant>,
    pub nodes: Vec<Member>,
    /// Values of the pods' priority classes.
    pub priorities: BTreeMap<(String, String), i32>,
}

#[derive(Clone)]
pub struct Member {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub ready: bool,
    /// What others say about it.
    pub marked: Option<&'static str>,
    /// What others say about GPUs of it.
    pub withdrawn: BTreeMap<String, String>,
    pub gpus: Agreement,
}

/// A `GpuNode`; a changed one is another object, as in a cache.
#[derive(Clone)]
pub struct Agreement(Arc<GpuNode>);

impl Deref for Agreement {
    type Target = GpuNode;

    fn deref(&self) -> &GpuNode {
        &self.0
    }
}

impl DerefMut for Agreement {
    fn deref_mut(&mut self) -> &mut GpuNode {
        Arc::make_mut(&mut self.0)
    }
}

impl Member {
    fn facts(&self) -> NodeFacts<'_> {
        let gpus = Some(&self.gpus.0);
        let marked = self.marked.map(Into::into);
        let withdrawn = self.withdrawn.iter().map(|(uuid, why)| (uuid.as_str(), why.as_str().into())).collect();
        NodeFacts { name: &self.name, labels: &self.labels, ready: self.ready, foreign: None, marked, withdrawn, gpus }
    }
}

impl Fleet {
    pub fn profile(mut self, name: &str, device: Device) -> Self {
        let support = json!({"expected": "as it is", "incident": "when it is not"});
        let spec = json!({"device": serde_json::to_value(device).unwrap(), "support": support});
        self.profiles.retain(|known| known.metadata.name.as_deref() != Some(name));
        self.profiles.push(GpuProfile::new(name, serde_json::from_value(spec).unwrap()));
        self
    }

    pub fn mig(self, name: &str, profile: &str) -> Self {
        self.profile(
            name,
            Device { mig: Some(Mig { profile: Some(profile.into()), ..Mig::default() }), ..Device::default() },
        )
    }

    pub fn whole(self, name: &str) -> Self {
        self.profile(name, Device { whole: Some(Whole {}), ..Device::default() })
    }

    pub fn pool(self, name: &str, profiles: &[&str]) -> Self {
        self.pool_with(name, profiles, &json!({}))
    }

    pub fn pool_with(mut self, name: &str, profiles: &[&str], layout: &serde_json::Value) -> Self {
        let selector = json!({"matchLabels": {"pool": name}});
        let spec = json!({"nodeSelector": selector, "profiles": profiles, "layout": layout});
        self.pools.push(GpuPool::new(name, serde_json::from_value(spec).unwrap()));
        self
    }

    pub fn tenant(mut self, name: &str, gpus: &[(&str, i32)]) -> Self {
        let gpus: Vec<_> = gpus.iter().map(|(profile, count)| json!({"profile": profile, "count": count})).collect();
        let spec = json!({"namespaces": [{"name": name}], "gpus": gpus});
        self.tenants.retain(|t| t.metadata.name.as_deref() != Some(name));
        self.tenants.push(GpuTenant::new(name, serde_json::from_value(spec).unwrap()));
        self
    }

    pub fn node(mut self, name: &str, pool: &str, boards: &[Board]) -> Self {
        let mut kinds: Vec<Board> = Vec::new();
        let mut gpus = Vec::new();
        for (index, board) in boards.iter().enumerate() {
            let kind = kinds.iter().position(|b| b == board).unwrap_or_else(|| {
                kinds.push(board.clone());
                kinds.len() - 1
            });
            gpus.push(GpuState {
                uuid: format!("GPU-{name}-{index}"),
                index: index.try_into().unwrap(),
                board: kind.try_into().unwrap(),
                mig: (board.slices > 0).then(MigMode::default),
                whole: Some(DeviceState::default()),
                ..GpuState::default()
            });
        }
        let mut node = GpuNode::new(name, GpuNodeSpec::default());
        node.status = Some(GpuNodeStatus { boards: kinds, gpus, ..GpuNodeStatus::default() });
        let labels = [("pool".to_owned(), pool.to_owned())].into();
        self.nodes.push(Member {
            withdrawn: BTreeMap::new(),
            name: name.into(),
            labels,
            ready: true,
            marked: None,
            gpus: Agreement(Arc::new(node)),
        });
        self
    }

    pub fn cluster(&self) -> Cluster<'_> {
        Cluster {
            profiles: self.profiles.iter().collect(),
            pools: self.pools.iter().collect(),
            tenants: self.tenants.iter().map(demanded).collect(),
            nodes: self.nodes.iter().map(Member::facts).collect(),
            priorities: self.priorities.iter().map(|((ns, pod), value)| ((&**ns, &**pod), *value)).collect(),
        }
    }

    pub fn snapshot(&self) -> (Snapshot, Vec<gputenancy_plan::Problem>) {
        Snapshot::read(&self.cluster())
    }

    pub fn plan(&self) -> Plan {
        plan(&self.snapshot().0)
    }

    /// Applies a plan as if every change succeeded; evicted pods do not return.
    pub fn apply(&mut self, plan: &Plan) {
        for (key, gpu) in &plan.gpus {
            let Some(target) = &gpu.target else { continue };
            let member = self.nodes.iter_mut().find(|n| n.name == key.node.as_str()).unwrap();
            let Layout { mig, instances, resource, sharing } = (**target).clone();
            let spec = GpuSpec { uuid: key.uuid.to_string(), mig, instances, resource, sharing, ..GpuSpec::default() };
            member.gpus.spec.gpus.retain(|g| g.uuid != spec.uuid);
            member.gpus.spec.gpus.push(spec);
            let status = member.gpus.status.as_mut().unwrap();
            carve(status.gpus.iter_mut().find(|g| g.uuid == key.uuid.as_str()).unwrap(), target);
        }
    }

    /// As [`Fleet::apply`]; evicted pods start again where a device of the same resource is free.
    pub fn carry_out(&mut self, plan: &Plan) {
        let before = self.owners();
        self.apply(plan);
        let after = self.owners();
        for (owner, resource) in before.into_iter().filter(|o| !after.contains(o)) {
            self.start(&owner.namespace, &owner.pod, &resource);
        }
    }

    fn owners(&mut self) -> Vec<(DeviceOwner, String)> {
        let gpus = self.nodes.iter_mut().flat_map(|n| &mut n.gpus.status.as_mut().unwrap().gpus);
        gpus.flat_map(devices).filter_map(|d| Some((d.owner.clone()?, d.resource.clone()?))).collect()
    }

    pub fn settle(mut self) -> Self {
        let plan = self.plan();
        self.apply(&plan);
        self
    }

    /// Starts a pod on the first free device of a resource, GPUs in the order of the fleet; false when there is none.
    pub fn start(&mut self, namespace: &str, pod: &str, resource: &str) -> bool {
        let gpus = self.nodes.iter_mut().flat_map(|n| &mut n.gpus.status.as_mut().unwrap().gpus);
        let mut devices = gpus.flat_map(devices);
        let free = devices.find(|d| d.owner.is_none() && d.resource.as_deref() == Some(resource));
        free.map(|d| occupy(d, namespace, pod)).is_some()
    }

    /// Starts a pod on one device.
    pub fn start_at(&mut self, namespace: &str, pod: &str, (node, gpu, start): (&str, usize, i32)) {
        let member = self.nodes.iter_mut().find(|n| n.name == node).unwrap();
        let gpu = &mut member.gpus.status.as_mut().unwrap().gpus[gpu];
        let instance = gpu.instances.iter_mut().find(|i| i.start == start).and_then(|i| i.device.as_mut());
        let share = gpu.shares.iter_mut().find(|s| s.number == start).map(|s| &mut s.device);
        occupy(instance.or(share).or(gpu.whole.as_mut()).unwrap(), namespace, pod);
    }

    pub fn layout(&self, node: &str, gpu: usize) -> String {
        let member = self.nodes.iter().find(|n| n.name == node).unwrap();
        let gpu = &member.gpus.status.as_ref().unwrap().gpus[gpu];
        if gpu.whole.is_some() {
            return "whole".into();
        }
        if !gpu.shares.is_empty() {
            let texts: Vec<_> = gpu
                .shares
                .iter()
                .map(|s| format!("{}#{}", s.device.resource.as_deref().unwrap_or("?"), s.number))
                .collect();
            return texts.join(" ");
        }
        let texts: Vec<_> = gpu.instances.iter().map(|i| format!("{}@{}", i.profile, i.start)).collect();
        texts.join(" ")
    }
}

fn occupy(device: &mut DeviceState, namespace: &str, pod: &str) {
    assert!(device.owner.is_none(), "{namespace}/{pod}: the device is taken");
    let owner = DeviceOwner { namespace: namespace.into(), pod: pod.into(), container: "main".into() };
    (device.owner, device.clients) = (Some(owner), 1);
}

fn demanded(tenant: &GpuTenant) -> gputenancy_plan::TenantFacts<'_> {
    gputenancy_plan::TenantFacts {
        name: tenant.metadata.name.as_deref().unwrap(),
        namespaces: &tenant.spec.namespaces,
        refused: BTreeMap::new(),
        trust: tenant.spec.trust,
        acknowledged: tenant.spec.acknowledges_shares(),
        priority: tenant.spec.priority,
        gpus: &tenant.spec.gpus,
        equivalents: tenant.spec.gpu_equivalents.as_deref(),
    }
}
