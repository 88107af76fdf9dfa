//! The lab behaves like separate machines: traffic, power loss, network partitions, API server outage.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use lab::{Lab, LabSpec, PATIENCE, node_is_ready, wait_for};

const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: default, labels: {app: server}}
spec:
  nodeName: gpu-1
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "lab.local/busybox:1", imagePullPolicy: Never, command: [sh, -c, "mkdir -p /w; echo hello > /w/index.html; exec httpd -f -p 80 -h /w"], readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Pod
metadata: {name: caller, namespace: default, labels: {app: caller}}
spec:
  nodeName: gpu-2
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "lab.local/busybox:1", imagePullPolicy: Never, command: [sleep, "1000000"]}]
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: default}
spec: {selector: {app: server}, ports: [{port: 80}]}
"#;

/// Polls a web server until it responds: kube-proxy may take a second to configure a service.
async fn fetch(lab: &Lab, host: &str) -> String {
    let script = format!(
        "i=0; while [ $i -lt 60 ]; do printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {host} 80 | tail -1 | grep . && exit; i=$((i+1)); sleep 1; done; exit 1"
    );
    lab.kubectl(&["exec", "caller", "--", "sh", "-c", &script]).await.unwrap()
}

async fn traffic_crosses_nodes_by_address_and_by_name(lab: &Lab) {
    let server = lab.pod_ready("default", "server").await.unwrap();
    lab.pod_ready("default", "caller").await.unwrap();
    let address = server.status.unwrap().pod_ip.unwrap();
    assert!(address.starts_with("10.244.1."), "{address}");
    assert_eq!(fetch(lab, &address).await.trim(), "hello");
    assert_eq!(fetch(lab, "server.default.svc.cluster.local").await.trim(), "hello");
}

async fn gpu_label_is_on_gpu_nodes_only(lab: &Lab) {
    let labelled: Vec<_> = lab
        .nodes()
        .await
        .unwrap()
        .into_iter()
        .filter(|node| node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(lab::GPU_LABEL)))
        .map(|node| node.metadata.name.unwrap())
        .collect();
    assert_eq!(labelled, ["gpu-1", "gpu-2"]);
}

async fn a_power_cycle_is_a_new_boot_that_keeps_the_disk_and_loses_what_was_in_memory(lab: &Lab) {
    let node = lab.node("gpu-2").unwrap();
    let boot = node.run(&["cat", "/proc/sys/kernel/random/boot_id"]).await.unwrap();
    node.run(&["sh", "-c", "echo kept > /var/lib/kept; echo lost > /run/lost"]).await.unwrap();
    node.power_off().await.unwrap();
    assert!(node.exec(&["true"]).await.unwrap_err().to_string().contains("off"));
    node.power_on().await.unwrap();
    node.wait_booted(PATIENCE).await.unwrap();
    node.wait_ready().await.unwrap();
    assert_ne!(node.run(&["cat", "/proc/sys/kernel/random/boot_id"]).await.unwrap(), boot);
    assert_eq!(node.run(&["cat", "/var/lib/kept"]).await.unwrap(), "kept\n");
    assert_ne!(node.exec(&["cat", "/run/lost"]).await.unwrap().status, Some(0));
    let again = |pod: Option<&Pod>| {
        let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.is_some_and(|all| all.iter().all(|one| one.restart_count == 1 && one.ready))
    };
    let pods = Api::<Pod>::namespaced(lab.client(), "default");
    wait_for(pods, "caller", "its container to run again", again, PATIENCE).await.unwrap();
    assert_eq!(fetch(lab, "server.default.svc.cluster.local").await.trim(), "hello");
}

async fn a_node_with_a_pulled_cable_is_lost_until_it_is_plugged_in(lab: &Lab) {
    let node = lab.node("gpu-2").unwrap();
    node.cut_network().await.unwrap();
    let nodes = Api::<Node>::all(lab.client());
    let lost = |node: Option<&Node>| node.is_some_and(|node| !node_is_ready(node));
    wait_for(nodes, "gpu-2", "node to be lost", lost, PATIENCE).await.unwrap();
    let still = node.exec(&["true"]).await.unwrap();
    assert_eq!(still.status, Some(0), "the node still runs");
    node.restore_network().await.unwrap();
    node.wait_ready().await.unwrap();
}

async fn pods_run_on_while_the_api_server_is_away(lab: &Lab) {
    lab.stop_apiserver().await.unwrap();
    assert!(lab.kubectl(&["get", "nodes", "--request-timeout=2s"]).await.is_err());
    let server = lab.node("gpu-1").unwrap().run(&["sh", "-c", "grep -l httpd /proc/[0-9]*/cmdline"]).await.unwrap();
    assert!(!server.trim().is_empty());
    lab.start_apiserver().await.unwrap();
    lab.nodes_ready().await.unwrap();
}

