//! What pods inside do not reach: other teams, their control planes, kubelets of other nodes, and metadata of the node.

use e2e::{
    Result, World,
    wait::{PATIENCE, eventually},
};
use serde_json::json;

use super::hostile::{Cases, OTHER, PORT, TEAM, on_host};
use crate::virtual_cluster::{Inside, busybox, inside::SPACE};

/// Where clouds serve the credentials of a node.
const METADATA: &str = "169.254.169.254";
/// A server at this address, and a pod of no tenant, both in this namespace.
const PODS: [&str; 2] = ["metadata-server", "no-tenant"];
const ELSEWHERE: &str = "default";
/// Port of an API server in its pod.
const API: u16 = 8443;

/// Every address that must not be reached, after those that must.
pub(super) async fn unreachable(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    let pod_ip = "jsonpath={.items[0].status.podIP}";
    let control_plane = async |team: &str| {
        let selector = format!("app=vcluster,release={team}");
        let service = ["get", "service", "-n", team, team, "-o", "jsonpath={.spec.clusterIP}"];
        let pod = world.kubectl(&["get", "pods", "-n", team, "-l", &selector, "-o", pod_ip]).await?;
        Ok::<_, e2e::Error>([(world.kubectl(&service).await?, 443), (pod, API)])
    };
    // what does not answer below is closed and not broken
    for (host, port) in control_plane(TEAM).await? {
        eventually("the team's own API server", PATIENCE, || async { Ok(open(inside, &host, port).await) }).await?;
    }
    let web = world.kubectl(&["get", "pod", "-n", OTHER, "web", "-o", "jsonpath={.status.podIP}"]).await?;
    // network policies do not hold between a pod and its own node
    let own = world.kubectl(&["get", "pod", "-n", TEAM, &on_host("probe"), "-o", "jsonpath={.status.hostIP}"]).await?;
    let all = world.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].status.addresses[0].address}"]).await?;
    let node = all.split(' ').find(|node| *node != own).unwrap_or_default().to_owned();
    let [service, pod] = control_plane(OTHER).await?;
    for (what, (host, port)) in [
        ("pod of another team", (web, PORT)),
        ("kubelet of another node", (node, 10250)),
        ("Service of another team's API server", service),
        ("API server of another team", pod),
    ] {
        let answer = open(inside, &host, port).await;
        cases.check(what, answer.is_err(), answer);
    }
    let outcome = metadata(world, inside, cases).await;
    // also after a failure
    world.kubectl(&["delete", "pods", "-n", ELSEWHERE, PODS[0], PODS[1], "--ignore-not-found", "--wait=false"]).await?;
    outcome
}

/// Does a server answer the team's pod?
async fn open(inside: &Inside, host: &str, port: u16) -> std::result::Result<(), String> {
    let ask = question(host, port);
    inside.kubectl(&["exec", "-n", SPACE, "probe", "-c", "c", "--", "sh", "-c", &ask]).await.map(drop)
}

fn question(host: &str, port: u16) -> String {
    format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {host} {port} | grep -q .")
}

/// A server of metadata on another node, to which the team's node has a route: a pod of no tenant next to the team's reaches it.
async fn metadata(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    let node = world.kubectl(&["get", "pod", "-n", TEAM, &on_host("probe"), "-o", "jsonpath={.spec.nodeName}"]).await?;
    let server = if node == "cpu-1" { "gpu-2" } else { "cpu-1" };
    let address = world.kubectl(&["get", "node", server, "-o", "jsonpath={.status.addresses[0].address}"]).await?;
    let own = format!("{METADATA}/32");
    world.on_node(server, &["ip", "address", "replace", &own, "dev", "lo"]).await?;
    world.on_node(&node, &["ip", "route", "replace", &own, "via", &address]).await?;
    let outcome = metadata_is_closed(world, inside, (&node, server), cases).await;
    // also after a failure
    world.on_node(&node, &["ip", "route", "delete", &own]).await?;
    world.on_node(server, &["ip", "address", "delete", &own, "dev", "lo"]).await?;
    outcome
}

async fn metadata_is_closed(
    world: &World,
    inside: &Inside,
    (node, server): (&str, &str),
    cases: &mut Cases,
) -> Result<()> {
    let [serving, free] = PODS;
    let serve =
        format!("mkdir -p /tmp/w; echo credentials > /tmp/w/index.html; exec httpd -f -p {METADATA}:80 -h /tmp/w");
    let container = json!({
        "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sh", "-c", serve],
    });
    let serving = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": serving, "namespace": ELSEWHERE}, "spec": {
        "hostNetwork": true, "nodeName": server, "terminationGracePeriodSeconds": 0, "containers": [container],
    }});
    let mut asking = busybox(ELSEWHERE, free, "sleep 3600");
    asking["spec"]["nodeName"] = json!(node);
    world.set(&[serving, asking]).await?;
    let ask = question(METADATA, 80);
    eventually("node metadata to answer a pod of no tenant", PATIENCE, || async {
        let answer = world.kubectl(&["exec", "-n", ELSEWHERE, free, "--", "sh", "-c", &ask]).await;
        Ok(answer.map(drop).map_err(|e| e.to_string()))
    })
    .await?;
    let answer = open(inside, METADATA, 80).await;
    cases.check("node metadata", answer.is_err(), answer);
    Ok(())
}
