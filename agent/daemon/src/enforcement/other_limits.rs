//! Limits that other products give to pods of this node, read from the pods. Pure.
//!
//! A user who can write a pod can write these values: text that is no limit in the product's format is left out, numbers have a range, and only so
//! many are kept. They are shown, and nothing is decided by them.

use std::collections::BTreeMap;

use gputenancy_crds::{
    MemoryText, OtherLimit,
    projection::{NodeContainer, NodePod},
    quantity::Amount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{
    device::OtherLimiter,
    seen_pods::{PodName, pod_name},
};

/// Annotation in which the scheduler of `HAMi` records the devices of a pod: `UUID,type,MiB,percent:` for each, `;` after each container.
const HAMI: &str = "hami.io/vgpu-devices-allocated";
/// Variables of HAMi-core: for all GPUs of the container, or with `_` and the number of one.
const MEMORY: &str = "CUDA_DEVICE_MEMORY_LIMIT";
const COMPUTE: &str = "CUDA_DEVICE_SM_LIMIT";
/// Both, as a source.
const VARIABLES: &str = "CUDA_DEVICE_*_LIMIT";
/// Annotations of kai-gpu-fractioning begin with this and the name of a container.
const FRACTIONING: &str = "nvidia.com/container.";

/// Most limits of a pod.
const MOST_OF_POD: usize = 8;
/// Most limits of a node.
const MOST: usize = 16;
/// Most entries of a text that are looked at.
const MOST_ENTRIES: usize = 64;
/// Most bytes of a value.
const LONGEST: usize = 4096;
/// Largest memory, in MiB: 16 TiB.
const LARGEST: i64 = 16 << 20;
/// Most GPUs of a container.
const GPUS: i32 = 64;
/// Instead of a number: all GPUs of a container.
const ALL: i32 = -1;

/// The limits of the pods on this node, by pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherLimits(BTreeMap<PodName, Vec<OtherLimit>>);

impl OtherLimits {
    /// Records a pod; true if its limits changed.
    pub fn apply(&mut self, pod: &NodePod) -> bool {
        let limits = limits(pod);
        if limits.is_empty() {
            return self.delete(pod);
        }
        let known = self.0.entry(pod_name(pod)).or_default();
        std::mem::replace(known, limits) != *known
    }

    /// Removes a pod; true if it was recorded.
    pub fn delete(&mut self, pod: &NodePod) -> bool {
        self.0.remove(&pod_name(pod)).is_some()
    }

    /// Limits of the product that is on the node: without it they are texts without effect.
    pub fn of(&self, found: Option<OtherLimiter>) -> Vec<OtherLimit> {
        let Some(found) = found else { return Vec::new() };
        let fractioning = found == OtherLimiter::Fractioning;
        let of_product = |limit: &&OtherLimit| limit.source.starts_with(FRACTIONING) == fractioning;
        // each namespace in turn, so that none takes all places
        let mut by_namespace: BTreeMap<&str, Vec<&OtherLimit>> = BTreeMap::new();
        for limit in self.0.values().flatten().filter(of_product) {
            by_namespace.entry(&limit.namespace).or_default().push(limit);
        }
        let turns = by_namespace.values().flat_map(|limits| limits.iter().copied().enumerate());
        let mut turns: Vec<(usize, &OtherLimit)> = turns.collect();
        turns.sort_by_key(|(turn, _)| *turn);
        turns.truncate(MOST);
        turns.sort_by_key(|(_, limit)| (&limit.namespace, &limit.pod));
        turns.into_iter().map(|(_, limit)| limit.clone()).collect()
    }
}

/// Limits of a pod that has not ended. The record of `HAMi` comes before variables, which it sets at the start of a container.
fn limits(pod: &NodePod) -> Vec<OtherLimit> {
    if pod.is_over() {
        return Vec::new();
    }
    let annotation = |name: &str| {
        let value = pod.metadata.annotations.as_ref()?.get(name)?;
        (value.len() <= LONGEST).then_some(value.as_str())
    };
    let mut found: Vec<OtherLimit> = annotation(HAMI).into_iter().flat_map(recorded).collect();
    if found.is_empty() {
        found.extend(pod.spec.containers.iter().flat_map(variables));
    }
    found.extend(pod.spec.containers.iter().filter_map(|container| fractioning(&container.name, &annotation)));
    found.truncate(MOST_OF_POD);
    let (namespace, name) = pod_name(pod);
    for limit in &mut found {
        (limit.namespace, limit.pod) = (namespace.clone(), name.clone());
    }
    found
}

/// What the scheduler of `HAMi` has recorded.
fn recorded(text: &str) -> impl Iterator<Item = OtherLimit> + '_ {
    let devices = text.split([';', ':']).take(MOST_ENTRIES);
    devices.filter_map(|device| {
        let mut fields = device.split(',');
        let (uuid, _type, memory, compute) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        // a MIG instance has its place in brackets
        let uuid = uuid.split('[').next().filter(|uuid| is_uuid(uuid))?;
        let (memory, compute) = (digits(memory).and_then(mib), percent(compute));
        let limit = OtherLimit { gpu: Some(uuid.to_owned()), memory, compute, ..of_source(HAMI) };
        limit_if_any(limit)
    })
}

