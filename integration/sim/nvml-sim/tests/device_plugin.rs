//! NVIDIA's unmodified device plugin with a real kubelet: it advertises existing devices, and pods get them.

use crate::built;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use lab::{Lab, LabSpec, NodeHandle, PATIENCE, wait_for};

const DRIVER: &str = "/run/nvidia/driver";
/// Devices of each resource that the plugin finds.
const OFFERED: [(&str, &str); 3] =
    [("nvidia.com/mig-1g.10gb", "2"), ("nvidia.com/mig-3g.40gb", "1"), ("nvidia.com/gpu", "1")];
const STATE: &str = "/run/nvidia/driver/run/nvsim";

/// Installs the simulated driver on the node, with one partitioned and one whole GPU.
async fn install(node: &NodeHandle) {
    let nvsim = built::binary("nvsim").display().to_string();
    let library = built::library().display().to_string();
    let node_name = node.name().to_owned();
    let run = async |arguments: &[&str]| node.run(arguments).await.unwrap();
    run(&[&nvsim, "install", "--library", &library, "--node", &node_name, "--latency", "none"]).await;
    run(&[&nvsim, "--state", STATE, "partition", "0", "1g.10gb", "1g.10gb", "3g.40gb"]).await;
    run(&["mkdir", "-p", "/run/trees/mnt"]).await;
    run(&[&nvsim, "--state", STATE, "materialize", "--root", "/run/trees", "--driver-root", DRIVER]).await;
}

/// Starts the plugin with this strategy; it runs until [`stop`].
async fn start(node: &NodeHandle, strategy: &str) {
    let tests = built::checkout().join("integration/sim/nvml-sim/tests/with-driver");
    let tools = built::checkout().join("target/toolset/bin");
    assert!(tools.join("nvidia-device-plugin").exists(), "no nvidia-device-plugin: run `make tools` first");
    let script = format!(
        "echo $$ > /run/plugin.pid; exec {with} /run/trees {tools}/nvidia-device-plugin --mig-strategy=mixed \
         --device-discovery-strategy=nvml --device-list-strategy={strategy} --pass-device-specs={specs} \
         --driver-root-ctr-path={DRIVER} --nvidia-driver-root={DRIVER} --nvidia-dev-root=/ \
         --nvidia-cdi-hook-path={tools}/nvidia-cdi-hook >/run/plugin-{strategy}.log 2>&1",
        with = tests.display(),
        tools = tools.display(),
        specs = strategy == "envvar",
    );
    let mut command = node.command(&["setsid", "sh", "-c", &script]).await.unwrap();
    drop(command.spawn().unwrap());
}

/// Ends the plugin, and waits until kubelet offers nothing: a pod for a plugin that has ended is refused.
async fn stop(lab: &Lab, node: &NodeHandle) {
    node.run(&["sh", "-c", "kill $(cat /run/plugin.pid)"]).await.unwrap();
    let gone = |node: Option<&Node>| {
        node.is_some_and(|node| OFFERED.iter().all(|(name, _)| offers(node, name).as_deref() == Some("0")))
    };
    let nodes = Api::<Node>::all(lab.client());
    wait_for(nodes, node.name(), "nothing on offer without a plugin", gone, PATIENCE).await.unwrap();
}

/// Allocatable of a resource.
fn offers(node: &Node, resource: &str) -> Option<String> {
    Some(node.status.as_ref()?.allocatable.as_ref()?.get(resource)?.0.clone())
}

/// A pod that prints its devices and ends.
fn pod(name: &str, resource: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  restartPolicy: Never
  containers:
    - name: c
      image: lab.local/gputenancy-workload:dev
      imagePullPolicy: Never
      command: [sh, -c, 'echo visible=$NVIDIA_VISIBLE_DEVICES; gpu-work show']
      resources: {{limits: {{{resource}: 1}}}}
      volumeMounts:
        - {{name: state, mountPath: /run/nvsim}}
        - {{name: library, mountPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1}}
  volumes:
    - {{name: state, hostPath: {{path: {STATE}}}}}
    - {{name: library, hostPath: {{path: {DRIVER}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1}}}}
"
    )
}

/// Runs the pod to its end and returns what it printed.
async fn output(lab: &Lab, name: &str, resource: &str) -> String {
    lab.apply(&pod(name, resource)).await.unwrap();
    let pods = Api::<Pod>::namespaced(lab.client(), "default");
    let ended = |pod: Option<&Pod>| {
        let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.clone());
        phase.is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
    };
    wait_for(pods, name, "it to end", ended, PATIENCE).await.unwrap();
    lab.kubectl(&["logs", name]).await.unwrap()
}

/// The plugin with one strategy, from registration to a pod of each kind.
async fn serves(lab: &Lab, node: &NodeHandle, strategy: &str) {
    start(node, strategy).await;
    let nodes = Api::<Node>::all(lab.client());
    let offered = |node: Option<&Node>| {
        node.is_some_and(|node| OFFERED.iter().all(|(name, count)| offers(node, name).as_deref() == Some(count)))
    };
    wait_for(nodes, node.name(), "what was partitioned on offer", offered, PATIENCE).await.unwrap();
    let (mig, whole) = (format!("mig-{strategy}"), format!("whole-{strategy}"));
    let (mig, whole) = tokio::join!(output(lab, &mig, "nvidia.com/mig-3g.40gb"), output(lab, &whole, "nvidia.com/gpu"));
    let shown: Vec<&str> = mig.lines().filter(|line| line.starts_with("gpu=")).collect();
    assert_eq!(shown.len(), 1, "exactly one device: {mig}");
    assert!(shown[0].contains("profile=3g.40gb"), "{mig}");
    assert_eq!(whole.lines().filter(|line| line.contains("NVIDIA A100-SXM4-80GB")).count(), 1, "{whole}");
    if strategy == "envvar" {
        let uuid = mig.lines().find_map(|line| line.strip_prefix("visible=")).unwrap();
        assert!(shown[0].contains(&format!("mig={uuid} ")), "{mig}");
    }
    stop(lab, node).await;
}

/// Takes the lab down also when the test fails.
struct Down(String);

impl Drop for Down {
    fn drop(&mut self) {
        let lab = std::process::Command::new(built::binary("lab")).args(["down", "--name", &self.0]).status();
        assert!(lab.unwrap().success(), "lab down --name {}", self.0);
    }
}

#[tokio::test]
async fn device_plugin_advertises_and_allocates_existing_devices() {
    built::binary("lab");
    let name = format!("plugin-{}", std::process::id());
    let _down = Down(name.clone());
    let lab = Lab::start(LabSpec { gpu_nodes: 1, cpu_nodes: 0, ..LabSpec::named(&name) }).await.unwrap();
    let node = lab.node("gpu-1").unwrap();
    install(&node).await;
    for strategy in ["envvar", "cdi-cri"] {
        serves(&lab, &node, strategy).await;
    }
}
