use serde_json::{Value, json};

use super::*;

fn shared(mode: &str, resource: &str, numbers: &[i32]) -> Value {
    json!({"sharing": {"mode": mode, "shares": [{"resource": resource, "numbers": numbers}]}})
}

fn turns(replicas: i32) -> Value {
    shared("TimeSlice", "nvidia.com/gpu.shared", &(0..replicas).collect::<Vec<_>>())
}

/// A node with GPUs of these specs, the last with this health.
fn node_with(gpus: &[Value], health: &str) -> GpuNode {
    let spec = |(n, gpu): (usize, &Value)| {
        let mut gpu = gpu.clone();
        gpu["uuid"] = format!("GPU-{n}").into();
        gpu
    };
    let specs: Vec<Value> = gpus.iter().enumerate().map(spec).collect();
    let last = gpus.len() - 1;
    serde_json::from_value(json!({
        "metadata": {"name": "n"},
        "spec": {"gpus": specs, "advertiser": "NvidiaDevicePlugin"},
        "status": {"gpus": [{"uuid": format!("GPU-{last}"), "index": last, "board": 0, "health": health}]},
    }))
    .unwrap()
}

fn config(gpus: &[Value]) -> Result<PluginConfig, Inexpressible> {
    PluginConfig::of(&node_with(gpus, "Healthy"))
}

#[test]
fn config_is_rendered_with_a_content_hash_as_its_key() {
    let mig = json!({"mig": true, "instances": [{"start": 0, "profile": "1g.10gb"}]});
    let cases = [
        ("no GPU without MIG", vec![mig.clone()]),
        ("whole", vec![json!({}), json!({})]),
        ("2 shares, others with MIG", vec![mig, turns(2), turns(2)]),
        ("4 shares", vec![turns(4)]),
    ];
    let show = |(name, gpus): &(&str, Vec<Value>)| {
        let config = config(gpus).unwrap();
        format!("{name}: key {:?}\n{}", config.key("training"), config.render())
    };
    insta::assert_snapshot!(cases.iter().map(show).collect::<Vec<_>>().join("\n"));
}

#[test]
fn layouts_that_the_plugin_cannot_express_are_refused_with_a_remedy() {
    let two_resources = json!({"sharing": {"mode": "TimeSlice", "shares": [
        {"resource": "nvidia.com/gpu.shared", "numbers": [0]}, {"resource": "example.com/turn", "numbers": [1]},
    ]}});
    let cases = [
        vec![shared("Mps", "nvidia.com/gpu.shared", &[0, 1])],
        vec![shared("Fraction", "gputenancy.io/part", &[0])],
        vec![shared("TimeSlice", "gputenancy.io/turn", &[0, 1])],
        vec![two_resources],
        vec![shared("TimeSlice", "nvidia.com/gpu.shared", &[0, 2])],
        vec![turns(1)],
        vec![turns(4), turns(2)],
        vec![turns(4), json!({})],
    ];
    let refused: Vec<String> = cases.iter().map(|gpus| config(gpus).unwrap_err().to_string()).collect();
    insta::assert_snapshot!(refused.join("\n"));
}

#[test]
fn gpu_that_does_not_work_does_not_count() {
    let gpus = [turns(4), json!({})];
    for health in ["Unhealthy", "Lost"] {
        let config = PluginConfig::of(&node_with(&gpus, health));
        assert_eq!(config, Ok(PluginConfig::TimeSliced { replicas: 4 }), "{health}");
    }
}

#[test]
fn gpus_of_which_none_works_keep_their_config() {
    let node = node_with(&[turns(4)], "Unhealthy");
    assert_eq!(PluginConfig::of(&node), Ok(PluginConfig::TimeSliced { replicas: 4 }));
}

#[test]
fn label_selects_a_config_by_its_hash() {
    let (two, four) = (PluginConfig::TimeSliced { replicas: 2 }, PluginConfig::TimeSliced { replicas: 4 });
    let key = four.key("p").unwrap();
    assert!(four.is_selected(Some(&key)) && !two.is_selected(Some(&key)) && !four.is_selected(None));
    assert!(!PluginConfig::Exclusive.is_selected(Some(&key)), "the node is still time-sliced");
    assert!(PluginConfig::Exclusive.is_selected(None) && PluginConfig::Exclusive.is_selected(Some("a100-40gb")));
    let long = four.key(&"p".repeat(63)).unwrap();
    assert_eq!(long.len(), 63, "longest value of a label");
    assert!(four.is_selected(Some(&long)));
}

#[test]
fn altered_and_deleted_configs_are_missing_among_the_published() {
    let mut wanted = PluginConfigs::default();
    wanted.add("p", PluginConfig::Exclusive);
    wanted.add("p", PluginConfig::TimeSliced { replicas: 4 });
    let key = PluginConfig::TimeSliced { replicas: 4 }.key("p").unwrap();
    let mut data = wanted.data().clone();
    data.insert("a100".into(), "of an administrator".into());
    let read = PluginConfigs::parse(&data);
    assert_eq!(read, wanted, "keys of other clients do not count");
    assert!(wanted.is_published(&read) && wanted.altered_in(&read).is_empty());

    let text = data.get(&key).unwrap().replace("renameByDefault: true", "renameByDefault: false");
    data.insert(key.clone(), text);
    let read = PluginConfigs::parse(&data);
    assert!(!wanted.is_published(&read) && !read.has(&key));
    assert_eq!(wanted.altered_in(&read), std::slice::from_ref(&key));

    data.remove(&key);
    let read = PluginConfigs::parse(&data);
    assert!(!wanted.is_published(&read) && wanted.altered_in(&read).is_empty());
}

proptest::proptest! {
    #[test]
    fn key_of_any_pool_is_a_label_of_one_config(pool in "[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", replicas in 2_usize..128, other in 2_usize..128) {
        let key = |replicas| PluginConfig::TimeSliced { replicas }.key(&pool).unwrap();
        proptest::prop_assert!(crate::label::is_value(&key(replicas)) && is_key(&key(replicas)), "{}", key(replicas));
        proptest::prop_assert_eq!(key(replicas) == key(other), replicas == other);
    }
}