async fn a_killed_kubelet_comes_back_and_its_pods_are_untouched(lab: &Lab) {
    let before = lab.pod_ready("default", "server").await.unwrap().status.unwrap();
    let node = lab.node("gpu-1").unwrap();
    let pid = node.status().await.unwrap().components["kubelet"];
    node.kill_component("kubelet").await.unwrap();
    assert_ne!(node.status().await.unwrap().components["kubelet"], pid);
    node.wait_ready().await.unwrap();
    let after = lab.pod_ready("default", "server").await.unwrap().status.unwrap();
    assert_eq!(before.container_statuses, after.container_statuses);
}

const POLICIES: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guarded, namespace: default}
spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {friend: "yes"}}}], ports: [{port: 80}]}]}
"#;

/// Can the pod reach the web server? One attempt; a dropped connection has no answer.
async fn reaches(lab: &Lab, pod: &str, host: &str) -> bool {
    let script = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {host} 80 | grep -q hello");
    lab.kubectl(&["exec", pod, "--", "sh", "-c", &script]).await.is_ok()
}

/// Waits until the pod can or cannot reach the server: a node applies a policy a moment after the API server, and some seconds
/// after a network partition.
async fn comes_to_reach(lab: &Lab, pod: &str, host: &str, wanted: bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while reaches(lab, pod, host).await != wanted {
        assert!(tokio::time::Instant::now() < end, "{pod} reaches {host}: not {wanted}");
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

async fn network_policies_hold_across_nodes_on_one_and_through_services(lab: &Lab) {
    let neighbour = PODS.split("---").nth(1).unwrap().replace("caller", "neighbour").replace("gpu-2", "gpu-1");
    lab.apply(&neighbour).await.unwrap();
    lab.pod_ready("default", "neighbour").await.unwrap();
    let server = lab.pod_ready("default", "server").await.unwrap().status.unwrap().pod_ip.unwrap();
    let hosts = [server.as_str(), "server.default.svc.cluster.local"];
    for pod in ["caller", "neighbour"] {
        comes_to_reach(lab, pod, &server, true).await;
    }
    lab.apply(POLICIES).await.unwrap();
    for pod in ["caller", "neighbour"] {
        for host in hosts {
            comes_to_reach(lab, pod, host, false).await;
        }
        lab.kubectl(&["label", "pod", pod, "friend=yes"]).await.unwrap();
        for host in hosts {
            comes_to_reach(lab, pod, host, true).await;
        }
        lab.kubectl(&["label", "pod", pod, "friend-"]).await.unwrap();
        comes_to_reach(lab, pod, &server, false).await;
    }
    let outward =
        POLICIES.replace("policyTypes: [Ingress]", "policyTypes: [Egress]").replace("app: server", "app: caller");
    let (outward, _) = outward.split_once(", ingress:").unwrap();
    lab.apply(&format!("{outward}}}")).await.unwrap();
    comes_to_reach(lab, "neighbour", &server, true).await;
    comes_to_reach(lab, "caller", &server, false).await;
    lab.kubectl(&["delete", "networkpolicy", "guarded"]).await.unwrap();
    comes_to_reach(lab, "caller", &server, true).await;
}

async fn kwok_nodes_become_ready(lab: &Lab) {
    lab.add_kwok_nodes(20).await.unwrap();
    let nodes = Api::<Node>::all(lab.client());
    wait_for(nodes, "kwok-20", "node to be ready", |node: Option<&Node>| node.is_some_and(node_is_ready), PATIENCE)
        .await
        .unwrap();
}

async fn a_failure_leaves_logs_events_and_objects(lab: &Lab) {
    let folder = lab.collect("a test").await.unwrap();
    for file in
        ["control-plane/kube-apiserver.log", "nodes/gpu-1/kubelet.log", "events.txt", "pods.txt", "objects-2.yaml"]
    {
        let size = std::fs::metadata(folder.join(file)).map(|file| file.len()).unwrap_or_default();
        assert!(size > 0, "{file}");
    }
    std::fs::remove_dir_all(lab.folder().join("artifacts")).unwrap();
}

#[tokio::test]
async fn lab_behaves_like_separate_machines() {
    let spec = LabSpec { gpu_nodes: 2, cpu_nodes: 1, ..LabSpec::named("test-cluster") };
    lab::lab::down(&lab::place::Folders::find().unwrap(), &spec.name).unwrap();
    let lab = Lab::start(spec).await.unwrap();
    lab.apply(PODS).await.unwrap();
    gpu_label_is_on_gpu_nodes_only(&lab).await;
    traffic_crosses_nodes_by_address_and_by_name(&lab).await;
    a_killed_kubelet_comes_back_and_its_pods_are_untouched(&lab).await;
    a_power_cycle_is_a_new_boot_that_keeps_the_disk_and_loses_what_was_in_memory(&lab).await;
    pods_run_on_while_the_api_server_is_away(&lab).await;
    a_node_with_a_pulled_cable_is_lost_until_it_is_plugged_in(&lab).await;
    network_policies_hold_across_nodes_on_one_and_through_services(&lab).await;
    kwok_nodes_become_ready(&lab).await;
    a_failure_leaves_logs_events_and_objects(&lab).await;
    lab.down().await.unwrap();
}
