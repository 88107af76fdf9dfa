//! Gauges of objects that come and go, such as pods: the series of an object ends with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicI64},
};

use gputenancy_cluster::service::metrics::Labels;
use prometheus_client::metrics::{
    family::Family,
    gauge::{Atomic, Gauge},
};

/// Gauges by labels; clones share their values.
pub struct Series<const N: usize, V = i64, A = AtomicI64> {
    gauges: Family<Labels<N>, Gauge<V, A>>,
    /// Labels with a gauge.
    shown: Arc<Mutex<BTreeSet<Labels<N>>>>,
}

impl<const N: usize, V, A> Clone for Series<N, V, A> {
    fn clone(&self) -> Self {
        Self { gauges: self.gauges.clone(), shown: self.shown.clone() }
    }
}

impl<const N: usize> Series<N> {
    /// Sets the gauges to these values, which are all. A value above `i64::MAX` counts as that.
    pub fn set(&self, values: &BTreeMap<Labels<N>, u64>) {
        let number = |value: &u64| i64::try_from(*value).unwrap_or(i64::MAX);
        self.replace(&values.iter().map(|(labels, value)| (labels.clone(), number(value))).collect());
    }
}

impl<const N: usize, V: Copy, A: Atomic<V> + Default> Series<N, V, A> {
    /// Series of registered gauges.
    pub fn of(gauges: Family<Labels<N>, Gauge<V, A>>) -> Self {
        Self { gauges, shown: Arc::default() }
    }

    /// Sets the gauges to these values, which are all.
    pub fn replace(&self, values: &BTreeMap<Labels<N>, V>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in shown.iter().filter(|labels| !values.contains_key(*labels)) {
            self.gauges.remove(gone);
        }
        for (labels, value) in values {
            self.gauges.get_or_create(labels).set(*value);
        }
        *shown = values.keys().cloned().collect();
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::service::metrics::Gauges;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn series_of_an_object_ends_with_it() {
        let mut registry = Registry::default();
        let series =
            Series::of(gputenancy_cluster::service::metrics::register(&mut registry, "x", "X", Gauges::<1>::default()));
        let set = |values: &[(&'static str, u64)]| {
            series.set(&values.iter().map(|(pod, value)| ([("pod", (*pod).into())], *value)).collect());
            gputenancy_cluster::service::endpoints::text(&registry).unwrap()
        };
        let text = set(&[("a", 1), ("b", u64::MAX)]);
        assert!(text.contains(r#"x{pod="a"} 1"#) && text.contains(r#"x{pod="b"} 9223372036854775807"#), "{text}");
        let text = set(&[("b", 2)]);
        assert!(!text.contains(r#"pod="a""#) && text.contains(r#"x{pod="b"} 2"#), "{text}");
    }
}
