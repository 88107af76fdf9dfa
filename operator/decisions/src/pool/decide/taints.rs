//! The taint of a pool on its nodes. An annotation marks the operator's one; others stay.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{GpuPool, PoolTaint, ids::NodeName, names, projection::SlimNode};
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt as _;

use crate::{
    fleet::Fleet,
    pool::{
        derive::ownership::Ownership,
        read::{dirty_nodes::DirtyNodes, inventory::Inventory},
    },
};

/// A write of a node's taints.
#[derive(Clone, Debug, PartialEq)]
pub struct TaintChange {
    /// All taints of the node.
    pub taints: Vec<Taint>,
    /// The operator's one among them.
    pub mark: Option<String>,
    /// The operator's one before.
    pub before: Option<String>,
}

/// Taints of the visited nodes, where they differ from what the node has; on a node with a conflicting owner, or that several pools select, they stay.
pub fn taints(
    inventory: &Inventory<'_>,
    ownership: &Ownership,
    visited: &DirtyNodes,
) -> BTreeMap<NodeName, TaintChange> {
    let fleet = inventory.fleet;
    let served = |pool: &GpuPool| {
        let taint = pool.spec.taint.clone().filter(|taint| inventory.tolerated.refuses(taint).is_none())?;
        Some((pool.name_any(), taint))
    };
    let served: BTreeMap<String, PoolTaint> = fleet.pools.iter().filter_map(served).collect();
    let mut differing = BTreeMap::new();
    for (name, node) in visited.iter().filter_map(|name| Some((name, fleet.nodes.get(name)?))) {
        let pools = ownership.pools_of(name);
        if ownership.is_conflicting(name) || pools.len() > 1 {
            continue;
        }
        let wanted = pools.first().and_then(|pool| served.get(pool.as_str()));
        let mark = node.annotations().get(names::TAINTED).map(String::as_str);
        // a mark that another client has removed is put back while its taint is there
        let known = mark.or_else(|| inventory.marks.get(name).map(String::as_str));
        let lost = || TaintChange { taints: node.spec.taints.clone(), mark: known.map(str::to_owned), before: None };
        let change = step(wanted, &node.spec.taints, known).or_else(|| (mark != known).then(lost));
        if let Some(change) = change {
            differing.insert(NodeName::from(name.as_str()), change);
        }
    }
    differing
}

/// Keeps the marks of taints that are on their nodes, and learns new ones.
pub fn remember(marks: &mut BTreeMap<String, String>, fleet: &Fleet) {
    marks.retain(|name, mark| fleet.nodes.get(name).is_some_and(|n| n.spec.taints.iter().any(|t| text(t) == *mark)));
    let marked =
        |(name, node): (&String, &Arc<SlimNode>)| Some((name.clone(), node.annotations().get(names::TAINTED)?.clone()));
    marks.extend(fleet.nodes.iter().filter_map(marked));
}

fn step(wanted: Option<&PoolTaint>, taints: &[Taint], mark: Option<&str>) -> Option<TaintChange> {
    let mut kept = without_ours(taints, mark);
    // somebody else's that does the same is as good, and stays when ours would go
    let lacking = wanted.filter(|w| !kept.iter().any(|t| t.key == w.key && t.effect == w.effect.as_str()));
    let ours = lacking.map(|w| Taint {
        key: w.key.clone(),
        value: Some(w.value.clone()).filter(|v| !v.is_empty()),
        effect: w.effect.as_str().to_owned(),
        time_added: None,
    });
    let new = ours.as_ref().map(text);
    let there = kept.len() < taints.len();
    if new.as_deref() == mark && there == new.is_some() {
        return None;
    }
    kept.extend(ours);
    Some(TaintChange { taints: kept, mark: new, before: mark.map(str::to_owned) })
}

/// The taints of a node but for the one that the mark says is ours.
pub fn without_ours(taints: &[Taint], mark: Option<&str>) -> Vec<Taint> {
    taints.iter().filter(|t| Some(text(t).as_str()) != mark).cloned().collect()
}

