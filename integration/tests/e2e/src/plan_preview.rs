//! The output of `kubectl gpu plan` for a manifest.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::{Error, Result, World, product};

/// A GPU: its node and NVML's index.
pub type Gpu = (String, i32);
/// The layout of every GPU, in the form of [`crate::objects::layouts`].
pub type Layouts = BTreeMap<Gpu, Vec<String>>;

/// The command line for a manifest of `samples/`, as the demo prints it.
pub fn command(sample: &str) -> String {
    format!("kubectl gpu plan -f samples/{sample}")
}

/// Runs the command and returns its output and exit code.
pub async fn run(world: &World, sample: &str, output: &str) -> Result<(String, i32)> {
    let file = format!("samples/{sample}");
    let args = ["plan", "--exit-code", "-o", output, "-f", &file];
    let done = product::kubectl_gpu(&world.lab.kubeconfig_path(), &args).await?;
    match done.status.code() {
        None | Some(1) => Err(Error::Wrong(format!("no plan: {}", String::from_utf8_lossy(&done.stderr)))),
        Some(code) => Ok((String::from_utf8_lossy(&done.stdout).into_owned(), code)),
    }
}

/// The fields of `-o json` that are compared with the outcome.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanPreview {
    /// GPUs that change.
    pub changes: Vec<Change>,
    /// Pods that are evicted.
    pub evictions: Vec<Eviction>,
    /// Devices of every profile.
    pub profiles: Vec<Capacity>,
    /// Demands that cannot be met.
    pub problems: Vec<serde_json::Value>,
}

/// A change of one GPU.
#[derive(Clone, Debug, Deserialize)]
pub struct Change {
    node: String,
    gpu: i32,
    destroy: Vec<Instance>,
    create: Vec<Instance>,
    /// Reasons, as sentences.
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
    /// Its devices, such as `1g.10gb at 0 of gpu-1 GPU 1`.
    pub devices: Vec<String>,
}

/// Devices of one profile.
#[derive(Clone, Debug, Deserialize)]
pub struct Capacity {
    /// Its name.
    pub profile: String,
    /// Number of devices.
    pub devices: BeforeAfter,
}

/// A number without the manifest and with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct BeforeAfter {
    /// Without it.
    pub before: i64,
    /// With it.
    pub after: i64,
}

impl PlanPreview {
    /// Reads JSON.
    pub fn read(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|e| Error::Text { what: "the plan".into(), why: e.to_string() })
    }

    /// GPUs that change.
    pub fn changed(&self) -> BTreeSet<Gpu> {
        self.changes.iter().map(|c| (c.node.clone(), c.gpu)).collect()
    }

    /// The layouts after all changes.
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
    fn preview_layouts_apply_destroy_and_create() {
        let json = serde_json::json!({
            "changes": [{"node": "n", "gpu": 1, "reasons": ["why"],
                "destroy": [{"profile": "1g.10gb", "start": 4}], "create": [{"profile": "3g.40gb", "start": 4}]}],
            "evictions": [], "problems": [],
            "profiles": [{"profile": "mig-3g", "devices": {"before": 0, "after": 1}}],
        });
        let preview = PlanPreview::read(&json.to_string()).unwrap();
        let gpu = |index| ("n".to_owned(), index);
        let layout = |instances: [&str; 2]| instances.map(String::from).to_vec();
        let had: Layouts = [(gpu(0), vec!["whole".into()]), (gpu(1), layout(["0:1g.10gb", "4:1g.10gb"]))].into();
        let has: Layouts = [(gpu(0), vec!["whole".into()]), (gpu(1), layout(["0:1g.10gb", "4:3g.40gb"]))].into();
        assert_eq!(preview.layouts(&had), has);
        assert_eq!(preview.changed(), [gpu(1)].into());
        assert_eq!(preview.devices("mig-3g"), Some(BeforeAfter { before: 0, after: 1 }));
    }

    #[test]
    fn preview_of_unknown_shape_is_an_error() {
        assert!(PlanPreview::read(r#"{"kind": "PlanPreview"}"#).is_err());
    }
}
