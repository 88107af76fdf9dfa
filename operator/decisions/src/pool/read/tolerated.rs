//! The taint that pods of tenants tolerate.

use std::{convert::Infallible, str::FromStr};

use gputenancy_crds::PoolTaint;

use crate::verdict::GPU_TAINT;

/// Key of the taint that the API server makes pods of tenants tolerate; none where it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tolerated(Option<String>);

impl Default for Tolerated {
    fn default() -> Self {
        Self(Some(GPU_TAINT.to_owned()))
    }
}

impl FromStr for Tolerated {
    type Err = Infallible;

    fn from_str(key: &str) -> Result<Self, Infallible> {
        Ok(Self(Some(key.to_owned()).filter(|key| !key.is_empty())))
    }
}

impl Tolerated {
    /// The key, if there is one.
    pub fn key(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// The key, if it is not the usual one, which needs no mention.
    pub fn unusual(&self) -> Option<String> {
        self.0.clone().filter(|key| key != GPU_TAINT)
    }

    /// Why no pod of a tenant could run on nodes with this taint.
    pub fn refuses(&self, taint: &PoolTaint) -> Option<String> {
        let tolerated = self.0.as_ref().filter(|key| **key != taint.key)?;
        let key = &taint.key;
        Some(format!(
            "spec.taint.key: pods of tenants tolerate {tolerated} and not {key}, so no node is tainted: write {tolerated}, or set \
             policies.gpuTaint.key in the chart's values to {key}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_no_pod_tolerates_is_refused_with_the_one_to_write() {
        let pool = |key: &str, value: &str, effect: &str| -> PoolTaint {
            serde_json::from_value(serde_json::json!({"key": key, "value": value, "effect": effect})).unwrap()
        };
        let message = Tolerated::default().refuses(&pool("example.com/gpu", "", "NoSchedule")).unwrap();
        assert!(message.contains("write nvidia.com/gpu, or set policies.gpuTaint.key"), "{message}");
        assert_eq!(Tolerated::default().refuses(&pool("nvidia.com/gpu", "x", "PreferNoSchedule")), None);
        let any: Tolerated = "".parse().unwrap();
        assert_eq!(any.refuses(&pool("example.com/gpu", "", "NoSchedule")), None);
    }
}
