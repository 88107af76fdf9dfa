//! Upgrades that fail, with an API server that a function answers for, and a helm that names the chart it was given.

use std::path::{Path, PathBuf};

use gputenancy_crds::VirtualClusterUpgrade;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::SignedDuration};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::hex::hex;

/// An API server with a `StatefulSet` of this version of vCluster, which is not ready.
fn server(running: &str) -> MockServer {
    let chart = format!("vcluster-{running}");
    MockServer::new(move |request: &Request| {
        let workload = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"replicas": 1},
            "metadata": {
                "name": "team-a", "labels": {"chart": chart}, "managedFields": [{"manager": names::MANAGER, "operation": "Apply"}],
            },
        });
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/version") => json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""})
            .into(),
            ("GET", path) if path.ends_with(names::BINDING) => json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"name": names::BINDING, "labels": {"gputenancy.io/tenant": "team-a"}},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "x"},
            })
            .into(),
            ("GET", path) if is_policy(path) => policy(path).into(),
            ("GET", path) if path.ends_with("/statefulsets/team-a") => workload.into(),
            ("GET", path) if path.ends_with("/statefulsets") => Answer::list([workload]),
            ("GET", _) => Answer::list([]),
            ("DELETE", _) => Answer::success(),
            (_, path) if path.ends_with("/status") => json!(GpuTenant::new("team-a", GpuTenantSpec::default())).into(),
            _ => request.body.clone().into(),
        }
    })
}

