//! Collects logs, events and objects after a failed test.

use crate::error::{During, Result};
use crate::lab::Lab;
use crate::place::{LAB, node_share};
use std::fs;
use std::path::{Path, PathBuf};

/// Custom resources, and the objects of a tenant.
const KINDS: [&str; 4] = [
    "gpuprofiles.gputenancy.io,gpupools.gputenancy.io,gputenants.gputenancy.io,gpunodes.gputenancy.io",
    "nodes,namespaces,events.events.k8s.io,resourcequotas,poddisruptionbudgets",
    "pods,deployments,daemonsets,replicasets,services,jobs,leases.coordination.k8s.io",
    "validatingadmissionpolicies,mutatingadmissionpolicies,customresourcedefinitions",
];

impl Lab {
    /// Collects into `artifacts/TEST` of the lab's folder and returns the path. Unavailable parts are skipped, because the cluster may
    /// be broken.
    pub async fn collect(&self, test: &str) -> Result<PathBuf> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
        let folder = self.folder().join("artifacts").join(test.chars().map(plain).collect::<String>());
        fs::create_dir_all(&folder).during(|| format!("creating {}", folder.display()))?;
        copy_logs(&self.inside(LAB).join("log"), &folder.join("control-plane"));
        let _ = fs::copy(self.folder().join("lab.log"), folder.join("lab.log"));
        for node in self.node_names() {
            let share = node_share(&node).display().to_string();
            copy_logs(&self.inside(&share).join("log"), &folder.join("nodes").join(&node));
        }
        for (i, kinds) in KINDS.iter().enumerate() {
            let objects = self.kubectl(&["get", kinds, "-A", "-o", "yaml", "--ignore-not-found"]).await;
            let yaml = objects.unwrap_or_else(|error| format!("# {error}\n"));
            let _ = fs::write(folder.join(format!("objects-{i}.yaml")), yaml);
        }
        for (name, arguments) in [
            ("events.txt", "get events -A --sort-by=.lastTimestamp"),
            ("pods.txt", "describe pods -A"),
            ("nodes.txt", "describe nodes"),
        ] {
            let arguments: Vec<_> = arguments.split(' ').collect();
            let printed = self.kubectl(&arguments).await.unwrap_or_else(|error| error.to_string());
            let _ = fs::write(folder.join(name), printed);
        }
        for node in self.node_names() {
            let logs = self.inside(&crate::place::node_folder(&node).display().to_string()).join("upper/var/log/pods");
            copy_logs(&logs, &folder.join("pods").join(&node));
        }
        Ok(folder)
    }
}

/// Copies `*.log` files with their folders.
fn copy_logs(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let path = entry.path();
        let target = to.join(entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            copy_logs(&path, &target);
        } else if path.extension().is_some_and(|extension| extension == "log") && fs::create_dir_all(to).is_ok() {
            let _ = fs::copy(&path, &target);
        }
    }
}
