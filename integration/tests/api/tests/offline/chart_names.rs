//! Names that the chart gives: images, their registry and pull secrets, and labels.

use std::{fs, path::Path};

use serde_json::Value;

use crate::offline::{
    WORKLOADS,
    chart::{chart, helm, rendered, template},
    objects,
};

/// The pod templates of all workloads.
fn pods(sets: &[&str]) -> Vec<Value> {
    let all = objects(&rendered("", &[&WORKLOADS[..], sets].concat()));
    let pods: Vec<Value> = all.iter().filter_map(|o| o.pointer("/spec/template/spec")).cloned().collect();
    assert_eq!(pods.len(), 5, "operator, agent, simulator, virtual clusters, release finalizers");
    pods
}

fn images(sets: &[&str]) -> Vec<String> {
    pods(sets).iter().map(|pod| pod["containers"][0]["image"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn global_registry_serves_all_images_and_replaces_that_of_a_repository() {
    let (one, digest) = ("global.imageRegistry=mirror.example:5000/gpu", format!("sha256:{}", "0".repeat(64)));
    for image in images(&[one]) {
        let name = image.strip_prefix("mirror.example:5000/gpu/gputenancy-").unwrap_or_default();
        assert!(name.ends_with(":0.1.0") && !name.contains('/'), "{image}");
    }
    for (repository, expected) in [
        ("ghcr.io/team/agent", "mirror.example:5000/gpu/team/agent"),
        ("localhost/agent", "mirror.example:5000/gpu/agent"),
        ("registry:5000/agent", "mirror.example:5000/gpu/agent"),
        ("team/agent", "mirror.example:5000/gpu/team/agent"),
    ] {
        let values = [one, &format!("image.agent.repository={repository}"), &format!("image.agent.digest={digest}")];
        assert!(images(&values).contains(&format!("{expected}@{digest}")), "{repository}: {:?}", images(&values));
    }
    assert_eq!(images(&["global.imageRegistry=mirror.example/"]), images(&["global.imageRegistry=mirror.example"]));
    let without = images(&[]);
    assert_eq!(without, images(&["global.imageRegistry=null"]));
    assert!(without.iter().all(|image| !image.contains('/')), "{without:?}");
    let (fine, text) = template("", &["global.imageRegistry=https://mirror.example"]);
    assert!(!fine && text.contains("/global/imageRegistry"), "{text}");
}

#[test]
fn global_pull_secrets_join_those_of_the_chart() {
    let values = ["global.imagePullSecrets[0]=a", "global.imagePullSecrets[1].name=b", "image.pullSecrets={a,c}"];
    for pod in pods(&values) {
        let names: Vec<&str> =
            pod["imagePullSecrets"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "c", "b"]);
    }
    // other global values belong to other charts
    assert_eq!(rendered("", &["global.storageClass=fast"]), rendered("", &[]));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Calls `visit` for the labels of each object and of each pod template.
fn labels(objects: &[Value], mut visit: impl FnMut(&Value, &Value)) {
    for object in objects {
        for at in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(labels) = object.pointer(at) {
                visit(object, labels);
            }
        }
    }
}

#[test]
fn versions_with_build_metadata_make_valid_labels_and_tags() {
    let folder = tempfile::tempdir().unwrap();
    copy(&chart(), folder.path());
    let manifest = folder.path().join("Chart.yaml");
    let (chart, text) = (folder.path().display().to_string(), fs::read_to_string(&manifest).unwrap());
    for version in ["0.1.0+abc.1".to_owned(), format!("0.1.0-rc.{}+{}", "1".repeat(30), "-".repeat(30))] {
        let changed = text.replace("ersion: 0.1.0\n", &format!("ersion: {version}\n"));
        assert_eq!(changed.matches(&version).count(), 2, "{changed}");
        fs::write(&manifest, changed).unwrap();
        let sets: Vec<&str> = WORKLOADS.iter().flat_map(|set| ["--set", set]).collect();
        let (fine, text) = helm(&[&["template", "gputenancy", &chart, "--skip-schema-validation"], &sets[..]].concat());
        assert!(fine, "{text}");
        let valid = |value: &str| {
            let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let ends = value.starts_with(|c: char| c.is_ascii_alphanumeric())
                && value.ends_with(|c: char| c.is_ascii_alphanumeric());
            value.len() <= 63 && ends && value.chars().all(inner)
        };
        let mut found = 0;
        labels(&objects(&text), |object, labels| {
            for (key, value) in labels.as_object().unwrap() {
                assert!(value.as_str().is_some_and(valid), "{key}: {value} of {}", object["metadata"]["name"]);
                found += 1;
            }
        });
        assert!(found > 100, "{found}");
        let tags: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("image: gputenancy-")).collect();
        assert!(!tags.is_empty() && tags.iter().all(|tag| !tag.contains('+')), "{tags:?}");
    }
}
