//! A team reads the metrics of its own tenant: its pods reach the endpoint, and the endpoint answers those who may read the tenant.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pool, restricted_spec, tenant},
    objects::ensure,
    product,
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};

use super::{NODE, busy};

const SERVICE: &str = "gputenancy-usage";
const SECRET: &str = "usage-tls";

#[tokio::test]
async fn team_reads_its_own_series_and_no_other() {
    let world = World::enter().await.unwrap();
    let body = async {
        let (secret, client) = certificate()?;
        world.set(&[secret]).await?;
        let values =
            ["agent.usageInterval=2s", "usageEndpoint.enabled=true", &format!("usageEndpoint.tlsSecretName={SECRET}")];
        world.reinstall(&values).await?;
        reads(&world, &client).await
    };
    let result = world.keeping_evidence("usage-endpoint", body);
    result.await;
    world.reinstall(&[]).await.unwrap();
    // another test in this lab finds nothing that the chart has not left
    world.kubectl(&["delete", "secret", SECRET, "-n", product::NAMESPACE]).await.unwrap();
}

/// A Secret for the endpoint, and a client that trusts its certificate alone.
fn certificate() -> Result<(Value, TlsConnector)> {
    let failed = |why: String| Error::Text { what: "a certificate".into(), why };
    let name = format!("{SERVICE}.{}.svc", product::NAMESPACE);
    let pair = rcgen::generate_simple_self_signed(vec![name]).map_err(|e| failed(e.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add(pair.cert.der().clone()).map_err(|e| failed(e.to_string()))?;
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| failed(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let data = |text: String| STANDARD.encode(text);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": SECRET, "namespace": product::NAMESPACE},
        "data": {"tls.crt": data(pair.cert.pem()), "tls.key": data(pair.signing_key.serialize_pem())},
    });
    Ok((secret, TlsConnector::from(Arc::new(client))))
}

/// A pod without a GPU, whose network is that of the team.
fn asking() -> Value {
    let spec = restricted_spec(json!({
        "name": "ask", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "100000"],
    }));
    let spec = merged(spec, json!({"terminationGracePeriodSeconds": 0}));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ask", "namespace": "team-a"}, "spec": spec})
}

/// Status and body of the answer of one replica, through a port that the API server forwards.
async fn answer(world: &World, client: &TlsConnector, tenant: &str, token: Option<&str>) -> Result<(String, String)> {
    let io = |what: &str| {
        let what = what.to_owned();
        |source| Error::Io { what, source }
    };
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let operators = pods.list(&ListParams::default().labels("app.kubernetes.io/name=gputenancy-operator")).await?;
    let pod = operators.items.first().map(kube::ResourceExt::name_any).unwrap_or_default();
    let mut forwarded = pods.portforward(&pod, &[8443]).await?;
    let stream = forwarded.take_stream(8443).ok_or_else(|| Error::Wrong("port 8443 is not forwarded".into()))?;
    let name = ServerName::try_from(format!("{SERVICE}.{}.svc", product::NAMESPACE))
        .map_err(|e| Error::Text { what: "the name of the service".into(), why: e.to_string() })?;
    let mut connection = client.connect(name, stream).await.map_err(io("TLS with the endpoint"))?;
    let header = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET /tenants/{tenant}/metrics HTTP/1.0\r\nHost: {SERVICE}\r\n{header}\r\n");
    connection.write_all(request.as_bytes()).await.map_err(io("asking the endpoint"))?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await.map_err(io("the answer of the endpoint"))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
}

/// Whether the team's pod can connect to an address.
async fn reaches(world: &World, address: &str, port: u16) -> bool {
    let connect = format!("nc -w 2 {address} {port} </dev/null");
    world.kubectl(&["exec", "-n", "team-a", "ask", "--", "sh", "-c", &connect]).await.is_ok()
}

/// Lines of these series.
fn of<'t>(text: &'t str, parts: &[&str]) -> Vec<&'t str> {
    text.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part))).collect()
}

async fn reads(world: &World, client: &TlsConnector) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", NODE, &["mig-1g"])]).await?;
    let mut team = tenant("team-a", &[("mig-1g", 2)]);
    let viewer = json!({"viewers": [{"kind": "ServiceAccount", "name": "reader", "namespace": "team-a"}]});
    team["spec"] = merged(team["spec"].take(), viewer);
    world.set(&[team, tenant("team-b", &[("mig-1g", 2)])]).await?;
    tenant_ready(world, "team-a").await?;
    tenant_ready(world, "team-b").await?;
    pool_ready(world, "p").await?;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader", "namespace": "team-a"}});
    let resource = "nvidia.com/mig-1g.10gb";
    world
        .set(&[account, asking(), busy("team-a", "work", resource, 1080), busy("team-b", "work", resource, 1080)])
        .await?;
    let token = world.kubectl(&["create", "token", "-n", "team-a", "reader"]).await?;
    let token = Some(token.trim());

    world.pods_ready("team-a", 2).await?;
    // the pod reaches the endpoint and no other port of the operator
    let service = ["get", "service", "-n", product::NAMESPACE, SERVICE, "-o", "jsonpath={.spec.clusterIP}"];
    let address = world.kubectl(&service).await?;
    eventually("a connection of team-a's pod to the endpoint", PATIENCE, || async {
        Ok(if reaches(world, address.trim(), 443).await { Ok(()) } else { Err("no connection".to_owned()) })
    })
    .await?;
    let operators = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE)
        .list(&ListParams::default().labels("app.kubernetes.io/name=gputenancy-operator"))
        .await?;
    for operator in &operators.items {
        let address = operator.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or_default();
        ensure(!reaches(world, &address, 8080).await, format!("{} answers at 8080", operator.name_any()))?;
    }
    let text = eventually("team-a's series of its agents", PATIENCE, || async {
        let (status, text) = answer(world, client, "team-a", token).await?;
        let memory = of(&text, &["gputenancy_container_memory_used_bytes{", "node=\"gpu-1\""]);
        let good = status.contains(" 200 ") && !memory.is_empty();
        Ok(if good { Ok(text) } else { Err(format!("{status}: {text}")) })
    })
    .await?;
    let own = of(&text, &["gputenancy_allocation_info{", "namespace=\"team-a\"", "tenant=\"team-a\""]);
    ensure(own.len() == 1, text.clone())?;
    ensure(of(&text, &["gputenancy_device_info{"]).len() == 1, text.clone())?;
    let budget = of(&text, &["gputenancy_tenant_devices{", "profile=\"mig-1g\"", "state=\"budget\"", "} 2"]);
    ensure(!budget.is_empty(), text.clone())?;
    ensure(!text.contains("team-b") && text.ends_with("# EOF\n"), text.clone())?;
    for (tenant, token, expected) in [
        ("team-b", token, " 403 "),
        // a name that does not exist gets the same answer as one of another team
        ("no-such-team", token, " 403 "),
        ("team-a", None, " 401 "),
        ("team-a", Some("not-a-token"), " 401 "),
    ] {
        let (status, body) = answer(world, client, tenant, token).await?;
        ensure(status.contains(expected), format!("{tenant}, expected {expected}: {status}: {body}"))?;
    }
    Ok(())
}
