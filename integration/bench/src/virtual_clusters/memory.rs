//! Resident memory of pods: sums over the processes in their control groups, read on the nodes.

use std::collections::BTreeMap;

use e2e::{Result, World};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};

/// Prints uid of the pod, resident and anonymous memory in KiB, and name of every process of a pod. kubelet puts the processes of a pod into
/// the control group `…/podUID/CONTAINER`.
const SCRIPT: &str = r#"for p in /proc/[0-9]*; do
    uid=$(sed -n 's|.*/pod\([0-9a-f-]\{36\}\).*|\1|p' "$p/cgroup" 2>/dev/null | head -n 1)
    if [ -n "$uid" ]; then
        echo "$uid $(awk '/^VmRSS/ {r = $2} /^RssAnon/ {a = $2} END {print r + 0, a + 0}' "$p/status" 2>/dev/null) $(cat "$p/comm" 2>/dev/null)"
    fi
done"#;

/// Memory of a group of pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Resident, in MiB; a page that several processes map counts for each of them.
    pub rss_mib: f64,
    /// The part of it that is no file's, in MiB.
    pub own_mib: f64,
    /// Resident by name of the program, in MiB. The kernel cuts names after 15 characters.
    pub programs: BTreeMap<String, f64>,
}

/// Memory of all pods that belong to a group, by group.
pub async fn of_pods(world: &World, group: impl Fn(&Pod) -> Option<String>) -> Result<Vec<(String, Memory)>> {
    let pods = Api::<Pod>::all(world.client.clone()).list(&ListParams::default()).await?;
    let groups = pods.iter().filter_map(|pod| Some((pod.uid()?, group(pod)?))).collect();
    let mut text = String::new();
    for node in world.lab.node_names() {
        text.push_str(&world.on_node(&node, &["sh", "-c", SCRIPT]).await?);
    }
    Ok(sums(&groups, &text).into_iter().collect())
}

/// Sums the script's lines by the group of their pod; processes of other pods are left out, as are lines about processes that have ended.
fn sums(groups: &BTreeMap<String, String>, lines: &str) -> BTreeMap<String, Memory> {
    let mut all = BTreeMap::<String, Memory>::new();
    for line in lines.lines() {
        let mut fields = line.splitn(4, ' ');
        let (Some(uid), Some(rss), Some(own), Some(name)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let mib = |kib: &str| kib.parse::<f64>().ok().map(|kib| kib / 1024.0);
        let (Some(group), Some(rss), Some(own)) = (groups.get(uid), mib(rss), mib(own)) else { continue };
        if !name.is_empty() {
            let sum = all.entry(group.clone()).or_default();
            sum.rss_mib += rss;
            sum.own_mib += own;
            *sum.programs.entry(name.to_owned()).or_default() += rss;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_summed_by_group_and_program() {
        let groups = [("u1", "a"), ("u2", "a"), ("u3", "b")].map(|(uid, group)| (uid.to_owned(), group.to_owned()));
        let lines = "\
u1 2048 1024 kube-apiserver
u1 1024 512 kine
u2 1024 0 kine
u3 512 512 some thing
u4 4096 4096 kubelet
u1 0 0 \nu1
";
        let sums = sums(&groups.into(), lines);
        let programs = |all: &[(&str, f64)]| all.iter().map(|(name, mib)| ((*name).to_owned(), *mib)).collect();
        let a = Memory { rss_mib: 4.0, own_mib: 1.5, programs: programs(&[("kine", 2.0), ("kube-apiserver", 2.0)]) };
        let b = Memory { rss_mib: 0.5, own_mib: 0.5, programs: programs(&[("some thing", 0.5)]) };
        assert_eq!(sums, BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]));
    }

    /// Runs the script on this machine, where no process may be in a pod.
    #[test]
    fn script_runs_in_sh() {
        let output = std::process::Command::new("sh").args(["-c", SCRIPT]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}
