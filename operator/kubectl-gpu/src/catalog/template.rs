//! A pod to copy.

use std::{collections::BTreeSet, fmt::Write as _};

use gputenancy_crds::{GpuPool, TaintEffect};

/// A pod that requests one device, and passes the Pod Security Standard `restricted`, the default of tenants.
pub(super) fn pod(profile: &str, resource: &str, pools: &[&GpuPool]) -> String {
    let mut yaml = format!(
        "\
apiVersion: v1
kind: Pod
metadata:
  name: {profile}-example
spec:
  securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: main
      image: registry.example.com/team/image:1  # replace with your image
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
      resources:
        limits:
          {resource}: 1
"
    );
    let taints: BTreeSet<(&str, &str)> = pools
        .iter()
        .filter_map(|pool| pool.spec.taint.as_ref())
        .map(|taint| (taint.key.as_str(), TaintEffect::as_str(taint.effect)))
        .collect();
    if !taints.is_empty() {
        yaml.push_str("  tolerations:\n");
    }
    for (key, effect) in taints {
        let _ = writeln!(yaml, "    - {{key: {key}, operator: Exists, effect: {effect}}}");
    }
    yaml
}