/// What the variables of a container say, by the GPU's number. A value from elsewhere is not known here.
fn variables(container: &NodeContainer) -> Vec<OtherLimit> {
    let mut found: BTreeMap<i32, OtherLimit> = BTreeMap::new();
    for variable in &container.env {
        let Some(value) = variable.value.as_deref().filter(|value| value.len() <= LONGEST) else { continue };
        let is_memory = variable.name.starts_with(MEMORY);
        let Some(device) = device(&variable.name, if is_memory { MEMORY } else { COMPUTE }) else { continue };
        let limit = found.entry(device).or_insert_with(|| OtherLimit {
            container: Some(container.name.clone()),
            device: (device != ALL).then_some(device),
            ..of_source(VARIABLES)
        });
        // of two variables with one name the later one counts
        if is_memory {
            limit.memory = bytes(value).and_then(|bytes| mib(bytes >> 20));
        } else {
            limit.compute = percent(value);
        }
    }
    found.into_values().filter_map(limit_if_any).take(MOST_OF_POD).collect()
}

/// Number of the GPU in a variable's name, or [`ALL`].
fn device(name: &str, variable: &str) -> Option<i32> {
    match name.strip_prefix(variable)? {
        "" => Some(ALL),
        number => digits(number.strip_prefix('_')?)?.try_into().ok().filter(|n| *n < GPUS),
    }
}

/// What kai-gpu-fractioning gives to a container. Without a limit the request is the limit, as there.
fn fractioning<'t>(container: &str, annotation: &dyn Fn(&str) -> Option<&'t str>) -> Option<OtherLimit> {
    let key = |suffix: &str| format!("{FRACTIONING}{container}.{suffix}");
    let memory = |suffix: &str| {
        let bytes = Amount::parse(&Quantity(annotation(&key(suffix))?.to_owned()))?.milli() / 1000;
        mib(i64::try_from(bytes).ok()?.checked_add((1 << 20) - 1)? >> 20)
    };
    let compute = annotation(&key("gpu-compute.portion")).and_then(portion);
    let memory = memory("gpu-memory.limit").or_else(|| memory("gpu-memory.request"));
    let source = of_source(&format!("{FRACTIONING}{container}"));
    limit_if_any(OtherLimit { container: Some(container.to_owned()), memory, compute, ..source })
}

fn of_source(source: &str) -> OtherLimit {
    OtherLimit { source: source.to_owned(), ..OtherLimit::default() }
}

fn limit_if_any(limit: OtherLimit) -> Option<OtherLimit> {
    (limit.memory.is_some() || limit.compute.is_some()).then_some(limit)
}

/// An amount in MiB; 0 is no limit.
fn mib(mib: i64) -> Option<MemoryText> {
    (1..=LARGEST).contains(&mib).then(|| MemoryText::from_mib(mib))
}

/// Percent of the GPU; 0 is no limit.
fn percent(text: &str) -> Option<i32> {
    digits(text).and_then(|percent| percent.try_into().ok()).filter(|percent| (1..=100).contains(percent))
}

/// A part of one as whole percent, at least one.
fn portion(text: &str) -> Option<i32> {
    let thousandths = Amount::parse(&Quantity(text.to_owned()))?.milli();
    let percent = (1..=1000).contains(&thousandths).then(|| (thousandths / 10).max(1))?;
    percent.try_into().ok()
}

