//! Labels and marks of nodes that were removed or changed by hand.

use crate::pool::tests::*;

#[test]
fn labels_of_a_node_that_were_removed_or_changed_by_hand_are_written_again() {
    let fleet = settled();
    let wanted = fleet.nodes["n"].labels().clone();
    for (name, value) in [(names::POOL_LABEL, Some("other")), (names::POOL_LABEL, None), (names::LAYOUT_LABEL, None)] {
        let mut edited = fleet.clone();
        let mut node = (*edited.nodes["n"]).clone();
        let labels = node.metadata.labels.get_or_insert_default();
        match value {
            Some(value) => drop(labels.insert(name.to_owned(), value.to_owned())),
            None => drop(labels.remove(name)),
        }
        edited.nodes.insert("n".into(), Arc::new(node));
        let pass = at(&edited, 10_000, &[]);
        assert_eq!(pass.labels.values().next().unwrap()[name], wanted[name], "{name} {value:?}");
    }
}

#[test]
fn label_of_a_pool_that_another_client_set_on_a_node_without_pool_is_removed() {
    let mut fleet = fleet(&[]);
    label(&mut fleet, &[(names::POOL_LABEL, "p")]);
    let pass = at(&fleet, 0, &[]);
    let wanted = pass.labels.values().next().unwrap();
    let unwanted = crate::pool::decide::labels::unwanted(fleet.nodes["n"].labels(), wanted);
    assert_eq!(unwanted.collect::<Vec<_>>(), [names::POOL_LABEL]);
}

#[test]
fn mark_of_a_taint_that_was_removed_by_hand_is_written_again() {
    let mut fleet = settled();
    fleet.pools[0].spec.taint = Some(read(json!({"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"})));
    let set = at(&fleet, 100, &[]).taints.into_values().next().unwrap();
    let mut node = (*fleet.nodes["n"]).clone();
    node.spec.taints.clone_from(&set.taints);
    let mark = set.mark.clone().unwrap();
    node.metadata.annotations = Some([(names::TAINTED.to_owned(), mark.clone())].into());
    fleet.nodes.insert("n".into(), Arc::new(node.clone()));
    let mut marks = BTreeMap::new();
    crate::pool::decide::taints::remember(&mut marks, &fleet);
    assert_eq!(marks, [("n".to_owned(), mark)].into());
    node.metadata.annotations = None;
    fleet.nodes.insert("n".into(), Arc::new(node.clone()));
    crate::pool::decide::taints::remember(&mut marks, &fleet);
    let inventory = Inventory {
        fleet: &fleet,
        now: Timestamp::UNIX_EPOCH,
        refusals: &Refusals::new(),
        namespace: "home",
        tolerated: &Tolerated::default(),
        marks: &marks,
        lagging: &BTreeSet::new(),
        failing: &BTreeSet::new(),
        writing: &BTreeSet::new(),
    };
    let again = decide(&inventory, &mut Remembered::default()).taints.into_values().next().unwrap();
    assert_eq!((again.taints, again.mark), (set.taints, set.mark));
    node.spec.taints.clear();
    fleet.nodes.insert("n".into(), Arc::new(node));
    crate::pool::decide::taints::remember(&mut marks, &fleet);
    assert!(marks.is_empty());
}