/// A taint as the mark on its node names it; the admission policy `gputenancy-operator-node` reads it the same way.
fn text(taint: &Taint) -> String {
    format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        let value = Some(value.to_owned()).filter(|v| !v.is_empty());
        Taint { key: key.into(), value, effect: effect.into(), time_added: None }
    }

    fn pool(key: &str, value: &str, effect: &str) -> PoolTaint {
        serde_json::from_value(json!({"key": key, "value": value, "effect": effect})).unwrap()
    }

    #[test]
    fn a_taint_comes_stays_changes_and_goes() {
        let theirs = taint("example.com/x", "", "NoExecute");
        let mut node = (vec![theirs.clone()], None);
        for wanted in [Some(("a", "NoSchedule")), Some(("b", "NoSchedule")), Some(("b", "PreferNoSchedule")), None] {
            let wanted = wanted.map(|(value, effect)| pool("nvidia.com/gpu", value, effect));
            let new = step(wanted.as_ref(), &node.0, node.1.as_deref()).unwrap();
            assert_eq!(new.taints.first(), Some(&theirs));
            assert_eq!(new.taints.len(), 1 + usize::from(wanted.is_some()));
            node = (new.taints, new.mark);
            assert_eq!(step(wanted.as_ref(), &node.0, node.1.as_deref()), None, "{wanted:?}");
        }
        assert_eq!(node, (vec![theirs], None));
    }

    #[test]
    fn one_that_somebody_else_has_put_there_is_as_good_and_stays() {
        let wanted = pool("nvidia.com/gpu", "", "NoSchedule");
        let theirs = [taint("nvidia.com/gpu", "present", "NoSchedule")];
        assert_eq!(step(Some(&wanted), &theirs, None), None);
        assert_eq!(step(None, &theirs, None), None);
    }

    #[test]
    fn one_that_somebody_takes_away_comes_back_and_the_mark_goes_where_nobody_wants_it() {
        let wanted = pool("nvidia.com/gpu", "", "NoSchedule");
        let mark = "nvidia.com/gpu=:NoSchedule";
        let again = step(Some(&wanted), &[], Some(mark)).unwrap();
        assert_eq!((again.taints.len(), again.mark.as_deref()), (1, Some(mark)));
        let gone = step(None, &[], Some(mark)).unwrap();
        assert_eq!((gone.taints.len(), gone.mark), (0, None));
    }

    fn some_taint() -> impl Strategy<Value = (String, String, String)> {
        let of = |words: &[&str]| proptest::sample::select(words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        (of(&["nvidia.com/gpu", "x"]), of(&["", "a"]), of(&["NoSchedule", "PreferNoSchedule"]))
    }

    proptest! {
        #[test]
        fn nobody_elses_taint_is_ever_touched_and_one_write_is_enough(
            there in proptest::collection::vec(some_taint(), 0..4),
            marked in proptest::option::of(some_taint()),
            wanted in proptest::option::of(some_taint()),
        ) {
            let mut taints: Vec<Taint> = there.iter().map(|(k, v, e)| taint(k, v, e)).collect();
            // as the API server holds it: one of each key and effect
            taints.sort_by(|a, b| (&a.key, &a.effect).cmp(&(&b.key, &b.effect)));
            taints.dedup_by(|a, b| a.key == b.key && a.effect == b.effect);
            let mark = marked.map(|(k, v, e)| text(&taint(&k, &v, &e)));
            let wanted = wanted.map(|(k, v, e)| pool(&k, &v, &e));
            let theirs = without_ours(&taints, mark.as_deref());
            let after = step(wanted.as_ref(), &taints, mark.as_deref());
            let (taints, mark) = after.map_or((taints, mark), |new| (new.taints, new.mark));
            prop_assert_eq!(without_ours(&taints, mark.as_deref()), theirs);
            let serves = |t: &Taint| wanted.as_ref().is_none_or(|w| t.key == w.key && t.effect == w.effect.as_str());
            prop_assert!(wanted.is_none() || taints.iter().any(serves));
            prop_assert_eq!(step(wanted.as_ref(), &taints, mark.as_deref()), None);
        }
    }
}
