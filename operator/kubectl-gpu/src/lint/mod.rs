//! Manifests checked without a cluster. Pure: from texts to findings.
//!
//! [`crate::input`] checks schemas and rules of the CRDs, [`objects`] references between objects, [`queues`] what is lent and borrowed,
//! [`sharing`] workloads that would be left with shares, [`policy`] the admission policies
//! on objects in tenants' namespaces, and [`kubernetes`] what Kubernetes refuses everywhere.

mod fractions;
mod grant;
mod kubernetes;
mod objects;
mod policy;
mod queued_jobs;
mod queues;
mod refused;
mod sharing;
mod violation;
mod workload;

use std::collections::BTreeSet;

pub use policy::{DEFAULT as DEFAULT_POLICIES, Policies};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    input::{Finding, Text, classify},
    units::counted,
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

/// What the files do not determine.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Namespace of objects without one.
    pub namespace: Option<&'a str>,
    /// Admission policies of the cluster.
    pub policies: &'a Policies,
}

/// Checks these texts.
pub fn lint(texts: &[Text], options: Options<'_>) -> LintReport {
    let classified = classify(texts);
    let documents = classified.count;
    // an object that cannot be read is missing for the others: one mistake is reported once
    let broken: BTreeSet<&str> = classified.errors.iter().filter_map(|f| Some(f.object.split_once(' ')?.1)).collect();
    let world = World::of(classified.reading);
    let mut not_checked = Vec::new();
    let mut findings = objects::check(&world, &classified.ours, &broken, &mut not_checked);
    findings.extend(refused::refused(&classified.written));
    // one mistake has one finding, also where it makes the value around it unusable
    findings.retain(|found| !classified.errors.iter().any(|error| error.covers(found) || found.covers(error)));
    findings.extend(classified.errors.iter().cloned());
    findings.extend(workload::check(&world, &classified.others, options, &mut not_checked));
    if classified.unknown > 0 {
        not_checked.push(format!("{} without a kind", counted(classified.unknown, "document")));
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
