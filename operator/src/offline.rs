//! The plan from manifests, without a cluster: what a pull request would lead to.

use std::{collections::BTreeMap, fmt::Write as _, io::Read as _, path::PathBuf, sync::Arc};

use kube::ResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    cache::SlimNode,
    plan::{self, Plan},
    pool::{Fleet, explain},
};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A file cannot be read.
    #[error("{0}: {1}")]
    Read(String, std::io::Error),
    /// A file is not YAML, or an object is not of its kind.
    #[error("{0}: {1}")]
    Parse(String, String),
}

/// The plan that these files lead to, as text.
pub fn plan(files: &[PathBuf]) -> Result<String, OfflineError> {
    let mut fleet = Fleet::default();
    for file in files {
        let name = file.display().to_string();
        let mut text = String::new();
        let read = if name == "-" {
            std::io::stdin().read_to_string(&mut text).map(drop)
        } else {
            std::fs::read_to_string(file).map(|t| text = t)
        };
        read.map_err(|e| OfflineError::Read(name.clone(), e))?;
        add(&mut fleet, &text).map_err(|e| OfflineError::Parse(name, e))?;
    }
    let (plan, problems) = explain(&fleet);
    Ok(print(&plan, &problems))
}

fn add(fleet: &mut Fleet, text: &str) -> Result<(), String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|e| e.to_string())?;
    documents.into_iter().try_for_each(|document| add_one(fleet, document))
}

fn add_one(fleet: &mut Fleet, document: Value) -> Result<(), String> {
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    match kind.as_str() {
        "GpuProfile" => fleet.profiles.push(typed(document)?),
        "GpuPool" => fleet.pools.push(typed(document)?),
        "GpuTenant" => fleet.tenants.push(typed(document)?),
        "GpuNode" => {
            let node: gputenancy_crds::GpuNode = typed(document)?;
            fleet.gpu_nodes.insert(node.name_any(), node);
        }
        "Node" => {
            let node: SlimNode = typed(document)?;
            fleet.nodes.insert(node.name_any(), Arc::new(node));
        }
        "List" => {
            let items = document.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            return items.into_iter().try_for_each(|item| add_one(fleet, item));
        }
        _ => {}
    }
    Ok(())
}

fn typed<K: DeserializeOwned>(document: Value) -> Result<K, String> {
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("(no name)").to_owned();
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    serde_json::from_value(document).map_err(|e| format!("{kind} {name}: {e}"))
}

fn print(plan: &Plan, problems: &[plan::Problem]) -> String {
    let mut text = String::new();
    let mut by_pool: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (key, gpu) in &plan.gpus {
        let layout = gpu.target.as_ref().map_or_else(|| "left as it is".to_owned(), describe);
        let mark = if gpu.changed { "changes to" } else { "keeps" };
        let mut lines = vec![format!("  {} GPU {}: {mark} {layout}", key.node, gpu.index)];
        lines.extend(gpu.evicts.iter().map(|e| format!("    evicts {} from {}", e.pod, e.device)));
        lines.extend(gpu.reasons.iter().map(|r| format!("    {r}")));
        by_pool.entry(gpu.pool.as_str()).or_default().extend(lines);
    }
    for (pool, lines) in by_pool {
        let stranded = plan.stranded.get(pool).copied().unwrap_or_default();
        let _ =
            writeln!(text, "pool {pool} (stranded: {} compute, {} memory slices)", stranded.compute, stranded.memory);
        let _ = writeln!(text, "{}", lines.join("\n"));
    }
    for (profile, supply) in &plan.profiles {
        let _ = writeln!(
            text,
            "profile {profile}: {} guaranteed, {} before, {} after",
            supply.guaranteed, supply.before, supply.after
        );
    }
    for problem in problems.iter().chain(&plan.problems) {
        let _ = writeln!(text, "problem: {problem}");
    }
    text
}

fn describe(layout: &gputenancy_crds::Layout) -> String {
    match (layout.mig, layout.instances.as_slice()) {
        (false, _) => "one whole GPU".into(),
        (true, []) => "MIG on, nothing carved".into(),
        (true, instances) => {
            instances.iter().map(|i| format!("{}@{}", i.profile, i.start)).collect::<Vec<_>>().join(" ")
        }
    }
}