/// Files of a test, deleted with it.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("gputenancy-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Charts of these versions; the name of each file is its version.
    fn charts(&self, versions: &[&str]) -> Charts {
        let chart = |version: &&str| {
            let (file, text) = (self.0.join(version), format!("chart {version}"));
            std::fs::write(&file, &text).unwrap();
            let chart = Chart { version: (*version).into(), file, sha256: hex(&Sha256::digest(text)), url: None };
            ((*version).to_owned(), chart)
        };
        Charts(versions.iter().map(chart).collect())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One attempt for a tenant that asks for 0.36.1; returns memory and writes.
async fn attempted(test: &str, running: &str, upgrade: Option<VirtualClusterUpgrade>) -> (Memory, Vec<Request>) {
    labelled(test, (running, running), upgrade).await
}

/// The same with another version in the label than in the status.
async fn labelled(
    test: &str,
    (label, running): (&str, &str),
    upgrade: Option<VirtualClusterUpgrade>,
) -> (Memory, Vec<Request>) {
    let (server, files) = (server(label), Files::new(test));
    let client = server.client();
    let context = Context::new(
        client.clone(),
        Publisher::new(client, "controller", "test"),
        (files.charts(&["0.35.3", "0.36.1"]), Values(json!({}))),
        Standard::default(),
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/reconcile/tests/helm"),
        Arc::new(Metrics::default()),
        mpsc::unbounded().0,
    );
    let cluster: VirtualCluster = serde_json::from_value(json!({"version": "0.36.1"})).unwrap();
    let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
    let spec = GpuTenantSpec { namespaces, virtual_cluster: Some(cluster.clone()), ..GpuTenantSpec::default() };
    let reported = VirtualClusterStatus {
        version: Some(running.into()),
        upgrade: upgrade.clone(),
        ..VirtualClusterStatus::default()
    };
    let mut tenant = GpuTenant::new("team-a", spec);
    tenant.status = Some(GpuTenantStatus { virtual_cluster: Some(reported), ..GpuTenantStatus::default() });
    // as after a restart
    let mut memory = Memory { upgrade, ..Memory::default() };
    let (outcome, _) = Box::pin(attempt(&tenant, &cluster, &context, &mut memory)).await;
    assert!(matches!(outcome.rendered, Some(Ok(_))) && outcome.failed.is_none(), "{outcome:?}");
    (memory, server.take().into_iter().filter(Request::is_write).collect())
}

/// The chart that was rendered and applied.
fn applied(writes: &[Request]) -> Option<String> {
    let Request { body, .. } = writes.iter().find(|write| write.path.ends_with("/configmaps/c"))?;
    let file = Path::new(body["data"]["chart"].as_str()?);
    file.file_name()?.to_str().map(str::to_owned)
}

#[tokio::test]
async fn former_version_is_in_the_status_before_the_new_one_is_applied() {
    let (memory, writes) = attempted("begun", "0.35.3", None).await;
    let Request { path, body: object, .. } = &writes[0];
    assert!(path.ends_with("/gputenants/team-a/status"), "{writes:?}");
    let upgrade = &object["status"]["virtualCluster"]["upgrade"];
    assert_eq!((&upgrade["from"], &upgrade["to"]), (&json!("0.35.3"), &json!("0.36.1")));
    assert_eq!(object["status"]["virtualCluster"]["version"], "0.35.3", "the rest of the status stays");
    let Request { method, path, body: event, .. } = &writes[1];
    assert!(method == "POST" && path.ends_with("/events"), "the advice comes before the objects: {writes:?}");
    assert_eq!((&event["reason"], &event["type"]), (&json!("UpgradeStarted"), &json!("Normal")));
    assert_eq!(applied(&writes).as_deref(), Some("0.36.1"));
    assert_eq!(memory.upgrade.as_ref().unwrap().since, None, "the objects were not applied before");

    let (_, writes) = attempted("begun", "0.36.1", memory.upgrade).await;
    assert!(writes.iter().all(|write| !write.path.ends_with("/events")), "once: {writes:?}");
}

#[tokio::test]
async fn late_upgrade_is_taken_back_also_by_a_controller_that_has_just_started() {
    let (begun, _) = attempted("late", "0.35.3", None).await;
    let since = Timestamp::now() - SignedDuration::from_mins(11);
    let late = VirtualClusterUpgrade { since: Some(Time(since)), ..begun.upgrade.unwrap() };
    let (memory, writes) = attempted("late", "0.36.1", Some(late.clone())).await;
    let failed = memory.upgrade.unwrap();
    assert!(failed.failed.is_some() && failed.message.as_deref().unwrap().contains("it has no pod"), "{failed:?}");
    let Request { path, body: object, .. } = &writes[0];
    assert!(path.ends_with("/gputenants/team-a/status"), "before the objects: {writes:?}");
    assert!(object["status"]["virtualCluster"]["upgrade"]["failed"].is_string());
    assert_eq!(applied(&writes).as_deref(), Some("0.35.3"));

    let (memory, writes) = attempted("late", "0.35.3", Some(failed.clone())).await;
    assert_eq!((memory.upgrade, applied(&writes).as_deref()), (Some(failed), Some("0.35.3")), "it is not tried again");
    let early = VirtualClusterUpgrade { since: Some(Time(Timestamp::now())), ..late };
    let (_, writes) = attempted("late", "0.36.1", Some(early)).await;
    assert_eq!(applied(&writes).as_deref(), Some("0.36.1"));
}

#[tokio::test]
async fn forged_label_of_the_version_is_repaired_and_stops_no_upgrade() {
    let (memory, writes) = labelled("forged", ("9.0.0", "0.36.1"), None).await;
    assert_eq!((memory.upgrade, applied(&writes).as_deref()), (None, Some("0.36.1")));

    let (begun, _) = labelled("forged", ("9.0.0", "0.35.3"), None).await;
    let begun = begun.upgrade.unwrap();
    assert_eq!((begun.from.as_str(), begun.to.as_str(), &begun.since), ("0.35.3", "0.36.1", &None));
    let since = Timestamp::now() - SignedDuration::from_mins(11);
    let late = VirtualClusterUpgrade { since: Some(Time(since)), ..begun };
    let (memory, writes) = labelled("forged", ("9.0.0", "0.36.1"), Some(late)).await;
    assert!(memory.upgrade.unwrap().failed.is_some());
    assert_eq!(applied(&writes).as_deref(), Some("0.35.3"), "it is taken back");
}

#[tokio::test]
async fn version_that_a_crash_left_out_of_the_status_is_written_with_the_end_of_its_upgrade() {
    // the spec was set back after the objects of the former version had been applied, and before that was reported
    let upgrade =
        VirtualClusterUpgrade { from: "0.36.1".into(), to: "0.36.2".into(), ..VirtualClusterUpgrade::default() };
    let (memory, writes) = labelled("crash", ("0.36.1", "0.36.2"), Some(upgrade)).await;
    assert_eq!(memory.upgrade, None);
    let Request { path, body: object, .. } = &writes[0];
    assert!(path.ends_with("/gputenants/team-a/status"), "{writes:?}");
    assert_eq!(object["status"]["virtualCluster"]["version"], "0.36.1");
}
