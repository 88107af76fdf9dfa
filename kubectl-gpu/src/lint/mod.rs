//! Manifests checked without a cluster. Pure: from texts to findings.
//!
//! [`crate::input`] checks schemas and rules of the CRDs, [`objects`] references between objects, [`policy`] the admission policies
//! on objects in tenants' namespaces, and [`kubernetes`] what Kubernetes refuses everywhere.

mod culprit;
mod grant;
mod kubernetes;
mod objects;
mod policy;
mod workload;

use std::collections::BTreeSet;

pub use policy::{DEFAULT as DEFAULT_POLICIES, Policies};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    input::{InputError, Other, Step, Text, sift, written},
    world::World,
};

/// Result of a check.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LintReport {
    /// `gputenancy.io/v1alpha1`.
    pub api_version: String,
    /// `LintReport`.
    pub kind: String,
    /// Checked documents.
    pub documents: usize,
    /// Mistakes, in the order of files and lines.
    pub findings: Vec<Finding>,
    /// What the files do not determine, in sentences.
    pub not_checked: Vec<String>,
}

/// A mistake.
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

/// What the files do not tell.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Namespace of objects without one.
    pub namespace: Option<&'a str>,
    /// Admission policies of the cluster.
    pub policies: &'a Policies,
}

/// Checks these texts.
pub fn lint(texts: &[Text], options: Options<'_>) -> LintReport {
    let sifted = sift(texts);
    let documents = sifted.reading.documents.len() + sifted.others.len();
    let mut findings: Vec<Finding> = sifted.errors.iter().map(of_input).collect();
    let broken: BTreeSet<&str> = findings.iter().map(|f| f.object.as_str()).collect();
    let places = objects::Places { trees: &sifted.ours, documents: &sifted.reading.documents };
    let world = World::of(sifted.reading.clone());
    let mut not_checked = Vec::new();
    // an object that cannot be read is missing for the others: one mistake is reported once
    let missing = |name: &str| broken.iter().any(|object| object.ends_with(&format!(" {name}")));
    findings.extend(objects::check(&world, places, &missing, &mut not_checked));
    findings.extend(workload::check(&world, &sifted.others, options, &mut not_checked));
    if sifted.unknown > 0 {
        not_checked.push(format!("{} documents without a kind", sifted.unknown));
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

/// Kind and name of a document.
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
