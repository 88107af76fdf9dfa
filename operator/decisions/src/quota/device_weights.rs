//! The weights of the devices that a fleet offers.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::ids::PoolName;
use gputenancy_plan::{
    Snapshot,
    board::{BoardGeometry, MigProfile, Shape},
};

use super::weight::Weight;

/// By resource the share of a board's memory slices that one device covers: the largest over all boards that can carry it in a pool that
/// lists its profile. Boards of silent nodes count as well, so that a share does not change with a node's health.
pub fn device_weights(snapshot: &Snapshot) -> BTreeMap<String, Weight> {
    let mut boards: BTreeMap<&PoolName, Vec<&Arc<BoardGeometry>>> = BTreeMap::new();
    for node in snapshot.nodes.values() {
        let known = boards.entry(&node.pool).or_default();
        for board in &node.boards {
            // equal nodes share their boards
            if !known.iter().any(|k| Arc::ptr_eq(k, board)) {
                known.push(board);
            }
        }
    }
    let mut weights: BTreeMap<String, Weight> = BTreeMap::new();
    for (name, pool) in &snapshot.pools {
        let here = boards.get(name).map(Vec::as_slice).unwrap_or_default();
        for profile in pool.profiles.iter().filter_map(|p| snapshot.profiles.get(p)) {
            let allowed =
                |board: &&&Arc<BoardGeometry>| profile.products.is_empty() || profile.products.contains(&board.product);
            for weight in here.iter().filter(allowed).filter_map(|board| weight(board, &profile.shape)) {
                let largest = weights.entry(profile.resource.clone()).or_insert(weight);
                *largest = weight.max(*largest);
            }
        }
    }
    weights
}

/// Why no device of a profile is granted to a tenant with `spec.gpuEquivalents`, and the remedy.
pub fn unknown_weight_message(profile: &str) -> String {
    format!(
        "what a device of profile {profile} counts against spec.gpuEquivalents is not known, so none is granted: no node of a pool that lists the profile has a board that can carry it; list it in a GpuPool with such nodes, or remove it from spec.gpus"
    )
}

fn weight(board: &BoardGeometry, shape: &Shape) -> Option<Weight> {
    match shape {
        Shape::Whole => Some(Weight::WHOLE),
        Shape::Named(_) | Shape::AtLeast { .. } => {
            board.resolve(shape).and_then(|profile| Weight::new(profile.size, board.memory_slices))
        }
        Shape::Slice { of, replicas } => {
            let parts = |profile: &MigProfile| Weight::new(profile.size, board.memory_slices * replicas);
            board.resolve(of).and_then(parts)
        }
        Shape::Share(shape) => board.share(shape).and_then(|offer| Weight::parts(board.weight(&offer))),
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{ComputeMode, Interval, ResizePolicy, SharingMode, Trust};
    use gputenancy_plan::{
        board::{ShareShape, ShareSize},
        snapshot::{Node, Pool, Profile},
    };

    use super::*;

    fn board(product: &str, memory_slices: i32, profiles: &[(&str, i32)]) -> Arc<BoardGeometry> {
        let profile = |(name, size): &(&str, i32)| MigProfile {
            name: (*name).to_owned(),
            slices: 1,
            memory: 10_240,
            size: *size,
            ..MigProfile::default()
        };
        let profiles = profiles.iter().map(profile).collect();
        Arc::new(BoardGeometry {
            product: product.into(),
            slices: 7,
            memory_slices,
            profiles,
            ..BoardGeometry::default()
        })
    }

    fn profile(shape: Shape, products: &[&str], resource: &str) -> Profile {
        let products = products.iter().map(|p| (*p).to_owned()).collect();
        Profile { shape, products, resource: resource.into(), trust: Trust::Untrusted }
    }

    fn pool(profiles: &[&str]) -> Pool {
        Pool { profiles: profiles.iter().map(|p| (*p).into()).collect(), ..Pool::default() }
    }

    fn node(pool: &str, boards: Vec<Arc<BoardGeometry>>) -> Node {
        Node { pool: pool.into(), boards, ..Node::default() }
    }

    /// Two pools of boards with axes of 8 and of 4, and an old board that is in no pool.
    fn weighed(listed: &[&str]) -> BTreeMap<String, String> {
        let (large, small) = (board("A100", 8, &[("1g.10gb", 1), ("3g.40gb", 4)]), board("A30", 4, &[("1g.6gb", 1)]));
        let quarter = ShareShape {
            mode: SharingMode::TimeSlice,
            interval: Interval::Default,
            resize: ResizePolicy::default(),
            compute_mode: ComputeMode::default(),
            size: ShareSize::Equal(4),
        };
        let any = Shape::AtLeast { slices: 1, memory: 0 };
        let snapshot = Snapshot {
            profiles: [
                ("gpu".into(), profile(Shape::Whole, &[], "nvidia.com/gpu")),
                ("one".into(), profile(Shape::Named("1g.10gb".into()), &[], "nvidia.com/mig-1g.10gb")),
                ("three".into(), profile(Shape::Named("3g.40gb".into()), &["A100"], "nvidia.com/mig-3g.40gb")),
                ("gone".into(), profile(Shape::Named("7g.80gb".into()), &[], "nvidia.com/mig-7g.80gb")),
                ("any".into(), profile(any, &[], "gputenancy.io/any")),
                ("elsewhere".into(), profile(Shape::Named("1g.6gb".into()), &["A100"], "nvidia.com/mig-1g.6gb")),
                ("shared".into(), profile(Shape::Share(quarter), &[], "gputenancy.io/shared")),
            ]
            .into(),
            pools: [("large".into(), pool(listed)), ("small".into(), pool(&["any", "elsewhere"]))].into(),
            nodes: [
                ("n1".into(), node("large", vec![large.clone()])),
                ("n2".into(), node("large", vec![large])),
                ("n3".into(), node("small", vec![small])),
            ]
            .into(),
            ..Snapshot::default()
        };
        device_weights(&snapshot).into_iter().map(|(resource, weight)| (resource, weight.to_string())).collect()
    }

    #[test]
    fn weight_is_the_largest_share_of_memory_slices_over_all_boards() {
        let found = weighed(&["gpu", "one", "three", "gone", "any", "shared"]);
        let expected = [
            ("gputenancy.io/any", "1/4"),
            ("gputenancy.io/shared", "1/4"),
            ("nvidia.com/gpu", "1"),
            ("nvidia.com/mig-1g.10gb", "1/8"),
            ("nvidia.com/mig-3g.40gb", "1/2"),
        ];
        assert_eq!(found, expected.map(|(r, w)| (r.to_owned(), w.to_owned())).into());
    }

    #[test]
    fn profile_that_no_pool_lists_has_no_weight() {
        assert_eq!(weighed(&["one"]).keys().collect::<Vec<_>>(), ["gputenancy.io/any", "nvidia.com/mig-1g.10gb"]);
    }
}
