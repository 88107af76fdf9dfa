//! KAI's annotations `gpu-fraction` and `gpu-memory`: the mutating policy of the chart replaces them by a request for the granted
//! fraction of this size. Here the same is done to a pod before the other policies are evaluated. The policy itself is tested with the same
//! annotations on an API server (`fraction_annotations.rs` of the end-to-end tests).

use gputenancy_crds::{FractionSize, GpuGrantSpec, MemoryText, names::is_gpu_resource, quantity::Amount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";

/// Lets the pod ask for the fraction that its annotation means. Pods without such an annotation, or with one that no granted fraction or more than one has,
/// stay as they are.
pub(super) fn convert(pod: &mut Value, grant: &GpuGrantSpec) {
    let Some((annotation, resource)) = chosen(pod, grant) else { return };
    if let Some(container) = pod.pointer_mut("/spec/containers/0").and_then(Value::as_object_mut) {
        let resources = container.entry("resources").or_insert_with(|| json!({}));
        for list in ["limits", "requests"] {
            let Some(resources) = resources.as_object_mut() else { continue };
            let amounts = resources.entry(list).or_insert_with(|| json!({}));
            if let Some(amounts) = amounts.as_object_mut() {
                amounts.insert(resource.clone(), json!("1"));
            }
        }
    }
    if let Some(annotations) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(annotation);
    }
}

/// The annotation, and the resource that it means.
fn chosen(pod: &Value, grant: &GpuGrantSpec) -> Option<(&'static str, String)> {
    let text = |key: &str| pod.pointer("/metadata/annotations")?.get(key)?.as_str();
    let (annotation, size) = match (text(FRACTION), text(MEMORY)) {
        (Some(part), None) => (FRACTION, Size::Part(amount(part)?)),
        (None, Some(mib)) => (MEMORY, Size::Memory(amount(&format!("{mib}Mi"))?)),
        _ => return None,
    };
    let first = pod.pointer("/spec/containers/0/name").and_then(Value::as_str);
    let elsewhere = text("gpu-fraction-container-name").is_some_and(|name| Some(name) != first);
    if grant.virtual_cluster || elsewhere || text("gpu-fraction-num-devices").is_some() || asks_for_gpu(pod) {
        return None;
    }
    let mut fitting = grant.profiles.iter().filter(|p| p.fraction.as_ref().is_some_and(|f| size.is(f)));
    let only = fitting.next().filter(|_| fitting.next().is_none())?;
    Some((annotation, only.resource_name.clone()))
}

/// What an annotation asks for.
enum Size {
    /// A part of the GPU's time; 1 is the whole.
    Part(Amount),
    /// Bytes of memory.
    Memory(Amount),
}

impl Size {
    fn is(&self, fraction: &FractionSize) -> bool {
        match self {
            Self::Part(part) => part.milli() == i128::from(fraction.compute) * 10,
            Self::Memory(bytes) => memory(&fraction.memory) == Some(*bytes),
        }
    }
}

fn amount(text: &str) -> Option<Amount> {
    Amount::parse(&Quantity(text.to_owned()))
}

fn memory(text: &MemoryText) -> Option<Amount> {
    amount(&text.to_string())
}

/// Does a container ask for a GPU? An amount of zero asks for none.
fn asks_for_gpu(pod: &Value) -> bool {
    let lists = ["containers", "initContainers"].into_iter();
    let containers = lists.filter_map(|list| pod.pointer(&format!("/spec/{list}"))?.as_array()).flatten();
    let limits = containers.filter_map(|container| container.pointer("/resources/limits")?.as_object());
    let more_than_zero = |value: &Value| value.as_str().map_or_else(|| value.as_i64() != Some(0), |text| text != "0");
    limits.flatten().any(|(resource, value)| is_gpu_resource(resource) && more_than_zero(value))
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::GrantedProfile;

    use super::*;

    fn profile(name: &str, size: Option<(&str, i32)>) -> GrantedProfile {
        GrantedProfile {
            name: name.into(),
            resource_name: format!("gputenancy.io/{name}"),
            budget: 2,
            fraction: size
                .map(|(memory, compute)| FractionSize { memory: MemoryText::parse(memory).unwrap(), compute }),
            expected: String::new(),
            incident: String::new(),
        }
    }

    /// The resource that a pod with these annotations asks for afterwards, and whether it still has an annotation of fractions.
    fn converted(annotations: &Value, limits: &Value, edit: impl Fn(&mut GpuGrantSpec)) -> (Option<String>, bool) {
        let sizes = [("half", Some(("40Gi", 50))), ("a", Some(("8Gi", 10))), ("b", Some(("8Gi", 15))), ("turn", None)];
        let mut grant =
            GpuGrantSpec { profiles: sizes.map(|(n, size)| profile(n, size)).into(), ..GpuGrantSpec::default() };
        edit(&mut grant);
        let container = json!({"name": "c", "image": "i", "resources": {"limits": limits}});
        let mut pod =
            json!({"metadata": {"annotations": annotations}, "spec": {"containers": [container, {"name": "d"}]}});
        convert(&mut pod, &grant);
        let limits = pod.pointer("/spec/containers/0/resources/limits").unwrap().as_object().unwrap().clone();
        let left =
            pod.pointer("/metadata/annotations").unwrap().as_object().unwrap().keys().any(|k| k.starts_with("gpu-"));
        (limits.keys().find(|k| k.contains('/')).cloned(), left)
    }

    #[test]
    fn annotation_becomes_a_request_for_the_one_fraction_of_its_size() {
        let half = || (Some("gputenancy.io/half".to_owned()), false);
        let kept = || (None, true);
        for (annotations, expected) in [
            (json!({"gpu-fraction": "0.5"}), half()),
            (json!({"gpu-fraction": "0.50"}), half()),
            (json!({"gpu-memory": "40960"}), half()),
            (json!({"gpu-fraction": "0.1"}), (Some("gputenancy.io/a".to_owned()), false)),
            (json!({"gpu-fraction": "0.3"}), kept()),
            (json!({"gpu-memory": "40Gi"}), kept()),
            // two profiles of 8 GiB
            (json!({"gpu-memory": "8192"}), kept()),
            (json!({"gpu-fraction": "half"}), kept()),
            (json!({"gpu-fraction": "0.5", "gpu-memory": "40960"}), kept()),
            (json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}), kept()),
            (json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "d"}), kept()),
        ] {
            assert_eq!(converted(&annotations, &json!({"cpu": "1"}), |_| {}), expected, "{annotations}");
        }
        let one = json!({"gpu-fraction": "0.5"});
        let device = json!({"nvidia.com/gpu": 1});
        assert_eq!(converted(&one, &device, |_| {}), (Some("nvidia.com/gpu".to_owned()), true));
        assert_eq!(converted(&one, &json!({}), |grant| grant.virtual_cluster = true), kept());
        assert_eq!(converted(&one, &json!({}), |grant| grant.profiles.clear()), kept());
    }
}
