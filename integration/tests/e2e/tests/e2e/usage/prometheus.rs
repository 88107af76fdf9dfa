//! A Prometheus that scrapes the programs of a lab through `kubectl proxy`: the pods' network is not that of the tests.

use std::{process::Stdio, time::Duration};

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
    process::{Child, Command},
};

use e2e::{
    Error, Result, World,
    fixtures::merged,
    product,
    wait::{PATIENCE, eventually},
};

/// Time between two scrapes, and between two evaluations of rules without an interval of their own.
const INTERVAL: &str = "5s";
/// Ports of the metrics by program.
const PORTS: [(&str, u16); 3] =
    [("gputenancy-agent", 9410), ("gputenancy-operator", 8080), ("gputenancy-virtual-clusters", 8080)];

/// Prometheus with the chart's rules; ends with this value.
pub struct Prometheus {
    url: String,
    _processes: [Child; 2],
    _folder: TempDir,
}

fn io(what: &str) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.to_owned();
    |source| Error::Io { what, source }
}

impl Prometheus {
    /// Starts it, and waits until it has scraped every program.
    pub async fn start(world: &World) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(io("a folder for Prometheus"))?;
        let (proxy, through) = proxy(world).await?;
        let targets = targets(world, &through).await?;
        let count = targets.iter().map(|_| 1.0).sum::<f64>() + 1.0;
        let rules = product::root().join("helm/gputenancy/files/rules/*.yaml");
        // free a moment ago; another program would have to take this very port now
        let free = TcpListener::bind("127.0.0.1:0").await.map_err(io("a port for Prometheus"))?;
        let address = free.local_addr().map_err(io("the port for Prometheus"))?.to_string();
        drop(free);
        let config = json!({
            "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": [rules],
            "scrape_configs": [
                {"job_name": "lab", "honor_labels": true, "static_configs": targets},
                {"job_name": "prometheus", "static_configs": [{"targets": [address]}]},
            ],
        });
        let file = folder.path().join("prometheus.yaml");
        std::fs::write(&file, config.to_string()).map_err(io("writing the configuration of Prometheus"))?;
        let server = Command::new(product::root().join("target/toolset/bin/prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(io("starting Prometheus (integration/tools/build prometheus promtool)"))?;
        let prometheus = Self { url: format!("http://{address}"), _processes: [proxy, server], _folder: folder };
        eventually("a scrape of every program", PATIENCE, || async {
            Ok(match prometheus.query("count(up == 1)").await {
                Ok(found) if value(&found) == Some(count) => Ok(()),
                other => Err(format!("{other:?}, {count} targets")),
            })
        })
        .await?;
        Ok(prometheus)
    }

    /// The result of an instant query: a list of samples.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let promtool = product::root().join("target/toolset/bin/promtool");
        let ask = Command::new(promtool)
            .args(["query", "instant", "--format=json", &self.url, expression])
            .kill_on_drop(true)
            .output();
        let output = ask.await.map_err(io("running promtool"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Text { what: expression.to_owned(), why });
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let answer: Value = serde_json::from_str(&text)
            .map_err(|e| Error::Text { what: format!("{expression}: {text}"), why: e.to_string() })?;
        Ok(answer.as_array().cloned().unwrap_or_else(|| vec![answer]))
    }
}

/// The value of the only sample.
pub fn value(found: &[Value]) -> Option<f64> {
    let [one] = found else { return None };
    one.pointer("/value/1")?.as_str()?.parse().ok()
}

/// `kubectl proxy`, and its address.
async fn proxy(world: &World) -> Result<(Child, String)> {
    let mut proxy = Command::new(product::root().join("target/toolset/bin/kubectl"))
        .args(["proxy", "--port=0"])
        .env("KUBECONFIG", world.lab.kubeconfig_path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(io("starting kubectl proxy"))?;
    let output = proxy.stdout.take().ok_or_else(|| Error::Wrong("kubectl proxy without output".into()))?;
    let line = tokio::time::timeout(Duration::from_secs(30), BufReader::new(output).lines().next_line()).await;
    let line = line.map_err(|_| Error::Wrong("kubectl proxy does not start".into()))?.map_err(io("kubectl proxy"))?;
    let address = line.as_deref().and_then(|line| line.rsplit(' ').next()).map(str::to_owned);
    Ok((proxy, address.ok_or_else(|| Error::Wrong("kubectl proxy without an address".into()))?))
}

/// A target for each pod of the programs, with the labels that the chart's `ServiceMonitor`s give.
async fn targets(world: &World, through: &str) -> Result<Vec<Value>> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let of = PORTS.map(async |(name, port)| {
        let selected = ListParams::default().labels(&format!("app.kubernetes.io/name={name}"));
        let target = |pod: Pod| {
            let path =
                format!("/api/v1/namespaces/{}/pods/{}:{port}/proxy/metrics", product::NAMESPACE, pod.name_any());
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            let labels = json!({
                "__metrics_path__": path, "job": format!("{name}-metrics"), "namespace": product::NAMESPACE,
                "pod": pod.name_any(),
            });
            let of_node = if name == "gputenancy-agent" { json!({"node": node}) } else { json!({}) };
            let labels = merged(labels, of_node);
            json!({"targets": [through], "labels": labels})
        };
        pods.list(&selected).await.map(|list| list.items.into_iter().map(target).collect::<Vec<_>>())
    });
    Ok(try_join_all(of).await?.concat())
}
