//! What `kubectl gpu plan` says of a manifest before it is applied.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tokio::process::Command;

use crate::{Error, Result, World, product};

/// A GPU: its node and NVML's index.
pub type Gpu = (String, i32);
/// The layout of every GPU, in the form of [`crate::objects::layouts`].
pub type Layouts = BTreeMap<Gpu, Vec<String>>;

/// The command as people type it in the checkout, for a manifest of `samples/`.
pub fn command(sample: &str) -> String {
    format!("kubectl gpu plan -f samples/{sample}")
}

/// What it prints, and its exit code.
pub async fn ask(world: &World, sample: &str, output: &str) -> Result<(String, i32)> {
    let root = product::root();
    let program = root.join("target/debug/kubectl-gpu");
    let mut plan = Command::new(&program);
    plan.args(["plan", "--exit-code", "-o", output, "-f", &format!("samples/{sample}")]);
    plan.current_dir(root).env("KUBECONFIG", world.lab.kubeconfig_path());
    let done = plan.output().await;
    let done = done.map_err(|source| Error::Io { what: format!("running {}", program.display()), source })?;
    match done.status.code() {
        None | Some(1) => Err(Error::Wrong(format!("no plan: {}", String::from_utf8_lossy(&done.stderr)))),
        Some(code) => Ok((String::from_utf8_lossy(&done.stdout).into_owned(), code)),
    }
}

/// What `-o json` says, as far as it can be held against what then happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// GPUs that change.
    pub changes: Vec<Change>,
    /// Pods that are evicted.
    pub evictions: Vec<Eviction>,
    /// Devices of every profile.
    pub profiles: Vec<Capacity>,
    /// What cannot be had.
    pub problems: Vec<serde_json::Value>,
}

/// A change of one GPU.
#[derive(Clone, Debug, Deserialize)]
pub struct Change {
    node: String,
    gpu: i32,
    destroy: Vec<Instance>,
    create: Vec<Instance>,
    /// Why, in sentences.
    pub reasons: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Instance {
    profile: String,
    start: i32,
}

/// A pod that is evicted.
#[derive(Clone, Debug, Deserialize)]
pub struct Eviction {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// What it has, such as `1g.10gb at 0 of gpu-1 GPU 1`.
    pub devices: Vec<String>,
}

/// Devices of one profile.
#[derive(Clone, Debug, Deserialize)]
pub struct Capacity {
    /// Its name.
    pub profile: String,
    /// How many there are.
    pub devices: BeforeAfter,
}

/// A number without the manifest and with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct BeforeAfter {
    /// Without.
    pub before: i64,
    /// With it.
    pub after: i64,
}

impl Forecast {
    /// Reads JSON.
    pub fn read(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|e| Error::Text { what: "the plan".into(), why: e.to_string() })
    }

    /// GPUs that change.
    pub fn changed(&self) -> BTreeSet<Gpu> {
        self.changes.iter().map(|c| (c.node.clone(), c.gpu)).collect()
    }

    /// The layouts that come out when what is destroyed goes and what is created comes.
    pub fn layouts(&self, had: &Layouts) -> Layouts {
        let mut layouts = had.clone();
        for change in &self.changes {
            let layout = layouts.entry((change.node.clone(), change.gpu)).or_default();
            let named = |i: &Instance| format!("{}:{}", i.start, i.profile);
            let gone: Vec<String> = change.destroy.iter().map(named).collect();
            layout.retain(|instance| !gone.contains(instance));
            layout.extend(change.create.iter().map(named));
            layout.sort();
        }
        layouts
    }

    /// Devices of a profile, before and after.
    pub fn devices(&self, profile: &str) -> Option<BeforeAfter> {
        self.profiles.iter().find(|p| p.profile == profile).map(|p| p.devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_destroyed_goes_what_is_created_comes_and_other_gpus_stay() {
        let json = serde_json::json!({
            "changes": [{"node": "n", "gpu": 1, "reasons": ["why"],
                "destroy": [{"profile": "1g.10gb", "start": 4}], "create": [{"profile": "3g.40gb", "start": 4}]}],
            "evictions": [], "problems": [],
            "profiles": [{"profile": "mig-3g", "devices": {"before": 0, "after": 1}}],
        });
        let forecast = Forecast::read(&json.to_string()).unwrap();
        let gpu = |index| ("n".to_owned(), index);
        let layout = |instances: [&str; 2]| instances.map(String::from).to_vec();
        let had: Layouts = [(gpu(0), vec!["whole".into()]), (gpu(1), layout(["0:1g.10gb", "4:1g.10gb"]))].into();
        let has: Layouts = [(gpu(0), vec!["whole".into()]), (gpu(1), layout(["0:1g.10gb", "4:3g.40gb"]))].into();
        assert_eq!(forecast.layouts(&had), has);
        assert_eq!(forecast.changed(), [gpu(1)].into());
        assert_eq!(forecast.devices("mig-3g"), Some(BeforeAfter { before: 0, after: 1 }));
    }

    #[test]
    fn a_document_of_another_shape_is_an_error_and_not_an_empty_forecast() {
        assert!(Forecast::read(r#"{"kind": "PlanPreview"}"#).is_err());
    }
}
