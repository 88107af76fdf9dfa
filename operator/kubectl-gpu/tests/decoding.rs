//! Manifests with random content: every document is read or is a mistake with its place.

use std::collections::BTreeMap;

use fuzz::{
    Choices, check_slow, damaged, mutated, prop_assert, prop_assert_eq,
    schema::{self, UNKNOWN},
    tree,
};
use gputenancy_crds::manifest;
use kubectl_gpu::input::{Object, Text, classify, documents, values};
use serde_json::{Value, json};

/// Schemas of specs by kind.
fn schemas() -> BTreeMap<String, Value> {
    let of = |(_, crd): (String, Value)| {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        (crd["spec"]["names"]["kind"].as_str().unwrap().to_owned(), schema.clone())
    };
    manifest::all().unwrap().into_iter().map(of).filter(|(kind, _)| kind != "GpuGrant").collect()
}

fn valid(schemas: &BTreeMap<String, Value>, choices: &mut Choices) -> Value {
    let (kind, schema) = schemas.iter().nth(choices.below(schemas.len())).unwrap();
    let metadata = json!({"name": "a"});
    let spec = schema::valid(schema, choices);
    json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
}

fn text(text: impl Into<String>) -> Text {
    Text { name: "file.yaml".into(), text: text.into() }
}

#[test]
fn document_is_read_from_yaml_as_it_was_written() {
    let schemas = schemas();
    check_slow("YAML documents", |choices, times| {
        let all: Vec<Value> = (0..=choices.below(2)).map(|_| valid(&schemas, choices)).collect();
        let documents: Vec<String> = all.iter().map(|d| serde_saphyr::to_string(d).unwrap()).collect();
        let yaml = documents.join("---\n");
        let read = times.decoder(|| values(&[text(yaml.clone())]));
        drop(times.baseline(|| serde_saphyr::from_multiple::<Value>(&yaml)));
        prop_assert_eq!(read.map_err(|error| error.to_string()), Ok(all), "{}", yaml);
        Ok(())
    });
}

#[test]
fn every_document_is_an_object_or_a_mistake_with_its_place() {
    let schemas = schemas();
    check_slow("manifests", |choices, times| {
        let document = match choices.below(3) {
            0 => valid(&schemas, choices),
            1 => mutated(valid(&schemas, choices), choices),
            _ => tree(choices, 4),
        };
        let file = [text(document.to_string())];
        let read = times.decoder(|| classify(&file));
        let objects = read.reading.documents.len() + read.others.len() + read.unknown + read.reading.ignored.len();
        let list = document["kind"] == "List" || document["kind"] == "PlanSnapshot" || document.is_null();
        prop_assert!(objects + read.errors.len() > 0 || list, "{document}");
        let placed = |e: &kubectl_gpu::input::Finding| e.line == 1 && e.file == "file.yaml" && e.message.len() > 5;
        prop_assert!(read.errors.iter().all(placed), "{:?}", read.errors);
        let opened = documents(&file).map_or(1, |reading| reading.documents.len() + reading.ignored.len());
        prop_assert!(opened > 0 || list, "{document}");
        Ok(())
    });
}

#[test]
fn unknown_field_is_named_with_its_line() {
    let schemas = schemas();
    check_slow("slips of the pen", |choices, times| {
        let mut document = valid(&schemas, choices);
        document["spec"][UNKNOWN] = tree(choices, 1);
        let yaml = serde_saphyr::to_string(&document).unwrap();
        let line = 1 + u64::try_from(yaml.lines().take_while(|line| !line.contains(UNKNOWN)).count()).unwrap();
        let read = times.decoder(|| classify(&[text(yaml.clone())]));
        if document["kind"] == "GpuNode" {
            prop_assert!(matches!(read.reading.documents[0].object, Object::GpuNode(_)), "the operator writes it");
            return Ok(());
        }
        let found = read.errors.iter().find(|e| e.message.starts_with("is not known: "));
        prop_assert!(
            found.is_some_and(|e| e.field == format!("spec.{UNKNOWN}") && e.line == line),
            "{:?}",
            read.errors
        );
        Ok(())
    });
}

#[test]
fn broken_text_is_an_error_with_a_text() {
    let schemas = schemas();
    check_slow("broken manifests", |choices, times| {
        let yaml = serde_saphyr::to_string(&valid(&schemas, choices)).unwrap();
        let bytes = damaged(yaml.into_bytes(), choices);
        if let Err(error) = times.decoder(|| values(&[text(String::from_utf8_lossy(&bytes))])) {
            prop_assert!(error.to_string().starts_with("file.yaml:") && error.to_string().len() > 20, "{error}");
        }
        Ok(())
    });
}

#[test]
fn aliases_that_stand_for_very_many_objects_are_an_error_in_words() {
    let level = |n: usize| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(", "));
    let bomb: String =
        ["a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned()].into_iter().chain((1..10).map(level)).collect();
    let error = values(&[text(bomb)]).unwrap_err().to_string();
    assert!(error.contains("the aliases of this file stand for too many objects: write the fields out"), "{error}");
    assert!(!error.contains('{'), "{error}");
}

#[test]
fn deeply_nested_text_is_an_error() {
    let chained = |n: usize| {
        let inner = if n == 0 { "0".to_owned() } else { format!("*a{}", n - 1) };
        format!("a{n}: &a{n} {}{inner}{}\n", "[".repeat(200), "]".repeat(200))
    };
    let chain: String = (0..60).map(chained).collect();
    let deep = ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000), chain];
    let read = move || deep.map(|deep| values(&[text(deep)]).unwrap_err().to_string());
    // that of the program's main thread; a thread of a test has a quarter
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(read).unwrap();
    for error in thread.join().unwrap() {
        assert!(error.starts_with("file.yaml:"), "{error}");
    }
}