/// An amount of bytes as HAMi-core reads it: a number, with `g`, `m` or `k` for powers of 1024.
fn bytes(text: &str) -> Option<i64> {
    let (number, shift) = match text.strip_suffix(['g', 'G', 'm', 'M', 'k', 'K']) {
        None => (text, 0),
        Some(number) if text.ends_with(['g', 'G']) => (number, 30),
        Some(number) if text.ends_with(['m', 'M']) => (number, 20),
        Some(number) => (number, 10),
    };
    digits(number)?.checked_mul(1 << shift)
}

/// A number without a sign, which `parse` would also take.
fn digits(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A UUID as NVML writes it.
fn is_uuid(text: &str) -> bool {
    let rest = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    let is_part = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    rest.is_some_and(|rest| (1..=60).contains(&rest.len()) && is_part(rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const UUID: &str = "GPU-859b872c-0ba2-97b0-10b4-8b7185c55039";

    fn pod(annotations: &Value, env: &Value) -> NodePod {
        let containers = json!([{"name": "work", "env": env}]);
        serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": "p", "annotations": annotations},
            "spec": {"containers": containers},
        }))
        .unwrap()
    }

    fn recorded_as(text: &str) -> Vec<OtherLimit> {
        limits(&pod(&json!({HAMI: text}), &json!([])))
    }

    fn memory(limit: &OtherLimit) -> Option<i64> {
        limit.memory.as_ref().and_then(|memory| memory.mib().ok())
    }

    fn set(env: &Value) -> Vec<(Option<i32>, Option<i64>, Option<i32>)> {
        limits(&pod(&json!({}), env)).iter().map(|limit| (limit.device, memory(limit), limit.compute)).collect()
    }

    #[test]
    fn hami_record_is_read_for_each_device_of_each_container() {
        let found = recorded_as(&format!("{UUID},NVIDIA,4000,30:;MIG-b[0-1],NVIDIA,3000,0:{UUID},NVIDIA,10,100:;"));
        let read: Vec<_> = found.iter().map(|l| (l.gpu.as_deref().unwrap(), memory(l), l.compute)).collect();
        let expected = [(UUID, Some(4000), Some(30)), ("MIG-b", Some(3000), None), (UUID, Some(10), Some(100))];
        assert_eq!(read, expected);
        assert!(found.iter().all(|l| (l.namespace.as_str(), l.pod.as_str(), l.source.as_str()) == ("team", "p", HAMI)));
    }

    #[test]
    fn variables_of_a_container_are_limits_by_the_number_of_the_gpu() {
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        let env = json!([
            variable("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
            variable("CUDA_DEVICE_MEMORY_LIMIT_1", "2G"),
            variable("CUDA_DEVICE_SM_LIMIT", "30"),
            variable("CUDA_DEVICE_MEMORY_LIMIT", "1048576k"),
        ]);
        let expected = [(None, Some(1024), Some(30)), (Some(0), Some(3000), None), (Some(1), Some(2048), None)];
        assert_eq!(set(&env), expected);
        let record = json!({HAMI: format!("{UUID},NVIDIA,4000,30:;")});
        let both = limits(&pod(&record, &env));
        assert_eq!(both.len(), 1, "the record of HAMi's scheduler alone");
    }

    #[test]
    fn annotations_of_kai_gpu_fractioning_are_limits_of_their_container() {
        let read = |annotations: Value| {
            let found = limits(&pod(&annotations, &json!([])));
            found.iter().map(|l| (l.container.clone(), memory(l), l.compute)).collect::<Vec<_>>()
        };
        let key = |suffix: &str| format!("nvidia.com/container.work.{suffix}");
        let work = Some("work".to_owned());
        let both = json!({key("gpu-memory.request"): "2048Mi", key("gpu-memory.limit"): "4Gi"});
        assert_eq!(read(both), [(work.clone(), Some(4096), None)]);
        let request = json!({key("gpu-memory.request"): "1024M", key("gpu-compute.portion"): "0.25"});
        assert_eq!(read(request), [(work, Some(977), Some(25))]);
        assert!(read(json!({"nvidia.com/container.other.gpu-memory.limit": "4Gi"})).is_empty(), "no such container");
    }

    #[test]
    fn each_namespace_has_a_place_however_many_limits_another_one_has() {
        let mut all = OtherLimits::default();
        for number in 0..40 {
            let mut many = pod(&json!({HAMI: format!("{UUID},NVIDIA,4000,30:;")}), &json!([]));
            many.metadata.namespace = Some(if number == 39 { "zzz" } else { "aaa" }.into());
            many.metadata.name = Some(format!("p{number}"));
            assert!(all.apply(&many));
        }
        let shown = all.of(Some(OtherLimiter::Folder));
        let last = shown.last().map(|limit| limit.namespace.as_str());
        assert_eq!((shown.len(), last), (MOST, Some("zzz")));
    }

    #[test]
    fn values_that_are_no_limits_are_left_out() {
        for text in [
            "",
            ";",
            "::;;",
            "GPU-a",
            "GPU-a,NVIDIA,x,y",
            "GPU-\u{1b}[31m,NVIDIA,1,1",
            "GPU-a,NVIDIA,0,0",
            "x,NVIDIA,1,1",
            "GPU-a,NVIDIA,99999999999999999999,0",
            "GPU-a,NVIDIA,-5,101",
        ] {
            assert_eq!(recorded_as(text), [], "{text:?}");
        }
        for value in ["", "-1", "+1m", "1.5g", "9999999999999g", "0", "12", "g", "1 g"] {
            assert!(set(&json!([{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": value}])).is_empty(), "{value:?}");
        }
        for name in [
            "CUDA_DEVICE_MEMORY_LIMIT_",
            "CUDA_DEVICE_MEMORY_LIMIT_x",
            "CUDA_DEVICE_MEMORY_LIMIT_64",
            "CUDA_DEVICE_SM_LIMITS",
        ] {
            assert!(set(&json!([{"name": name, "value": "50"}, {"name": name, "value": "1g"}])).is_empty(), "{name}");
        }
        let reference =
            json!({"name": "CUDA_DEVICE_MEMORY_LIMIT", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}});
        assert!(set(&json!([reference])).is_empty());
    }

    #[test]
    fn number_of_limits_of_a_pod_and_of_a_node_is_bounded() {
        let many = format!("{UUID},NVIDIA,4000,30:").repeat(40);
        assert_eq!(recorded_as(&many).len(), MOST_OF_POD);
        assert_eq!(recorded_as(&format!("{UUID},NVIDIA,4000,30:").repeat(1000)), [], "longer than such a record is");
        let mut all = OtherLimits::default();
        for name in 0..40 {
            let mut pod = pod(&json!({HAMI: format!("{UUID},NVIDIA,4000,30:;")}), &json!([]));
            pod.metadata.name = Some(format!("p{name}"));
            assert!(all.apply(&pod));
        }
        assert_eq!(all.of(Some(OtherLimiter::Folder)).len(), MOST);
    }

    #[test]
    fn limits_are_listed_while_their_product_is_on_the_node_and_the_pod_has_not_ended() {
        let mut all = OtherLimits::default();
        let annotations =
            json!({HAMI: format!("{UUID},NVIDIA,4000,30:;"), "nvidia.com/container.work.gpu-memory.limit": "4Gi"});
        let mut pod = pod(&annotations, &json!([]));
        assert!(all.apply(&pod) && !all.apply(&pod), "the second time nothing changed");
        let sources = |found| all.of(found).into_iter().map(|limit| limit.source).collect::<Vec<_>>();
        assert!(sources(None).is_empty());
        assert_eq!(sources(Some(OtherLimiter::Preload)), [HAMI]);
        assert_eq!(sources(Some(OtherLimiter::Fractioning)), ["nvidia.com/container.work"]);
        pod.status.phase = "Succeeded".to_owned();
        assert!(all.apply(&pod));
        assert_eq!(all, OtherLimits::default());
    }

    proptest! {
        #[test]
        fn any_text_gives_bounded_limits(record in "\\PC{0,200}", value in "\\PC{0,40}", quantity in "[-+0-9.eEKMGi]{0,40}") {
            let annotations = json!({
                HAMI: format!("{record}{UUID},{value},{value},{value}:{record}"),
                "nvidia.com/container.work.gpu-memory.limit": quantity.clone(),
                "nvidia.com/container.work.gpu-compute.portion": quantity,
            });
            let env = json!([{"name": MEMORY, "value": value.clone()}, {"name": COMPUTE, "value": value}]);
            for limit in limits(&pod(&annotations, &env)) {
                prop_assert!(memory(&limit).is_none_or(|mib| (1..=LARGEST).contains(&mib)));
                prop_assert!(limit.compute.is_none_or(|percent| (1..=100).contains(&percent)));
                prop_assert!(limit.gpu.is_none_or(|gpu| gpu.len() <= 64 && gpu.is_ascii()));
            }
        }
    }
}
