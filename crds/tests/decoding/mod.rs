//! Objects with random content: what the CRDs accept is read without loss, also from a newer release; anything else is an error with a text.

mod kind;

use fuzz::{
    Choices, TestCaseResult, Times, check, damaged, mutated, prop_assert, prop_assert_eq,
    schema::{self, UNKNOWN},
    tree,
};
use gputenancy_crds::{DurationText, GpuNode, MemoryText, Sharing, quantity::Amount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kind::Kind;
use serde_json::{Value, json};

fn one_of<'k>(kinds: &'k [Kind], choices: &mut Choices) -> &'k Kind {
    choices.pick(kinds).expect("a kind")
}

#[test]
fn object_that_its_crd_accepts_is_read_and_written_without_loss() {
    let kinds = Kind::all();
    check("objects", |choices, times| {
        let kind = one_of(&kinds, choices);
        let object = kind.valid(choices);
        let text = object.to_string();
        let written = (kind.decode)(&text, times);
        prop_assert!(written.is_ok(), "{written:?}: {object}");
        drop(times.baseline(|| serde_json::from_str::<Value>(&text)));
        let written = written.unwrap_or_default();
        for (part, schema) in kind.parts() {
            prop_assert_eq!(schema::lost(schema, &object[part], written.get(part), part), None);
        }
        Ok(())
    });
}

#[test]
fn unknown_fields_of_a_newer_release_lose_nothing() {
    let kinds = Kind::all();
    check("unknown fields", |choices, _| {
        let kind = one_of(&kinds, choices);
        let object = kind.valid(choices);
        let known = kind.read(&object)?;
        for (part, schema) in kind.parts() {
            let mut newer = object.clone();
            newer[part] = schema::with_unknown_fields(schema, &object[part], choices);
            let exchanged = part == "status" || matches!(kind.name.as_str(), "GpuNode" | "GpuGrant");
            if exchanged {
                prop_assert_eq!(kind.read(&newer)?, known.clone());
            } else {
                // a slip of the pen in what people write is no field of a newer release
                let error = (kind.decode)(&newer.to_string(), &Times::default()).err().unwrap_or_default();
                prop_assert!(error.contains(&format!("unknown field `{UNKNOWN}`")), "{error:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn unknown_values_of_a_newer_release_lose_nothing_else() {
    let kinds = Kind::all();
    check("unknown values", |choices, _| {
        let kind = one_of(&kinds, choices);
        let object = kind.valid(choices);
        let mut newer = object.clone();
        for (part, schema) in kind.parts() {
            if kind.name == "GpuNode" || part == "status" {
                newer[part] = schema::with_unknown_values(schema, &object[part], choices);
            }
        }
        if kind.name == "GpuNode" {
            restore_modes(&mut newer);
        }
        if let Some(cluster) = newer.pointer_mut("/status/virtualCluster") {
            // the use of its volumes is that of the spec, which is read strictly
            let backend = cluster.get("backend").cloned();
            *cluster = object["status"]["virtualCluster"].clone();
            if let Some(backend) = backend {
                cluster["backend"] = backend;
            }
        }
        let (known, read) = (kind.read(&object)?, kind.read(&newer)?);
        for (part, schema) in kind.parts() {
            let rest = |object: &Value| schema::without_enumerations(schema, &object[part]);
            prop_assert_eq!(rest(&read), rest(&known));
        }
        Ok(())
    });
}

/// Gives shares of an unknown mode a known one.
fn restore_modes(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(mode) = fields.get_mut("mode").filter(|mode| mode.as_str() == Some(UNKNOWN)) {
                *mode = "TimeSlice".into();
            }
            fields.values_mut().for_each(restore_modes);
        }
        Value::Array(items) => items.iter_mut().for_each(restore_modes),
        _ => {}
    }
}

#[test]
fn shares_of_an_unknown_mode_are_none_and_other_gpus_keep_theirs() {
    let sharing =
        |mode: &str| json!({"mode": mode, "shares": [{"resource": "nvidia.com/gpu.shared", "numbers": [0, 1]}]});
    let gpu = |uuid: &str, mode: &str| json!({"uuid": uuid, "sharing": sharing(mode), "hold": [1]});
    let node = json!({"metadata": {"name": "n"}, "spec": {"gpus": [gpu("GPU-0", UNKNOWN), gpu("GPU-1", "Mps")]}});
    let node: GpuNode = serde_json::from_value(node).expect("a node of a newer release");
    let [unknown, known] = &node.spec.gpus[..] else { panic!("{node:?}") };
    assert_eq!((&unknown.sharing, &unknown.hold[..]), (&Some(Sharing::default()), &[1][..]));
    assert_eq!(known.layout().shares(), [0, 1]);
}

fn fails_with_a_text(kind: &Kind, text: &str, times: &Times) -> TestCaseResult {
    if let Err(error) = (kind.decode)(text, times) {
        prop_assert!(error.len() > 10, "{error:?}: {text}");
    }
    Ok(())
}

#[test]
fn broken_object_is_an_error_with_a_text() {
    let kinds = Kind::all();
    check("broken objects", |choices, times| {
        let kind = one_of(&kinds, choices);
        let object = match choices.below(4) {
            0 => tree(choices, 5),
            _ => mutated(kind.valid(choices), choices),
        };
        fails_with_a_text(kind, &object.to_string(), times)?;
        let bytes = damaged(object.to_string().into_bytes(), choices);
        fails_with_a_text(kind, &String::from_utf8_lossy(&bytes), times)
    });
}

#[test]
fn deeply_nested_object_is_an_error() {
    for kind in Kind::all() {
        for open in ["[", "{\"spec\":"] {
            assert!((kind.decode)(&open.repeat(100_000), &Times::default()).is_err());
        }
    }
}

#[test]
fn text_of_an_amount_or_a_duration_is_read_or_named_in_the_error() {
    check("amounts and durations", |choices, times| {
        let units = [
            "",
            "Gi",
            "Mi",
            "m",
            "h",
            "s",
            "ms",
            "E",
            "e9",
            "e-9",
            "n",
            "µs",
            "1",
            ".",
            "-",
            "9999999999999999999",
            "+",
        ];
        let parts = choices.below(6);
        let mut text: String = (0..parts).map(|_| choices.pick(&units).copied().unwrap_or_default()).collect();
        if choices.once_in(3) {
            text.push_str(&choices.text());
        }
        let (memory, duration) = times.decoder(|| (MemoryText::parse(text.clone()), DurationText::parse(text.clone())));
        match memory {
            Ok(memory) => prop_assert_eq!(memory.to_string(), text.clone()),
            Err(error) => prop_assert!(error.to_string().contains(&text)),
        }
        match duration {
            Ok(duration) => prop_assert!(duration.seconds().is_ok(), "{text}"),
            Err(error) => prop_assert!(error.to_string().contains(&text)),
        }
        if let Some(amount) = Amount::parse(&Quantity(text.clone())) {
            prop_assert_eq!(Amount::parse(&amount.quantity()), Some(amount), "{}", text);
            prop_assert_eq!(Amount::parse(&amount.binary()), Some(amount), "{}", text);
        }
        Ok(())
    });
}
