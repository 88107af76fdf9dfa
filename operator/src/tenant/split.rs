//! How a tenant's budget lies on its namespaces, and the one rule of moving it: lower first, raise when the lower limit is in force.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::amount::Amount;
use crate::view::is_gpu_resource;

/// Limits by quota key.
pub type Limits = BTreeMap<String, Quantity>;

/// A quota as it stands: admission compares with `in_force`, which follows `written` a moment later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// `spec.hard`.
    pub written: Limits,
    /// `status.hard`.
    pub in_force: Limits,
}

impl Standing {
    /// The most that may be granted under this quota from now on, should nobody write it again.
    fn at_most(&self, key: &str) -> Amount {
        let of = |limits: &Limits| limits.get(key).and_then(Amount::parse).unwrap_or_default();
        of(&self.written).max(of(&self.in_force))
    }
}

/// The limits to write now for one namespace: its target, cut down so that no sum over the tenant's namespaces exceeds the
/// budget while the others' old limits are still in force. GPU resources that the quota has beyond the target stay, at zero: a
/// key that vanishes is a limit lifted.
pub fn limits_now(target: &Limits, own: &Standing, others: &[&Standing]) -> Limits {
    let gpus = own.written.keys().filter(|key| key.strip_prefix("requests.").is_some_and(is_gpu_resource));
    let mut now: Limits = gpus.map(|key| (key.clone(), Amount::default().quantity())).collect();
    for (key, wanted) in target {
        let taken: Amount = others.iter().map(|o| o.at_most(key)).sum();
        let limit = match Amount::parse(wanted) {
            Some(amount) if taken > Amount::default() => amount.less(taken).quantity(),
            _ => wanted.clone(),
        };
        now.insert(key.clone(), limit);
    }
    now
}

/// The same limits, however they are written?
pub fn same(a: &Limits, b: &Limits) -> bool {
    a.len() == b.len()
        && a.iter().all(|(key, x)| {
            b.get(key).is_some_and(|y| x == y || (Amount::parse(x).is_some() && Amount::parse(x) == Amount::parse(y)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &str = "requests.nvidia.com/gpu";

    fn limits(n: i32) -> Limits {
        [(KEY.to_owned(), Quantity(n.to_string()))].into()
    }

    #[test]
    fn a_budget_moves_only_once_the_old_limit_is_out_of_force() {
        let old = Standing { written: limits(0), in_force: limits(8) };
        assert_eq!(limits_now(&limits(8), &Standing::default(), &[&old]), limits(0));
        let settled = Standing { written: limits(0), in_force: limits(0) };
        assert_eq!(limits_now(&limits(8), &Standing::default(), &[&settled]), limits(8));
    }

    #[test]
    fn a_resource_that_leaves_the_catalog_stays_limited_to_zero() {
        let own = Standing { written: limits(8), in_force: limits(8) };
        assert_eq!(limits_now(&Limits::new(), &own, &[]), limits(0));
    }

    #[test]
    fn canonical_forms_of_the_server_are_no_drift() {
        let of = |text: &str| Limits::from([("requests.memory".to_owned(), Quantity(text.into()))]);
        assert!(same(&of("1024Mi"), &of("1Gi")));
        assert!(!same(&of("1Gi"), &of("2Gi")));
        assert!(!same(&of("1Gi"), &Limits::new()));
    }

    proptest! {
        /// Namespaces are written and quota status follows in any order: at no instant do limits in force exceed the budget.
        #[test]
        fn the_sum_in_force_never_exceeds_the_budget(budget in 0..50_i32, steps in prop::collection::vec((0..3_usize, 0..3_usize, any::<bool>()), 1..60)) {
            let mut quotas: [Standing; 3] = Default::default();
            for (first, at, follow) in steps {
                if follow {
                    let written = quotas[at].written.clone();
                    quotas[at].in_force = written;
                } else {
                    let target = limits(if at == first { budget } else { 0 });
                    let others: Vec<&Standing> = quotas.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, q)| q).collect();
                    let now = limits_now(&target, &quotas[at], &others);
                    quotas[at].written = now;
                }
                let sum: Amount = quotas.iter().map(|q| q.at_most(KEY)).sum();
                prop_assert!(sum <= Amount::units(budget));
            }
        }
    }
}
