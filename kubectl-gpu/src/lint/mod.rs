//! Manifests checked before anybody applies them, without a cluster. Pure: from texts to findings.
//!
//! What the kinds' schemas say is [`crate::input`]'s to find; what objects say of each other is the planner's, as far as it can be
//! known; what admission refuses to pods of a tenant is said in the policies' own words ([`admission`]).

mod admission;
mod beside;
mod grant;
mod objects;
mod workload;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    input::{InputError, Other, Step, Text, sift, written},
    world::World,
};

/// What was found.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LintReport {
    /// `gputenancy.io/v1alpha1`.
    pub api_version: String,
    /// `LintReport`.
    pub kind: String,
    /// Documents that were looked at.
    pub documents: usize,
    /// What is wrong, in the order of files and lines.
    pub findings: Vec<Finding>,
    /// What these files do not let anybody know, in sentences.
    pub not_checked: Vec<String>,
}

/// Something that is wrong.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The file.
    pub file: String,
    /// Line of the field, from 1.
    pub line: u64,
    /// Kind and name.
    pub object: String,
    /// Path of the field, such as `spec.gpus[0].count`.
    pub field: String,
    /// What is wrong, and what to write.
    pub message: String,
}

/// What the files do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assumed<'a> {
    /// Namespace of workloads that name none.
    pub namespace: Option<&'a str>,
    /// The chart is installed with `policies.imagePullPolicyAlways`.
    pub image_pull_policy_always: bool,
}

/// Checks these texts.
pub fn lint(texts: &[Text], assumed: Assumed<'_>) -> LintReport {
    let sifted = sift(texts);
    let documents = sifted.reading.documents.len() + sifted.others.len();
    let mut findings: Vec<Finding> = sifted.errors.iter().map(of_input).collect();
    let broken: BTreeSet<&str> = findings.iter().map(|f| f.object.as_str()).collect();
    let places = objects::Places { trees: &sifted.ours, documents: &sifted.reading.documents };
    let world = World::of(sifted.reading.clone());
    let mut not_checked = vec![
        "rules of our kinds that are written in CEL, such as \"exactly one kind of device\": kubectl apply --dry-run=server".to_owned(),
    ];
    // an object that cannot be read is missed by the others: one mistake is told once
    let missing = |name: &str| broken.iter().any(|object| object.ends_with(&format!(" {name}")));
    findings.extend(objects::check(&world, places, &missing, &mut not_checked));
    findings.extend(workload::check(&world, &sifted.others, assumed, &mut not_checked));
    if sifted.unknown > 0 {
        not_checked.push(format!("{} documents that say no kind", sifted.unknown));
    }
    findings.sort();
    findings.dedup();
    LintReport {
        api_version: "gputenancy.io/v1alpha1".into(),
        kind: "LintReport".into(),
        documents,
        findings,
        not_checked,
    }
}

fn of_input(error: &InputError) -> Finding {
    let (object, field) = (String::new(), String::new());
    match error {
        InputError::Read { file, source } => {
            Finding { file: file.clone(), line: 1, object, field, message: source.to_string() }
        }
        InputError::Syntax { file, line, what } => {
            Finding { file: file.clone(), line: *line, object, field, message: what.clone() }
        }
        InputError::Field { file, line, object, field, what } => Finding {
            file: file.clone(),
            line: *line,
            object: object.clone(),
            field: field.clone(),
            message: what.clone(),
        },
    }
}

/// Kind and name of a document, as people say them.
fn name_of(other: &Other) -> String {
    let name = other.tree.field("metadata").and_then(|m| m.text("name")).unwrap_or("(no name)");
    format!("{} {name}", other.tree.text("kind").unwrap_or("object"))
}

/// A finding about a field of a document.
fn at(other: &Other, path: &[Step], message: String) -> Finding {
    let line = other.tree.line_of(path);
    Finding { file: other.file.clone(), line, object: name_of(other), field: written(path), message }
}

/// A path of fields, from text with dots.
fn path(text: &str) -> Vec<Step> {
    text.split('.').map(|field| Step::Field(field.to_owned())).collect()
}
